// Reference rules for the iptables column: iptables-restore text written straightforwardly from the description of
// kube-proxy's iptables mode. Chain names are short, counters are left out; nothing here is ours.

import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { contains, type Family, familyOf, hostPort, isLoopback, parseCidr } from '../../src/lib/ip.ts'
import type { Change, Driver, StartOptions } from '../lab/driver.ts'
import { type Manifest, manifestKey, type NodeSettings } from '../scenarios/format.ts'
import { type ReferenceEndpoint, type ReferencePort, referencePorts } from './reference-model.ts'

const mark = '0x4000/0x4000'

/** Drives `iptables-restore` in the node's namespace; every settle replaces both tables. */
export class IptablesReferenceDriver implements Driver {
  // All UDP flows are forgotten at each change: crude, but what a client sees is the same.
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

/** Forced off for IPv6, and where no configured CIDR touches loopback. */
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
      const except = localhost ? '' : this.#family === 4 ? '! -d 127.0.0.0/8' : '! -d ::1/128'
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
    const { protocol, internalLocal, externalLocal, hasEndpoints, cluster, local } = port
    const [svc, svl, ext, fw] = ['SVC', 'SVL', 'EXT', 'FW'].map((kind) => chainName(kind, port.base)) as [
      string,
      string,
      string,
      string,
    ]
    const refusal = hasEndpoints ? 'DROP' : 'REJECT'
    const internalFails = !hasEndpoints || (internalLocal && local.length === 0)
    const externalFails = !hasEndpoints || (externalLocal && local.length === 0)
    const to = (ip: string) => `-p ${protocol} -m ${protocol} -d ${ip} --dport ${port.port}`
    const owns = (ip: string) => port.frontends.has(`${ip} ${protocol} ${port.port}`)
    const usesFirewall = hasEndpoints && port.lbIps.length > 0 && port.ranges.length > 0
    const internal = internalLocal ? svl : svc
    if (!internalFails) {
      this.#chains.add(internal)
      const stranger = this.#settings.masqueradeAll ? '' : this.#detector('! ')
      if (stranger !== undefined) this.#nat.push(`-A ${internal} ${to(port.clusterIp)} ${stranger} -j TO-MASQ`)
    }
    if (owns(port.clusterIp)) {
      if (internalFails) this.#filter.push(`-A SERVICES ${to(port.clusterIp)} -j ${refusal}`)
      else this.#nat.push(`-A SERVICES ${to(port.clusterIp)} -j ${internal}`)
    }
    if (hasEndpoints && port.exposed) this.#external(port, ext, svc, svl)
    if (usesFirewall) this.#firewall(port, fw, ext)
    for (const ip of [...port.externalIps, ...port.lbIps].filter(owns)) {
      const guarded = usesFirewall && port.lbIps.includes(ip)
      if (hasEndpoints) this.#nat.push(`-A SERVICES ${to(ip)} -j ${guarded ? fw : ext}`)
      if (guarded) this.#filter.push(`-A FIREWALLED ${to(ip)} -j DROP`)
      if (externalFails) this.#filter.push(`-A EXTERNAL ${to(ip)} -j ${refusal}`)
    }
    if (port.nodePort !== 0 && port.frontends.has(`node ${protocol} ${port.nodePort}`)) {
      const match = `-p ${protocol} -m ${protocol} --dport ${port.nodePort}`
      if (hasEndpoints) this.#nat.push(`-A NODEPORTS ${match} -j ${ext}`)
      if (externalFails) this.#filter.push(`-A EXTERNAL -m addrtype --dst-type LOCAL ${match} -j ${refusal}`)
    }
    if (cluster.length > 0) this.#dispatch(svc, port, cluster)
    if (local.length > 0) this.#dispatch(svl, port, local)
  }

  #external(port: ReferencePort, ext: string, svc: string, svl: string): void {
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

  #firewall(port: ReferencePort, fw: string, ext: string): void {
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

const chainName = (kind: string, text: string): string =>
  `${kind}-${createHash('sha256').update(text).digest('hex').slice(0, 16)}`
