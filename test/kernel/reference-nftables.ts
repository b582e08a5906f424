// Reference rules for nftables in the corpus: plain nft text, written from the description of kube-proxy's nftables mode.
// It shares no code with our nftables mode. It shows that the lab and the corpus are right, independently of any backend.

import { contains, type Family, familyOf, hostPort, parseCidr } from '../../src/lib/ip.ts'
import type { Change, Driver, StartOptions } from '../lab/driver.ts'
import { type Manifest, manifestKey, type NodeSettings } from '../scenarios/format.ts'
import { nodePortIps, type ReferenceEndpoint, type ReferencePort, referencePorts } from './reference-model.ts'

const mark = '0x4000'
const table = 'reference'

/** Runs `nft` in the namespace of the node. */
export class NftablesReferenceDriver implements Driver {
  // Every change deletes all UDP flows, which is crude, but clients see the same.
  readonly provides = ['conntrack']
  readonly #objects = new Map<string, Manifest>()
  readonly #spoil: (rules: string) => string
  #start: StartOptions | undefined
  #settings: NodeSettings | undefined
  #affinitySets = new Set<string>()

  /** `spoil` breaks the rules on purpose, to test that the lab reports it. */
  constructor(spoil: (rules: string) => string = (rules) => rules) {
    this.#spoil = spoil
  }

  async start(start: StartOptions): Promise<void> {
    this.#start = start
    this.#settings = start.settings
    this.#affinitySets = new Set()
    this.#objects.clear()
  }

  async apply({ drop, put }: Change): Promise<void> {
    for (const manifest of drop) this.#objects.delete(manifestKey(manifest))
    for (const manifest of put) this.#objects.set(manifestKey(manifest), manifest)
  }

  async reconfigure(settings: NodeSettings): Promise<void> {
    this.#settings = settings
  }

  async settle(): Promise<void> {
    const { families } = this.#running()
    const sets = new Set<string>()
    const text = families.map((family) => this.#rules(family, sets)).join('')
    const stale = [...this.#affinitySets].filter((set) => !sets.has(set))
    await this.#nft(this.#spoil(text) + stale.map((set) => `delete set ${set}\n`).join(''))
    this.#affinitySets = sets
    const udp = [...this.#objects.values()].some((object) => JSON.stringify(object).includes('"UDP"'))
    // The program ends with 1 if there are no such flows.
    if (udp) await this.#running().node.exec('conntrack', ['-D', '-p', 'udp'])
  }

  async holdings(): Promise<readonly string[]> {
    const { node, families } = this.#running()
    const left: string[] = []
    for (const family of families) {
      const { stdout } = await node.exec('nft', ['list', 'table', word(family), table])
      for (const [, kind, name, body] of stdout.matchAll(/(set|map) (\S+) \{([^}]*elements[^}]*)\}/g)) {
        if (name !== 'nodeport-ips') left.push(`${kind} ${name}: ${body?.trim()}`)
      }
    }
    return left
  }

  async stop(): Promise<void> {
    if (this.#start === undefined) return
    const { families } = this.#start
    // `add` comes first, since there is no table if nothing was settled.
    await this.#nft(
      families.flatMap((f) => [`add table ${word(f)} ${table}`, `delete table ${word(f)} ${table}\n`]).join('\n'),
    )
    this.#start = undefined
  }

  #rules(family: Family, sets: Set<string>): string {
    const settings = this.#settings as NodeSettings
    const ports = referencePorts([...this.#objects.values()], settings, family)
    const rules = new Rules(family, settings)
    const ips = nodePortIps(settings, family, this.#running().interfaceAddresses)
    return rules.text(ports, ips, sets)
  }

  async #nft(input: string): Promise<void> {
    const { code, stderr } = await this.#running().node.exec('nft', ['-f', '-'], { input })
    if (code !== 0) throw new Error(`nft: ${stderr}\n${input}`)
  }

  #running(): StartOptions {
    if (this.#start === undefined) throw new Error('the reference has not been started')
    return this.#start
  }
}

const word = (family: Family): 'ip' | 'ip6' => (family === 4 ? 'ip' : 'ip6')

/** Writes the text of one family's table. */
class Rules {
  readonly #ip: 'ip' | 'ip6'
  readonly #family: Family
  readonly #settings: NodeSettings
  readonly #lines: string[] = []

  constructor(family: Family, settings: NodeSettings) {
    this.#family = family
    this.#settings = settings
    this.#ip = word(family)
  }

  text(ports: readonly ReferencePort[], nodePorts: string[] | undefined, affinitySets: Set<string>): string {
    this.#base(nodePorts)
    for (const port of ports) this.#port(port, affinitySets)
    return `${this.#lines.join('\n')}\n`
  }

  #add(what: string, name: string, rest: string): void {
    this.#lines.push(`add ${what} ${this.#ip} ${table} ${name} ${rest}`)
  }

  #rule(chain: string, rule: string): void {
    this.#add('rule', chain, rule)
  }

  #element(container: string, element: string): void {
    this.#add('element', container, `{ ${element} }`)
  }

  #base(nodePorts: string[] | undefined): void {
    const ip = this.#ip
    const address = this.#family === 4 ? 'ipv4_addr' : 'ipv6_addr'
    this.#lines.push(`add table ${ip} ${table}`, `flush table ${ip} ${table}`)
    const container = (what: 'set' | 'map', name: string, type: string) => {
      this.#add(what, name, `{ type ${type} ; }`)
      this.#lines.push(`flush ${what} ${ip} ${table} ${name}`)
    }
    container('set', 'cluster-ips', address)
    container('set', 'nodeport-ips', address)
    container('set', 'hairpin-connections', `${address} . ${address} . inet_proto . inet_service`)
    container('map', 'service-ips', `${address} . inet_proto . inet_service : verdict`)
    container('map', 'service-nodeports', 'inet_proto . inet_service : verdict')
    container('map', 'no-endpoint-services', `${address} . inet_proto . inet_service : verdict`)
    container('map', 'no-endpoint-nodeports', 'inet_proto . inet_service : verdict')
    container('map', 'firewall-ips', `${address} . inet_proto . inet_service : verdict`)
    const hooks: [string, string, string, number][] = [
      ['filter-prerouting-pre-dnat', 'filter', 'prerouting', -110],
      ['filter-output-pre-dnat', 'filter', 'output', -110],
      ['filter-input', 'filter', 'input', 0],
      ['filter-forward', 'filter', 'forward', 0],
      ['filter-output', 'filter', 'output', 0],
      ['nat-prerouting', 'nat', 'prerouting', -100],
      ['nat-output', 'nat', 'output', -100],
      ['nat-postrouting', 'nat', 'postrouting', 100],
    ]
    for (const [name, type, hook, priority] of hooks) {
      this.#add('chain', name, `{ type ${type} hook ${hook} priority ${priority} ; }`)
    }
    const plain = ['nodeport-endpoints-check', 'service-endpoints-check', 'cluster-ips-check', 'firewall-check']
    for (const name of [...plain, 'services', 'masquerading', 'reject-chain']) this.#add('chain', name, '')
    const jump = (from: string, to: string, match = 'ct state new ') => this.#rule(from, `${match}jump ${to}`)
    jump('filter-input', 'nodeport-endpoints-check')
    for (const hook of ['input', 'forward', 'output']) jump(`filter-${hook}`, 'service-endpoints-check')
    for (const hook of ['prerouting', 'output']) jump(`filter-${hook}-pre-dnat`, 'firewall-check')
    for (const hook of ['prerouting', 'output']) jump(`nat-${hook}`, 'services', '')
    jump('nat-postrouting', 'masquerading', '')
    for (const hook of ['forward', 'output']) jump(`filter-${hook}`, 'cluster-ips-check')
    this.#fixed(nodePorts)
  }

  #fixed(nodePorts: string[] | undefined): void {
    const ip = this.#ip
    const loopback = this.#family === 4 ? '127.0.0.0/8' : '::1'
    const target = `${ip} daddr . meta l4proto . th dport`
    this.#rule('masquerading', `mark and ${mark} != 0 mark set mark xor ${mark} masquerade fully-random`)
    const flow = `${ip} saddr . ${ip} daddr . meta l4proto . th dport`
    this.#rule('masquerading', `ct status dnat ${flow} @hairpin-connections masquerade fully-random`)
    this.#rule('cluster-ips-check', `${ip} daddr @cluster-ips reject`)
    const cidrs = this.#settings.serviceCIDRs.filter((cidr) => parseCidr(cidr)?.family === this.#family)
    if (cidrs.length > 0) this.#rule('cluster-ips-check', `${ip} daddr { ${cidrs.join(', ')} } drop`)
    this.#rule('reject-chain', 'reject')
    this.#rule('service-endpoints-check', `${target} vmap @no-endpoint-services`)
    const onNode = nodePorts === undefined ? `${ip} daddr != ${loopback}` : `${ip} daddr @nodeport-ips`
    this.#rule('nodeport-endpoints-check', `${onNode} meta l4proto . th dport vmap @no-endpoint-nodeports`)
    this.#rule('firewall-check', `${target} vmap @firewall-ips`)
    for (const address of nodePorts ?? []) this.#element('nodeport-ips', address)
    const match = this.#masqueraded()
    if (match !== undefined) this.#rule('services', `${ip} daddr @cluster-ips ${match} mark set mark or ${mark}`)
    this.#rule('services', `${target} vmap @service-ips`)
    const local = nodePorts === undefined ? 'fib daddr type local ' : ''
    this.#rule('services', `${local}${onNode} meta l4proto . th dport vmap @service-nodeports`)
  }

  /** Returns the match for packets to cluster IPs that are masqueraded; undefined if none are. */
  #masqueraded(): string | undefined {
    return this.#settings.masqueradeAll ? '' : this.#detector('!= ')
  }

  #detector(operator: '' | '!= '): string | undefined {
    const { detector } = this.#settings
    if (detector === 'none') return undefined
    if ('interface' in detector) return `iifname ${operator}"${detector.interface}"`
    if ('prefix' in detector) return `iifname ${operator}"${detector.prefix}*"`
    const cidr = detector.cidrs.find((one) => parseCidr(one)?.family === this.#family)
    return cidr === undefined ? undefined : `${this.#ip} saddr ${operator}${cidr}`
  }

  #port(port: ReferencePort, affinitySets: Set<string>): void {
    const { base, protocol, hasEndpoints, cluster, local } = port
    if (cluster.length > 0) this.#dispatch(`service-${base}`, port, cluster, affinitySets)
    if (local.length > 0) this.#dispatch(`local-${base}`, port, local, affinitySets)
    const reachable = new Map([...cluster, ...local].map((one) => [`${one.ip} ${one.port}`, one]))
    for (const { ip, port: number, local: here } of reachable.values()) {
      if (here) this.#element('hairpin-connections', `${ip} . ${ip} . ${protocol} . ${number}`)
    }
    if (hasEndpoints && port.exposed) this.#external(`external-${base}`, port)
    this.#clusterIp(port)
    for (const ip of [...port.externalIps, ...port.lbIps].filter((one) => owns(port, one))) {
      if (refusesExternal(port)) this.#element('no-endpoint-services', `${keyOf(port, ip)} : ${refusalOf(port)}`)
      if (hasEndpoints) this.#element('service-ips', `${keyOf(port, ip)} : goto external-${base}`)
    }
    this.#nodePort(port)
    if (port.lbIps.length > 0 && port.ranges.length > 0) this.#firewall(port)
  }

  #clusterIp(port: ReferencePort): void {
    const { base, clusterIp, internalLocal, hasEndpoints, local } = port
    this.#element('cluster-ips', clusterIp)
    if (!owns(port, clusterIp)) return
    const isRefused = !hasEndpoints || (internalLocal && local.length === 0)
    const chain = `${internalLocal ? 'local' : 'service'}-${base}`
    if (isRefused) this.#element('no-endpoint-services', `${keyOf(port, clusterIp)} : ${refusalOf(port)}`)
    else this.#element('service-ips', `${keyOf(port, clusterIp)} : goto ${chain}`)
  }

  #nodePort(port: ReferencePort): void {
    const { base, protocol, nodePort } = port
    if (nodePort === 0 || !port.frontends.has(`node ${protocol} ${nodePort}`)) return
    const key = `${protocol} . ${nodePort}`
    if (refusesExternal(port)) this.#element('no-endpoint-nodeports', `${key} : ${refusalOf(port)}`)
    if (port.hasEndpoints) this.#element('service-nodeports', `${key} : goto external-${base}`)
  }

  #external(chain: string, port: ReferencePort): void {
    const service = `service-${port.base}`
    this.#add('chain', chain, '')
    this.#add('chain', service, '')
    if (!port.externalLocal) {
      this.#rule(chain, `mark set mark or ${mark}`)
      this.#rule(chain, `goto ${service}`)
      return
    }
    const pod = this.#detector('')
    if (pod !== undefined) this.#rule(chain, `${pod} goto ${service}`)
    this.#rule(chain, `fib saddr type local mark set mark or ${mark}`)
    this.#rule(chain, `fib saddr type local goto ${service}`)
    if (port.local.length > 0) this.#rule(chain, `goto local-${port.base}`)
  }

  #firewall(port: ReferencePort): void {
    const chain = `firewall-${port.base}`
    const self = this.#settings.primary.find((ip) => familyOf(ip) === this.#family) ?? ''
    const nodeAllowed = port.ranges.some((range) => contains(parseCidr(range)!, self))
    const allowed = nodeAllowed ? [...port.ranges, ...port.lbIps] : port.ranges
    this.#add('chain', chain, '')
    this.#rule(chain, `${this.#ip} saddr != { ${allowed.join(', ')} } drop`)
    for (const ip of port.lbIps.filter((one) => owns(port, one))) {
      this.#element('firewall-ips', `${keyOf(port, ip)} : goto ${chain}`)
    }
  }

  #dispatch(
    chain: string,
    port: ReferencePort,
    endpoints: readonly ReferenceEndpoint[],
    affinitySets: Set<string>,
  ): void {
    const { base, protocol, affinity } = port
    const ip = this.#ip
    const count = endpoints.length
    this.#add('chain', chain, '')
    if (affinity === 0) {
      const map = endpoints.map((one, i) => `${i} : ${one.ip} . ${one.port}`).join(', ')
      this.#rule(chain, `meta l4proto ${protocol} dnat ${ip} addr . port to numgen random mod ${count} map { ${map} }`)
      return
    }
    const address = this.#family === 4 ? 'ipv4_addr' : 'ipv6_addr'
    const names = endpoints.map((one) => `${base}__${one.ip.replaceAll(':', '.')}/${one.port}`)
    for (const [i, one] of endpoints.entries()) {
      const set = `affinity-${names[i]}`
      // Both policies may use the chain of an endpoint; its rules are written once.
      if (!affinitySets.has(`${ip} ${table} ${set}`)) {
        this.#add('set', set, `{ type ${address} ; flags dynamic,timeout ; timeout ${affinity}s ; }`)
        this.#add('chain', `endpoint-${names[i]}`, '')
        this.#rule(`endpoint-${names[i]}`, `update @${set} { ${ip} saddr }`)
        this.#rule(`endpoint-${names[i]}`, `meta l4proto ${protocol} dnat to ${hostPort(one.ip, one.port)}`)
        affinitySets.add(`${ip} ${table} ${set}`)
      }
      this.#rule(chain, `${ip} saddr @${set} goto endpoint-${names[i]}`)
    }
    const vmap = names.map((name, i) => `${i} : goto endpoint-${name}`).join(', ')
    this.#rule(chain, `numgen random mod ${count} vmap { ${vmap} }`)
  }
}

const keyOf = ({ protocol, port }: ReferencePort, ip: string): string => `${ip} . ${protocol} . ${port}`

const owns = ({ frontends, protocol, port }: ReferencePort, ip: string): boolean =>
  frontends.has(`${ip} ${protocol} ${port}`)

const refusalOf = ({ hasEndpoints }: ReferencePort): string => (hasEndpoints ? 'drop' : 'goto reject-chain')

const refusesExternal = ({ hasEndpoints, externalLocal, local }: ReferencePort): boolean =>
  !hasEndpoints || (externalLocal && local.length === 0)
