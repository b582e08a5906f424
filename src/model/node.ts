// Derives the view of this node: its addresses and primary family, where node ports answer, and how to detect traffic of its pods. Pure.

import { type Cidr, contains, type Family, familyOf, isLoopback, isUnspecified, parseCidr } from '../lib/ip.ts'
import { type ReservedFacts, reservedAddresses } from './reserved-addresses.ts'
import type { LocalDetector, NodePortAddresses, NodeRecord, NodeView, SocketAddress } from './types.ts'

// ---- Addresses. ----

/** The node's first address, and the first of the other family if it has one. */
export function nodeAddresses(record: NodeRecord | undefined): readonly string[] {
  const first = record?.addresses[0]
  if (record === undefined || first === undefined) return []
  const other = record.addresses.find((ip) => familyOf(ip) !== familyOf(first))
  return other === undefined ? [first] : [first, other]
}

export interface NodeIps {
  readonly 4: string
  readonly 6: string
  readonly primary: Family
}

/** Unknown addresses are loopback. `bindAddress` is canonical or ''; a specific address overrides the Node object. */
export function detectNodeIps(addresses: readonly string[], bindAddress: string): NodeIps {
  const ips = { 4: '127.0.0.1', 6: '::1' }
  let primary: Family = 4
  if (addresses[0] !== undefined) primary = familyOf(addresses[0])
  for (const ip of addresses.slice(0, 2)) ips[familyOf(ip)] = ip
  if (bindAddress !== '' && !isUnspecified(bindAddress)) {
    primary = familyOf(bindAddress)
    ips[primary] = bindAddress
  }
  return { ...ips, primary }
}

// ---- Node ports. ----

/**
 * Replaces the keywords of nodePortAddresses: `primary` by the known addresses of the node, `localhost` and `all` by the CIDRs of
 * both families (both as in kube-proxy 1.37).
 *
 * As in kube-proxy: on a node with one address, `primary` leaves the other family without a CIDR, and a family without CIDRs serves
 * node ports on *all* its addresses. A node whose addresses are unknown serves node ports on all its addresses.
 */
export function expandNodePortAddresses(list: readonly string[], ips: NodeIps): readonly string[] {
  const own = [ips[4], ips[6]].filter((ip) => !isLoopback(ip)).map((ip) => `${ip}/${familyOf(ip) === 4 ? 32 : 128}`)
  return list.flatMap((item) => {
    if (item === 'primary') return own
    if (item === 'localhost') return ['127.0.0.0/8', '::1/128']
    return item === 'all' ? ['0.0.0.0/0', '::/0'] : [item]
  })
}

/** `cidrs` has no keywords; `interfaceAddresses` are of both families and canonical. */
export function nodePortAddresses(
  cidrs: readonly string[],
  family: Family,
  interfaceAddresses: readonly string[],
): NodePortAddresses {
  const own = cidrsOf(cidrs, family)
  const all = own.length === 0 || own.some((cidr) => cidr.bits === 0)
  const first = family === 4 ? '127.0.0.0' : '::1'
  const here = interfaceAddresses.filter(
    (ip) => familyOf(ip) === family && (all || own.some((cidr) => contains(cidr, ip))),
  )
  return {
    all,
    addresses: [...new Set(here)].sort(),
    // A CIDR of all addresses covers loopback, at any place in the list.
    loopback: all || own.some((cidr) => isLoopbackCidr(cidr) || contains(cidr, first)),
    loopbackNamed: own.some(isLoopbackCidr),
  }
}

const isLoopbackCidr = (cidr: Cidr): boolean => isLoopback(cidr.ip) && cidr.bits >= (cidr.family === 4 ? 8 : 128)

// ---- Local traffic. ----

export type DetectLocalMode = 'ClusterCIDR' | 'NodeCIDR' | 'BridgeInterface' | 'InterfaceNamePrefix'

export interface DetectLocal {
  readonly mode: DetectLocalMode
  readonly clusterCidrs: readonly string[]
  /** spec.podCIDRs of the Node. */
  readonly podCidrs: readonly string[]
  readonly bridgeInterface: string
  readonly interfaceNamePrefix: string
}

/** How this node detects the traffic of its pods in one family; undefined if it cannot. */
export function localDetector(detect: DetectLocal, family: Family): LocalDetector | undefined {
  switch (detect.mode) {
    case 'ClusterCIDR':
      return cidrDetector(detect.clusterCidrs, family)
    case 'NodeCIDR':
      return cidrDetector(detect.podCidrs, family)
    case 'BridgeInterface':
      return detect.bridgeInterface === '' ? undefined : { kind: 'interface', name: detect.bridgeInterface }
    case 'InterfaceNamePrefix':
      return detect.interfaceNamePrefix === '' ? undefined : { kind: 'prefix', prefix: detect.interfaceNamePrefix }
  }
}

function cidrDetector(cidrs: readonly string[], family: Family): LocalDetector | undefined {
  const first = cidrsOf(cidrs, family)[0]
  return first === undefined ? undefined : { kind: 'cidr', cidr: first.text }
}

// ---- The view. ----

export interface NodeFacts extends ReservedFacts {
  readonly name: string
  readonly zone: string
  readonly ips: NodeIps
  /** As configured, with keywords. */
  readonly nodePortAddresses: readonly string[]
  readonly detectLocal: DetectLocal
  readonly masqueradeAll: boolean
  readonly masqueradeBit: number
  /** The CIDRs of all ServiceCIDR objects, of both families. */
  readonly serviceCidrs: readonly string[]
  /** Feature gate AllowServiceExternalIPs. */
  readonly externalIps: boolean
}

/** Makes the view of one family. Equal facts give views with equal fields. */
export function makeNodeView(facts: NodeFacts, family: Family): NodeView {
  const nodePortCidrs = expandNodePortAddresses(facts.nodePortAddresses, facts.ips)
  const serviceCidrs = cidrsOf(facts.serviceCidrs, family).map((cidr) => cidr.text)
  const nodePorts = nodePortAddresses(nodePortCidrs, family, facts.interfaceAddresses)
  return {
    name: facts.name,
    family,
    zone: facts.zone,
    ip: facts.ips[family],
    nodePorts,
    local: localDetector(facts.detectLocal, family),
    masqueradeAll: facts.masqueradeAll,
    masqueradeMark: 2 ** facts.masqueradeBit,
    serviceCidrs: [...new Set(serviceCidrs)].sort(),
    externalIps: facts.externalIps,
    apiServers: sortSockets(facts.apiServers.filter(({ ip }) => familyOf(ip) === family)),
    reserved: reservedAddresses(facts, family, nodePorts),
  }
}

/** Each once, by port and address. */
function sortSockets(sockets: readonly SocketAddress[]): readonly SocketAddress[] {
  const byText = new Map(sockets.map(({ ip, port }) => [`${port} ${ip}`, { ip, port }]))
  return [...byText].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, socket]) => socket)
}

/** The valid CIDRs of one family. */
export function cidrsOf(list: readonly string[], family: Family): readonly Cidr[] {
  return list.flatMap((text) => {
    const cidr = parseCidr(text.trim())
    return cidr?.family === family ? [cidr] : []
  })
}

// ---- Kernel settings. ----

/** The size that the connection tracking table should have; undefined if it stays as it is, whatever `min` says. */
export function conntrackMax(settings: { maxPerCore: number; min: number; cpus: number }): number | undefined {
  if (settings.maxPerCore <= 0) return undefined
  const cap = 1_048_576
  const scaled = settings.maxPerCore * settings.cpus
  return scaled > cap ? cap : Math.max(scaled, settings.min)
}
