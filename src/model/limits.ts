// The size of a service before anything is multiplied, and the limits on it: one object must not cost more than the node can bear. Pure.

import { type Family, familyOf } from '../lib/ip.ts'
import { hashTableSize } from './consistent-hash.ts'
import type { ServiceRecord, SliceRecord } from './types.ts'
import { manySlots, slotsPerEndpoint } from './weights.ts'

/** The most that one service may have. The fields are those of `limits` in SluiceConfiguration. */
export interface ServiceLimits {
  readonly portsPerService: number
  readonly addressesPerService: number
  readonly frontendsPerService: number
  readonly sourceRangesPerService: number
  readonly endpointsPerService: number
  readonly slicesPerService: number
  readonly entriesPerService: number
}

/** What a service has in one family, by the limit that applies to it. Products are upper bounds: no list is walked to find duplicates. */
export type ServiceSize = ServiceLimits

export interface ExceededLimit {
  readonly limit: keyof ServiceLimits
  readonly count: number
  readonly allowed: number
}

/** With affinity every endpoint has a chain, rules and a set of clients, which cost as much as ten plain entries. */
const affinityEntries = 10

/** `slices` are those of the service in this family. */
export function measureService(service: ServiceRecord, slices: readonly SliceRecord[], family: Family): ServiceSize {
  const ports = service.ports.length
  const loadBalancerIps = countOf(service.loadBalancerIps, family)
  const addresses = loadBalancerIps + countOf(service.externalIps, family)
  const ranges = loadBalancerIps === 0 ? 0 : service.sourceRanges.length
  const endpoints = countEndpoints(slices)
  return {
    portsPerService: ports,
    addressesPerService: addresses,
    // Besides these addresses a port has the cluster IP and perhaps a node port.
    frontendsPerService: ports * (addresses + 2),
    sourceRangesPerService: ranges * Math.max(1, loadBalancerIps * ports),
    endpointsPerService: endpoints,
    slicesPerService: slices.length,
    entriesPerService: (ports + countEntries(service, slices, endpoints)) * (addresses + 2),
  }
}

/** The entries of all endpoints for one address. With weights, a slow start or consistent hashing an endpoint has several slots. */
function countEntries(service: ServiceRecord, slices: readonly SliceRecord[], endpoints: number): number {
  const ports = Math.max(1, service.ports.length)
  if (service.affinitySeconds > 0) return endpoints * affinityEntries
  if (service.algorithm === 'consistent-hash') return ports * hashTableSize(Math.ceil(endpoints / ports))
  const { weights, nodeCapacity, slowStartMs = 0 } = service
  const hasWeights = weights !== undefined || nodeCapacity === true || slowStartMs > 0 || slices.some(isWeighted)
  return hasWeights ? Math.min(slotsPerEndpoint * endpoints, Math.max(endpoints, manySlots * ports)) : endpoints
}

const isWeighted = ({ weight = 1 }: SliceRecord): boolean => weight !== 1

/** The first limit that a service exceeds, in the order of the configuration; undefined if it exceeds none. */
export function findExceeded(size: ServiceSize, limits: ServiceLimits): ExceededLimit | undefined {
  for (const limit of limitNames) {
    if (size[limit] > limits[limit]) return { limit, count: size[limit], allowed: limits[limit] }
  }
  return undefined
}

/** Completes the sentence "the service has …, the limit is …". */
export function describeExceeded({ limit, count, allowed }: ExceededLimit): string {
  return `${count} ${countedThings[limit]}, more than limits.${limit} allows (${allowed}); raise the limit in SluiceConfiguration, or split the service`
}

const countedThings: Readonly<Record<keyof ServiceLimits, string>> = {
  portsPerService: 'ports (spec.ports)',
  addressesPerService: 'external and load-balancer IPs (spec.externalIPs, status.loadBalancer.ingress)',
  frontendsPerService: 'frontends (spec.ports multiplied by the addresses)',
  sourceRangesPerService: 'source ranges (spec.loadBalancerSourceRanges multiplied by load-balancer IPs and ports)',
  slicesPerService: 'EndpointSlices',
  endpointsPerService: 'endpoints (endpoints of its EndpointSlices multiplied by their ports)',
  entriesPerService:
    'entries (endpoints, with affinity ten times, with weights up to 16 times, multiplied by the addresses)',
}

const limitNames = Object.keys(countedThings) as readonly (keyof ServiceLimits)[]

function countOf(addresses: readonly string[], family: Family): number {
  let count = 0
  for (const ip of addresses) if (familyOf(ip) === family) count++
  return count
}

/** Counts each endpoint once per port of its slice. */
export function countEndpoints(slices: readonly SliceRecord[]): number {
  let count = 0
  for (const { ports, endpoints } of slices) count += ports.length * endpoints.length
  return count
}
