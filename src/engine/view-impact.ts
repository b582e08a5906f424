// Finds the services that must be resolved and planned again when the node's view changes. The base is always planned again.

import { deepEqual } from '../lib/equal.ts'
import { frontendKey, healthCheckKey } from '../model/conflicts.ts'
import { reservedPorts } from '../model/reserved-addresses.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../model/types.ts'

/** True for services that the change affects; undefined if it affects none. */
export type ViewImpact = ((service: ServiceRecord, slices: readonly SliceRecord[]) => boolean) | undefined

/**
 * `resolve` and `plan` may read every field of the view but the service CIDRs, which only the base reads. A field that only some services
 * depend on leaves the other services alone: at 30,000 services a moved interface address would otherwise cost a second.
 */
export function impactOf(before: NodeView, after: NodeView): ViewImpact {
  const { serviceCidrs: _, apiServers, reserved, zone, nodePorts, externalIps, ...rest } = before
  for (const key in rest) {
    const field = key as keyof NodeView
    if (!deepEqual(before[field], after[field])) return () => true
  }
  const tests: Exclude<ViewImpact, undefined>[] = []
  if (zone !== after.zone) {
    tests.push((_, slices) =>
      slices.some((slice) => [...slice.endpoints].some((endpoint) => endpoint.zoneHints.length > 0)),
    )
  }
  if (!deepEqual(nodePorts, after.nodePorts)) {
    tests.push((service) => service.healthCheckNodePort !== 0 || service.ports.some((port) => port.nodePort !== 0))
  }
  if (externalIps !== after.externalIps) tests.push((service) => service.externalIps.length > 0)
  if (!deepEqual(reserved, after.reserved)) tests.push(claimsReserved(before, after))
  if (!deepEqual(apiServers, after.apiServers)) tests.push(claimsApiServer(before, after))
  return tests.length === 0 ? undefined : (service, slices) => tests.some((test) => test(service, slices))
}

/** True for services with an address that is or was reserved. */
function claimsReserved(before: NodeView, after: NodeView): Exclude<ViewImpact, undefined> {
  const reserved = { ...before.reserved, ...after.reserved }
  const ports = reservedPorts(reserved)
  const has = (key: string) => reserved[key] !== undefined
  return (service) =>
    has(healthCheckKey(service.healthCheckNodePort)) ||
    service.ports.some(
      ({ port, nodePort, protocol }) =>
        has(frontendKey({ ip: '', port: nodePort }, protocol)) ||
        (ports.has(port) && addressesOf(service).some((ip) => has(frontendKey({ ip, port }, protocol)))),
    )
}

/** True for services with an address of an API server on any port: a mode may treat the address itself differently. */
function claimsApiServer(before: NodeView, after: NodeView): Exclude<ViewImpact, undefined> {
  const servers = new Set([...before.apiServers, ...after.apiServers].map(({ ip }) => ip))
  return (service) => addressesOf(service).some((ip) => servers.has(ip))
}

const addressesOf = ({ clusterIps, externalIps, loadBalancerIps }: ServiceRecord): readonly string[] => [
  ...clusterIps,
  ...externalIps,
  ...loadBalancerIps,
]
