// Reference rules for the corpus: nft text written straightforwardly from the description of kube-proxy's nftables mode.
//
// Nothing here is ours or optimised. It proves that the lab and the corpus tell the truth before any backend exists.

import { contains, type Family, familyOf, hostPort, parseCidr } from '../../src/lib/ip.ts'
import type { Change, Driver, StartOptions } from '../lab/driver.ts'
import { type Manifest, manifestKey, type NodeSettings } from '../scenarios/format.ts'
import { nodePortIps, type ReferenceEndpoint, type ReferencePort, referencePorts } from './reference-model.ts'

const mark = '0x4000'
const table = 'reference'

/** Drives `nft` in the node's namespace. */
export class ReferenceDriver implements Driver {
  // All UDP flows are forgotten at each change: crude, but what a client sees is the same.
  readonly provides = ['conntrack']
  readonly #objects = new Map<string, Manifest>()
  readonly #spoil: (rules: string) => string
  #start: StartOptions | undefined
  #settings: NodeSettings | undefined
  #affinitySets = new Set<string>()

  /** `spoil` breaks the rules on purpose, to see whether anybody notices. */
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
    // Exit code 1 means that there were none.
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
    // `add` first: the table is not there if nothing was ever settled.
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

/** The text of one family's table. */
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
    const stranger = this.#stranger()
    if (stranger !== undefined) this.#rule('services', `${ip} daddr @cluster-ips ${stranger} mark set mark or ${mark}`)
    this.#rule('services', `${target} vmap @service-ips`)
    const local = nodePorts === undefined ? 'fib daddr type local ' : ''
    this.#rule('services', `${local}${onNode} meta l4proto . th dport vmap @service-nodeports`)
  }

  /** Who is masqueraded on the way to a cluster IP; undefined: nobody. */
  #stranger(): string | undefined {
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
    const { base, protocol, internalLocal, externalLocal, hasEndpoints, cluster, local } = port
    const service = `service-${base}`
    const localChain = `local-${base}`
    const external = `external-${base}`
    const refusal = hasEndpoints ? 'drop' : 'goto reject-chain'
    if (cluster.length > 0) this.#dispatch(service, port, cluster, affinitySets)
    if (local.length > 0) this.#dispatch(localChain, port, local, affinitySets)
    const reachable = new Map([...cluster, ...local].map((one) => [`${one.ip} ${one.port}`, one]))
    for (const { ip, port: number, local: here } of reachable.values()) {
      if (here) this.#element('hairpin-connections', `${ip} . ${ip} . ${protocol} . ${number}`)
    }
    if (hasEndpoints && port.exposed) this.#external(external, port)
    const ofPort = (ip: string) => `${ip} . ${protocol} . ${port.port}`
    const owns = (ip: string) => port.frontends.has(`${ip} ${protocol} ${port.port}`)
    const internalFails = !hasEndpoints || (internalLocal && local.length === 0)
    const externalFails = !hasEndpoints || (externalLocal && local.length === 0)
    this.#element('cluster-ips', port.clusterIp)
    if (owns(port.clusterIp)) {
      if (internalFails) this.#element('no-endpoint-services', `${ofPort(port.clusterIp)} : ${refusal}`)
      else this.#element('service-ips', `${ofPort(port.clusterIp)} : goto ${internalLocal ? localChain : service}`)
    }
    for (const ip of [...port.externalIps, ...port.lbIps].filter(owns)) {
      if (externalFails) this.#element('no-endpoint-services', `${ofPort(ip)} : ${refusal}`)
      if (hasEndpoints) this.#element('service-ips', `${ofPort(ip)} : goto ${external}`)
    }
    if (port.nodePort !== 0 && port.frontends.has(`node ${protocol} ${port.nodePort}`)) {
      const key = `${protocol} . ${port.nodePort}`
      if (externalFails) this.#element('no-endpoint-nodeports', `${key} : ${refusal}`)
      if (hasEndpoints) this.#element('service-nodeports', `${key} : goto ${external}`)
    }
    if (port.lbIps.length > 0 && port.ranges.length > 0) this.#firewall(port, owns, ofPort)
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

  #firewall(port: ReferencePort, owns: (ip: string) => boolean, ofPort: (ip: string) => string): void {
    const chain = `firewall-${port.base}`
    const self = this.#settings.primary.find((ip) => familyOf(ip) === this.#family) ?? ''
    const nodeAllowed = port.ranges.some((range) => contains(parseCidr(range)!, self))
    const allowed = nodeAllowed ? [...port.ranges, ...port.lbIps] : port.ranges
    this.#add('chain', chain, '')
    this.#rule(chain, `${this.#ip} saddr != { ${allowed.join(', ')} } drop`)
    for (const ip of port.lbIps.filter(owns)) this.#element('firewall-ips', `${ofPort(ip)} : goto ${chain}`)
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
      // A chain may be written for both policies; its rules only once.
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
