// Finds the services that must be resolved and planned again when the node's view changes. The base is always planned again.

import { deepEqual } from '../lib/equal.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../model/types.ts'

/** True for services that the change affects; undefined if it affects none. */
export type ViewImpact = ((service: ServiceRecord, slices: readonly SliceRecord[]) => boolean) | undefined

/**
 * `resolve` and `plan` may read every field of the view but the service CIDRs, which only the base reads. A field that only some services
 * depend on leaves the other services alone: at 30,000 services a moved interface address would otherwise cost a second.
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
