// Which services must be resolved and planned again when the node's view changes; the base always is.

import { deepEqual } from '../lib/equal.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../model/types.ts'

/** undefined: no service is affected. */
export type ViewImpact = ((service: ServiceRecord, slices: readonly SliceRecord[]) => boolean) | undefined

/**
 * `resolve` and `plan` may read everything of the view but the service CIDRs, which are the base's. What only some services
 * depend on leaves the others alone: at 30,000 services a moved interface address would cost a second otherwise.
 */
export function impactOf(before: NodeView, after: NodeView): ViewImpact {
  const { serviceCidrs: _, zone, nodePorts, externalIps, ...rest } = before
  for (const key in rest) {
    const field = key as keyof NodeView
    if (!deepEqual(before[field], after[field])) return () => true
  }
  const tests: Exclude<ViewImpact, undefined>[] = []
  if (zone !== after.zone) {
    tests.push((_, slices) => slices.some((slice) => slice.endpoints.some((endpoint) => endpoint.zoneHints.length > 0)))
  }
  if (!deepEqual(nodePorts, after.nodePorts)) {
    tests.push((service) => service.healthCheckNodePort !== 0 || service.ports.some((port) => port.nodePort !== 0))
  }
  if (externalIps !== after.externalIps) tests.push((service) => service.externalIps.length > 0)
  return tests.length === 0 ? undefined : (service, slices) => tests.some((test) => test(service, slices))
}
