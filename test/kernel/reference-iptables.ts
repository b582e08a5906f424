// Reference rules for iptables in the corpus: plain iptables-restore text, written from the description of kube-proxy's iptables mode.
// Chain names are short and counters are left out. It shares no code with our iptables mode.

import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { contains, type Family, familyOf, hostPort, isLoopback, parseCidr } from '../../src/lib/ip.ts'
import type { Change, Driver, StartOptions } from '../lab/driver.ts'
import { type Manifest, manifestKey, type NodeSettings } from '../scenarios/format.ts'
import { type ReferenceEndpoint, type ReferencePort, referencePorts } from './reference-model.ts'

const mark = '0x4000/0x4000'

/** Runs `iptables-restore` in the node's namespace. Every settle replaces both tables. */
export class IptablesReferenceDriver implements Driver {
  // Every change deletes all UDP flows, which is crude, but clients see the same.
  readonly provides = ['conntrack']
  readonly #objects = new Map<string, Manifest>()
  #start: StartOptions | undefined
  #settings: NodeSettings | undefined

  async start(start: StartOptions): Promise<void> {
    this.#start = start
    this.#settings = start.settings
    this.#objects.clear()
    routeLocalnet(start, localhostNodePorts(start.settings, 4))
  }

  async apply({ drop, put }: Change): Promise<void> {
    for (const manifest of drop) this.#objects.delete(manifestKey(manifest))
    for (const manifest of put) this.#objects.set(manifestKey(manifest), manifest)
  }

  async reconfigure(settings: NodeSettings): Promise<void> {
    this.#settings = settings
  }

  async settle(): Promise<void> {
    const start = this.#running()
    const settings = this.#settings as NodeSettings
    for (const family of start.families) {
      const ports = referencePorts([...this.#objects.values()], settings, family)
      await this.#restore(family, new Rules(family, settings, start.interfaceAddresses).text(ports))
    }
    await start.node.exec('conntrack', ['-D', '-p', 'udp'])
  }

  async holdings(): Promise<readonly string[]> {
    const { node, families } = this.#running()
    const left: string[] = []
    for (const family of families) {
      const { stdout } = await node.exec(family === 4 ? 'iptables-save' : 'ip6tables-save', [])
      left.push(...stdout.split('\n').filter((line) => /^-A (SVC|SVL|EXT|FW|SEP)-/.test(line)))
    }
    return left
  }

  async stop(): Promise<void> {
    if (this.#start === undefined) return
    for (const family of this.#start.families) await this.#restore(family, '*filter\nCOMMIT\n*nat\nCOMMIT\n')
    routeLocalnet(this.#start, false)
    this.#start = undefined
  }

  async #restore(family: Family, input: string): Promise<void> {
    const program = family === 4 ? 'iptables-restore' : 'ip6tables-restore'
    const { code, stderr } = await this.#running().node.exec(program, ['-w', '5'], { input })
    if (code !== 0) throw new Error(`${program}: ${stderr}\n${input}`)
  }

  #running(): StartOptions {
    if (this.#start === undefined) throw new Error('the reference has not been started')
    return this.#start
  }
}

function routeLocalnet({ node }: StartOptions, on: boolean): void {
  node.inside(() => writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', on ? '1' : '0'))
}

/** Off for IPv6, and if no configured CIDR covers loopback. */
function localhostNodePorts(settings: NodeSettings, family: Family): boolean {
  const cidrs = nodePortCidrs(settings, family)
  const covered = cidrs.length === 0 || cidrs.some((cidr) => isLoopback(cidr.ip) || contains(cidr, '127.0.0.0'))
  return family === 4 && settings.localhostNodePorts && covered
}

const nodePortCidrs = (settings: NodeSettings, family: Family) =>
  settings.nodePortAddresses.flatMap((text) => parseCidr(text) ?? []).filter((cidr) => cidr.family === family)

/** The text of one family's tables. */
class Rules {
  readonly #family: Family
  readonly #settings: NodeSettings
  readonly #addresses: readonly string[]
  readonly #filter: string[] = []
  readonly #nat: string[] = []
  readonly #chains = new Set<string>()

  constructor(family: Family, settings: NodeSettings, addresses: readonly string[]) {
    this.#family = family
    this.#settings = settings
    this.#addresses = addresses.filter((ip) => familyOf(ip) === family)
  }

  text(ports: readonly ReferencePort[]): string {
    for (const port of ports) this.#port(port)
    this.#nodePortTail()
    const filter = ['SERVICES', 'EXTERNAL', 'FORWARDING', 'FIREWALLED', 'LOCALNET']
    const nat = ['SERVICES', 'NODEPORTS', 'MASQ', 'TO-MASQ', ...this.#chains]
    const localnet = localhostNodePorts(this.#settings, this.#family)
      ? ['-A LOCALNET -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP']
      : []
    const jump = (from: string, to: string, match = '-m conntrack --ctstate NEW') => `-A ${from} ${match} -j ${to}`
    return [
      '*filter',
      ...filter.map((chain) => `:${chain} - [0:0]`),
      ...[jump('INPUT', 'LOCALNET', ''), jump('INPUT', 'FIREWALLED'), jump('INPUT', 'EXTERNAL')],
      ...[jump('FORWARD', 'FIREWALLED'), jump('FORWARD', 'FORWARDING', '')],
      ...[jump('FORWARD', 'SERVICES'), jump('FORWARD', 'EXTERNAL')],
      ...[jump('OUTPUT', 'LOCALNET', ''), jump('OUTPUT', 'FIREWALLED'), jump('OUTPUT', 'SERVICES')],
      ...localnet,
      ...this.#filter,
      '-A FORWARDING -m conntrack --ctstate INVALID -j DROP',
      `-A FORWARDING -m mark --mark ${mark} -j ACCEPT`,
      '-A FORWARDING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
      'COMMIT',
      '*nat',
      ...nat.map((chain) => `:${chain} - [0:0]`),
      ...[jump('PREROUTING', 'SERVICES', ''), jump('OUTPUT', 'SERVICES', ''), jump('POSTROUTING', 'MASQ', '')],
      `-A MASQ -m mark ! --mark ${mark} -j RETURN`,
      '-A MASQ -j MARK --xor-mark 0x4000',
      '-A MASQ -j MASQUERADE --random-fully',
      '-A TO-MASQ -j MARK --or-mark 0x4000',
      ...this.#nat,
      'COMMIT\n',
    ].join('\n')
  }

  #nodePortTail(): void {
    const cidrs = nodePortCidrs(this.#settings, this.#family)
    const localhost = localhostNodePorts(this.#settings, this.#family)
    if (cidrs.length === 0 || cidrs.some(({ bits }) => bits === 0)) {
      const loopback = this.#family === 4 ? '127.0.0.0/8' : '::1/128'
      const except = localhost ? '' : `! -d ${loopback}`
      this.#nat.push(`-A SERVICES -m addrtype --dst-type LOCAL ${except} -j NODEPORTS`)
      return
    }
    const served = this.#addresses.filter((ip) => cidrs.some((cidr) => contains(cidr, ip)))
    for (const ip of served.filter((one) => localhost || !isLoopback(one))) {
      this.#nat.push(`-A SERVICES -d ${ip} -j NODEPORTS`)
    }
  }

  #detector(not: '' | '! '): string | undefined {
    const { detector } = this.#settings
    if (detector === 'none') return undefined
    if ('interface' in detector) return `${not}-i ${detector.interface}`
    if ('prefix' in detector) return `${not}-i ${detector.prefix}+`
    const cidr = detector.cidrs.find((one) => parseCidr(one)?.family === this.#family)
    return cidr === undefined ? undefined : `${not}-s ${cidr}`
  }

  #port(port: ReferencePort): void {
    const chains = chainNames(port)
    this.#clusterIp(port, chains)
    if (port.hasEndpoints && port.exposed) this.#external(port, chains)
    if (usesFirewall(port)) this.#firewall(port, chains)
    this.#externalIps(port, chains)
    this.#nodePort(port, chains)
    if (port.cluster.length > 0) this.#dispatch(chains.svc, port, port.cluster)
    if (port.local.length > 0) this.#dispatch(chains.svl, port, port.local)
  }

  #clusterIp(port: ReferencePort, { svc, svl }: ChainNames): void {
    const { internalLocal, hasEndpoints, local, clusterIp } = port
    const isRefused = !hasEndpoints || (internalLocal && local.length === 0)
    const chain = internalLocal ? svl : svc
    if (!isRefused) {
      this.#chains.add(chain)
      const others = this.#settings.masqueradeAll ? '' : this.#detector('! ')
      if (others !== undefined) this.#nat.push(`-A ${chain} ${matchAddress(port, clusterIp)} ${others} -j TO-MASQ`)
    }
    if (!owns(port, clusterIp)) return
    if (isRefused) this.#filter.push(`-A SERVICES ${matchAddress(port, clusterIp)} -j ${refusalOf(port)}`)
    else this.#nat.push(`-A SERVICES ${matchAddress(port, clusterIp)} -j ${chain}`)
  }

  #externalIps(port: ReferencePort, { ext, fw }: ChainNames): void {
    for (const ip of [...port.externalIps, ...port.lbIps].filter((one) => owns(port, one))) {
      const match = matchAddress(port, ip)
      const isGuarded = usesFirewall(port) && port.lbIps.includes(ip)
      if (port.hasEndpoints) this.#nat.push(`-A SERVICES ${match} -j ${isGuarded ? fw : ext}`)
      if (isGuarded) this.#filter.push(`-A FIREWALLED ${match} -j DROP`)
      if (refusesExternal(port)) this.#filter.push(`-A EXTERNAL ${match} -j ${refusalOf(port)}`)
    }
  }

  #nodePort(port: ReferencePort, { ext }: ChainNames): void {
    const { protocol, nodePort } = port
    if (nodePort === 0 || !port.frontends.has(`node ${protocol} ${nodePort}`)) return
    const match = `-p ${protocol} -m ${protocol} --dport ${nodePort}`
    if (port.hasEndpoints) this.#nat.push(`-A NODEPORTS ${match} -j ${ext}`)
    if (refusesExternal(port)) {
      this.#filter.push(`-A EXTERNAL -m addrtype --dst-type LOCAL ${match} -j ${refusalOf(port)}`)
    }
  }

  #external(port: ReferencePort, { ext, svc, svl }: ChainNames): void {
    for (const chain of [ext, svc]) this.#chains.add(chain)
    if (!port.externalLocal) {
      this.#nat.push(`-A ${ext} -j TO-MASQ`, `-A ${ext} -j ${svc}`)
      return
    }
    const pod = this.#detector('')
    if (pod !== undefined) this.#nat.push(`-A ${ext} ${pod} -j ${svc}`)
    this.#nat.push(
      `-A ${ext} -m addrtype --src-type LOCAL -j TO-MASQ`,
      `-A ${ext} -m addrtype --src-type LOCAL -j ${svc}`,
    )
    this.#chains.add(svl)
    if (port.local.length > 0) this.#nat.push(`-A ${ext} -j ${svl}`)
  }

  #firewall(port: ReferencePort, { fw, ext }: ChainNames): void {
    const self = this.#settings.primary.find((ip) => familyOf(ip) === this.#family) ?? ''
    const nodeAllowed = port.ranges.some((range) => contains(parseCidr(range)!, self))
    this.#chains.add(fw)
    for (const source of [...port.ranges, ...(nodeAllowed ? port.lbIps : [])]) {
      this.#nat.push(`-A ${fw} -s ${source} -j ${ext}`)
    }
  }

  #dispatch(chain: string, port: ReferencePort, endpoints: readonly ReferenceEndpoint[]): void {
    this.#chains.add(chain)
    const seps = endpoints.map((one) => chainName('SEP', `${port.base} ${hostPort(one.ip, one.port)}`))
    if (port.affinity > 0) {
      for (const sep of seps) {
        this.#nat.push(`-A ${chain} -m recent --name ${sep} --rcheck --seconds ${port.affinity} --reap -j ${sep}`)
      }
    }
    for (const [i, one] of endpoints.entries()) {
      const sep = seps[i] as string
      const left = endpoints.length - i
      const chance = left === 1 ? '' : `-m statistic --mode random --probability ${(1 / left).toFixed(10)}`
      this.#nat.push(`-A ${chain} ${chance} -j ${sep}`)
      if (this.#chains.has(sep)) continue
      this.#chains.add(sep)
      const remember = port.affinity > 0 ? `-m recent --name ${sep} --set` : ''
      const match = `-p ${port.protocol} -m ${port.protocol}`
      this.#nat.push(`-A ${sep} -s ${one.ip} -j TO-MASQ`)
      this.#nat.push(`-A ${sep} ${remember} ${match} -j DNAT --to-destination ${hostPort(one.ip, one.port)}`)
    }
  }
}

interface ChainNames {
  readonly svc: string
  readonly svl: string
  readonly ext: string
  readonly fw: string
}

const chainNames = ({ base }: ReferencePort): ChainNames => ({
  svc: chainName('SVC', base),
  svl: chainName('SVL', base),
  ext: chainName('EXT', base),
  fw: chainName('FW', base),
})

const matchAddress = ({ protocol, port }: ReferencePort, ip: string): string =>
  `-p ${protocol} -m ${protocol} -d ${ip} --dport ${port}`

const owns = ({ frontends, protocol, port }: ReferencePort, ip: string): boolean =>
  frontends.has(`${ip} ${protocol} ${port}`)

const refusalOf = ({ hasEndpoints }: ReferencePort): string => (hasEndpoints ? 'DROP' : 'REJECT')

const refusesExternal = ({ hasEndpoints, externalLocal, local }: ReferencePort): boolean =>
  !hasEndpoints || (externalLocal && local.length === 0)

const usesFirewall = ({ hasEndpoints, lbIps, ranges }: ReferencePort): boolean =>
  hasEndpoints && lbIps.length > 0 && ranges.length > 0

const chainName = (kind: string, text: string): string =>
  `${kind}-${createHash('sha256').update(text).digest('hex').slice(0, 16)}`
