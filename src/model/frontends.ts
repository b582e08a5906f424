// Lists the addresses of a service in one family, and which sources may use them. Pure.

import { contains, type Family, familyOf, parseCidr } from '../lib/ip.ts'
import type { Frontend, NodeView, ServicePortRecord, ServiceRecord } from './types.ts'

/** The addresses that all ports of a service share. */
export interface ServiceAddresses {
  readonly clusterIp: string
  readonly externalIps: readonly string[]
  readonly loadBalancerIps: readonly string[]
  /** The source ranges of the load balancer IPs; empty if every source is allowed. */
  readonly allow: readonly string[]
  readonly nodeAllowed: boolean
  /** True if there are addresses besides the cluster IP, even if the AllowServiceExternalIPs gate hides them. */
  readonly exposed: boolean
}

const none: readonly never[] = Object.freeze([])

/** Returns undefined if the service has no cluster IP of the view's family: then the service does not exist in that family. */
export function addressesOf(service: ServiceRecord, node: NodeView): ServiceAddresses | undefined {
  const { family } = node
  const clusterIp = service.clusterIps.find((ip) => familyOf(ip) === family)
  if (clusterIp === undefined) return undefined
  const loadBalancerIps = ownOf(service.loadBalancerIps, family, [clusterIp])
  const externalIps = ownOf(service.externalIps, family, [clusterIp, ...loadBalancerIps])
  const allow = loadBalancerIps.length === 0 ? none : sourceRangesOf(service, family)
  return {
    clusterIp,
    externalIps: node.externalIps ? externalIps : none,
    loadBalancerIps,
    allow,
    nodeAllowed: containsNode(allow, node),
    exposed: loadBalancerIps.length > 0 || externalIps.length > 0,
  }
}

/**
 * The frontends in the order in which they are programmed: cluster IP, external IPs, load balancer IPs, node port. An address that
 * is given twice appears once: as cluster IP if it is one, else as load balancer IP (with its source ranges), else as external IP.
 */
export function frontendsOf(addresses: ServiceAddresses, { port, nodePort }: ServicePortRecord): readonly Frontend[] {
  const frontends: Frontend[] = [{ kind: 'cluster-ip', ip: addresses.clusterIp, port, allow: none }]
  for (const ip of addresses.externalIps) frontends.push({ kind: 'external-ip', ip, port, allow: none })
  for (const ip of addresses.loadBalancerIps) {
    frontends.push({ kind: 'load-balancer', ip, port, allow: addresses.allow })
  }
  if (nodePort !== 0) frontends.push({ kind: 'node-port', ip: '', port: nodePort, allow: none })
  return frontends
}

/**
 * The source ranges of one family, in the given order. Empty if every source is allowed: also if one range allows every source, and,
 * as in upstream, if all ranges are of the other family.
 */
export function sourceRangesOf(service: ServiceRecord, family: Family): readonly string[] {
  const ranges = ownOf(service.sourceRanges, family, none)
  return ranges.some((range) => range.endsWith('/0')) ? none : ranges
}

function containsNode(ranges: readonly string[], node: NodeView): boolean {
  return ranges.some((range) => {
    const cidr = parseCidr(range)
    return cidr !== undefined && contains(cidr, node.ip)
  })
}

/** The texts of this family that `taken` does not have, each once, in the given order. */
function ownOf(all: readonly string[], family: Family, taken: readonly string[]): readonly string[] {
  if (all.length === 0) return none
  const seen = new Set(taken)
  return all.filter((text) => familyOf(text) === family && seen.size < seen.add(text).size)
}
