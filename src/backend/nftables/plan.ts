// Plans the nftables entries of one service port: elements and balanced frontends, and with ClientIP affinity its own chains. Pure.

import { formatIp, hostPort, isLoopback, maskBytes, parseCidr, parseIp } from '../../lib/ip.ts'
import { listSlots, listWeighted, tableSizeOf } from '../../model/endpoint-slots.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { planChoice } from '../relay/balancer-choice.ts'
import { affinityChainName, planAffinity } from './affinity.ts'
import { element, frontendEntry, frontendKey, type NftEntry, type SlotChoice } from './entries.ts'

/** A service port while its entries are planned. What its frontends share is made once: a port may have thousands of frontends. */
interface PortPlan {
  readonly port: ServicePort
  readonly node: NodeView
  readonly entries: NftEntry[]
  readonly cluster: readonly string[]
  readonly local: readonly string[]
  readonly choice: SlotChoice | undefined
  /** The source ranges of its load balancer frontends. */
  readonly allowed: readonly string[]
}

/** With `counting`, endpoints with affinity have counters. The slots of all other endpoints count without any entry. */
export function plan(resolved: ServicePort, node: NodeView, counting = false): readonly NftEntry[] {
  if (resolved.frontends.length === 0) return none
  const planned = beginPlan(resolved, node)
  const { port, entries } = planned
  for (const frontend of port.frontends) planFrontend(planned, frontend)
  for (const endpoint of listReachable(port)) if (endpoint.local) entries.push(hairpin(endpoint, port))
  if (port.affinitySeconds > 0) for (const entry of planAffinity(port, node, counting)) entries.push(entry)
  return entries
}

/** As `plan`, entry by entry while the caller iterates: a port may have thousands of endpoints. */
export function* planLazily(resolved: ServicePort, node: NodeView, counting: boolean): Iterable<NftEntry> {
  if (resolved.frontends.length === 0) return
  const planned = beginPlan(resolved, node)
  const { port, entries } = planned
  for (const frontend of port.frontends) {
    planFrontend(planned, frontend)
    yield* entries
    entries.length = 0
  }
  for (const endpoint of listReachable(port)) if (endpoint.local) yield hairpin(endpoint, port)
  if (port.affinitySeconds > 0) yield* planAffinity(port, node, counting)
}

function beginPlan(resolved: ServicePort, node: NodeView): PortPlan {
  const port = withShortName(resolved)
  const cluster = listSlots(port, port.cluster)
  const local = listSlots(port, port.local)
  return { port, node, entries: [], cluster, local, choice: chooserOf(port), allowed: listAllowed(port) }
}

function planFrontend(planned: PortPlan, frontend: Frontend): void {
  if (frontend.kind === 'cluster-ip') planClusterIp(planned, frontend)
  else planExternal(planned, frontend)
}

/** An endpoint on this node that connects to itself. */
const hairpin = ({ ip, port }: Endpoint, { protocol }: ServicePort): NftEntry =>
  element('hairpin-connections', `${ip} ${ip} ${protocol} ${port}`)

/** Undefined: at random, which is what this mode does by itself. */
function chooserOf(port: ServicePort): SlotChoice | undefined {
  if (tableSizeOf(port) > 0) return 'hash'
  return port.algorithm === 'round-robin' ? 'turn' : undefined
}

/** nft lists longer comments, but does not read them back. */
const maxComment = 128

/** Shortens the name, which is used only in comments. The longest namespace, name and port name are 15 characters too long together. */
function withShortName(port: ServicePort): ServicePort {
  const { name } = port
  return name.length <= maxComment ? port : { ...port, name: `${name.slice(0, maxComment - 3)}...` }
}

/** Returns all endpoints that traffic on this node may be sent to. */
function listReachable(port: ServicePort): readonly Endpoint[] {
  if (port.local.length === 0) return port.cluster
  if (port.cluster.length === 0) return port.local
  const known = new Set(port.cluster.map(addressOf))
  return [...port.cluster, ...port.local.filter((endpoint) => !known.has(addressOf(endpoint)))]
}

function planClusterIp({ port, entries, cluster, local, choice }: PortPlan, frontend: Frontend): void {
  const key = frontendKey({ ...frontend, protocol: port.protocol })
  entries.push(element('cluster-ips', frontend.ip))
  if (port.internal === 'reject' || port.internal === 'drop') {
    entries.push(element('no-endpoint-services', key, refusalVerdict(port.internal), port.name))
  } else if (port.affinitySeconds > 0) {
    entries.push(element('service-ips', key, `goto ${affinityChainName(port, port.internal)}`, port.name))
  } else {
    entries.push(
      frontendEntry({
        ip: frontend.ip,
        protocol: port.protocol,
        port: frontend.port,
        policy: 'plain',
        choice,
        cluster: port.internal === 'local' ? local : cluster,
        local: none,
        comment: port.name,
      }),
    )
  }
}

function planExternal(planned: PortPlan, frontend: Frontend): void {
  const { port, node, entries, cluster, local, choice } = planned
  const isNodePort = frontend.kind === 'node-port'
  const key = frontendKey({ ...frontend, protocol: port.protocol })
  if (frontend.allow.length > 0) planFirewall(planned, key)
  if (port.external === 'reject') {
    entries.push(
      element(isNodePort ? 'no-endpoint-nodeports' : 'no-endpoint-services', key, refusalVerdict('reject'), port.name),
    )
    return
  }
  if (port.affinitySeconds > 0) {
    const dispatch = `goto ${affinityChainName(port, 'external')}`
    entries.push(element(isNodePort ? 'service-nodeports' : 'service-ips', key, dispatch, port.name))
  } else {
    entries.push(
      frontendEntry({
        ip: frontend.ip,
        protocol: port.protocol,
        port: frontend.port,
        policy: port.external === 'cluster' ? 'masquerade' : 'local',
        choice,
        cluster,
        local: port.external === 'cluster' ? none : local,
        comment: port.name,
      }),
    )
  }
  const { addresses, loopbackNamed } = node.nodePorts
  if (isNodePort && loopbackNamed && port.protocol !== 'sctp') {
    for (const ip of addresses) if (isLoopback(ip)) planListener(planned, ip, frontend)
  }
}

/** One set has the destinations with source ranges, another one the allowed sources. Other traffic to these destinations is dropped. */
function planFirewall({ port, entries, allowed }: PortPlan, key: string): void {
  entries.push(element('firewalled-ips', key, '', port.name))
  for (const range of allowed) entries.push(element('firewall-allowed', `${key} ${range}`, '', port.name))
}

/** All load balancer frontends of a port have the same source ranges. */
function listAllowed({ frontends, family, nodeAllowed }: ServicePort): readonly string[] {
  const ranges = frontends.find(({ allow }) => allow.length > 0)?.allow ?? none
  if (ranges.length === 0 || !nodeAllowed) return removeNested(ranges)
  const balancers = frontends.filter(({ kind }) => kind === 'load-balancer')
  return removeNested([...ranges, ...balancers.map(({ ip }) => `${ip}/${family === 4 ? 32 : 128}`)])
}

/**
 * Returns the CIDRs without those that lie inside another one, because the kernel refuses overlapping members. Looks up the networks that
 * contain a CIDR, at most one per prefix length in use, instead of comparing every CIDR with every other.
 */
export function removeNested(ranges: readonly string[]): readonly string[] {
  if (ranges.length === 0) return none
  const cidrs = [...new Set(ranges)].map((range) => parseCidr(range)).filter((cidr) => cidr !== undefined)
  const texts = new Set(cidrs.map((cidr) => cidr.text))
  const lengths = [...new Set(cidrs.map((cidr) => cidr.bits))]
  return cidrs
    .filter(({ ip, bits }) => {
      const shorter = lengths.filter((length) => length < bits)
      return shorter.length === 0 || !shorter.some((length) => texts.has(networkOf(ip, length)))
    })
    .map((cidr) => cidr.text)
}

/** The network of this prefix length that contains the address, as a canonical CIDR. */
const networkOf = (ip: string, bits: number): string =>
  `${formatIp(maskBytes(parseIp(ip) as Uint8Array, bits))}/${bits}`

function planListener({ port, entries }: PortPlan, ip: string, frontend: Frontend): void {
  const listener = {
    ip,
    protocol: port.protocol,
    port: frontend.port,
    endpoints: listWeighted(port, port.cluster),
    affinitySeconds: port.affinitySeconds,
    ...planChoice(port),
  }
  const choice = listener.choice === undefined ? '' : ` ${JSON.stringify(listener.choice)}`
  entries.push({
    kind: 'listener',
    id: `listener ${listener.ip} ${listener.protocol} ${listener.port}`,
    digest: `${listener.endpoints.join(',')} ${listener.affinitySeconds}${choice}`,
    listener,
  })
}

const none: readonly never[] = Object.freeze([])

const refusalVerdict = (disposition: 'reject' | 'drop'): string =>
  disposition === 'drop' ? 'drop' : 'goto reject-chain'

const addressOf = (endpoint: Endpoint): string => hostPort(endpoint.ip, endpoint.port)
