// The shares of endpoints: what a service says about their weights, and how many slots each gets. Pure.

import type { CapacityWeights, Endpoint, EndpointRecord, ServicePort, SliceRecord } from './types.ts'

/** The steps in which a new endpoint gets its share, if the service wants a slow start. */
export const startSteps = 10

/** A larger weight may not fit the schedulers that use it. Only the ratio of weights matters. */
export const maxWeight = 65_535

/** Weights by endpoint address or node name; `*` is for all others. */
export type WeightRules = Readonly<Record<string, number>>

/** The address goes before the node, and that before `*`, and that before the weight of the slice; undefined if none of them says anything. */
export function findWeight(
  rules: WeightRules | undefined,
  record: EndpointRecord,
  ofSlice: number | undefined,
): number | undefined {
  if (rules === undefined) return ofSlice
  const ofNode = record.node === '' ? undefined : read(rules, record.node)
  return read(rules, record.ip) ?? ofNode ?? read(rules, '*') ?? ofSlice
}

const read = (rules: WeightRules, name: string): number | undefined =>
  Object.hasOwn(rules, name) ? rules[name] : undefined

// ---- Weights by the capacity of nodes. ----
//
// 1. The weight of a node is its allocatable CPU in halves of a CPU, rounded. It follows from the node alone, so a change of one node
//    changes no weight on another, and nodes of one size weigh the same even if a few millicores of them are reserved.
// 2. An endpoint has the weight of its node, however many endpoints of the service are there. So a pod that comes or goes changes no
//    weight of another, which slow starts and consistent hashing rely on.
// 3. An endpoint whose node is not known has the smallest weight among those nodes of the service that are known: it is neither starved
//    nor given more than any other.

const milliCpuPerWeight = 500

export const weighNode = (milliCpu: number): number =>
  Math.min(maxWeight, Math.max(1, Math.round(milliCpu / milliCpuPerWeight)))

/** Undefined if no node of the endpoints is known: then all endpoints have the same weight, as without the rule. */
export function weighByCapacity(
  slices: readonly Pick<SliceRecord, 'endpoints'>[],
  weightOf: (node: string) => number | undefined,
): CapacityWeights | undefined {
  const byNode = new Map<string, number>()
  let others = Number.POSITIVE_INFINITY
  for (const { endpoints } of slices) {
    for (const { node } of endpoints) {
      const weight = node === '' || byNode.has(node) ? undefined : weightOf(node)
      if (weight === undefined) continue
      byNode.set(node, weight)
      others = Math.min(others, weight)
    }
  }
  return byNode.size === 0 ? undefined : { byNode, others }
}

export function findCapacityWeight(
  { byNode, others }: CapacityWeights,
  node: string,
): Required<Pick<Endpoint, 'weight' | 'weightFrom'>> {
  const weight = byNode.get(node)
  return weight === undefined
    ? { weight: others, weightFrom: 'smallest-node' }
    : { weight, weightFrom: 'node-capacity' }
}

// ---- Shares and slots. ----

/** Endpoints of weight 0 get no new connections, unless all have weight 0. */
export function leaveOutWeightless(endpoints: readonly Endpoint[]): readonly Endpoint[] {
  if (!endpoints.some(({ weight }) => weight === 0)) return endpoints
  const left = endpoints.filter(({ weight }) => weight !== 0)
  return left.length > 0 ? left : endpoints
}

/** Where an endpoint of weight 0 is used, all have weight 0, and count the same. */
const weightOf = ({ weight = 1 }: Endpoint): number => weight || 1

/** The share of an endpoint, as a whole number that only means something beside those of the other endpoints. */
export const shareOf = (endpoint: Endpoint, { slowStart }: Pick<ServicePort, 'slowStart'>): number =>
  slowStart === true ? weightOf(endpoint) * (endpoint.startStep ?? startSteps) : weightOf(endpoint)

export const areSharesEqual = (endpoints: readonly Endpoint[], port: Pick<ServicePort, 'slowStart'>): boolean => {
  const first = endpoints[0] === undefined ? 0 : shareOf(endpoints[0], port)
  return endpoints.every((endpoint) => shareOf(endpoint, port) === first)
}

/** A small service may have this many slots, so that one connection in a hundred can be asked for. */
const fewSlots = 128
/** A large service has at most this many slots for each endpoint, and at most `manySlots`, unless it has more endpoints. */
export const slotsPerEndpoint = 16
export const manySlots = 16_384

/**
 * How many slots each endpoint gets: as many as its weight, divided by what all weights have in common, or by a power of two more if there
 * would be too many slots. Then a share is rounded by at most half a slot, and no endpoint gets less than one. The divisor does not depend
 * on the steps of a slow start: so a step changes the slots of the endpoint that starts, and of no other. Undefined: one slot for each.
 */
export function countSlots(
  endpoints: readonly Endpoint[],
  port: Pick<ServicePort, 'slowStart'>,
): readonly number[] | undefined {
  const steps = port.slowStart === true ? startSteps : 1
  if (steps === 1 && areSharesEqual(endpoints, port)) return undefined
  const common = endpoints.reduce((so, endpoint) => divisorOf(so, weightOf(endpoint)), 0)
  const total = endpoints.reduce((sum, endpoint) => sum + (weightOf(endpoint) / common) * steps, 0)
  const limit = Math.max(fewSlots, Math.min(slotsPerEndpoint * endpoints.length, manySlots))
  let divisor = common
  for (let slots = total; slots > limit && slots > endpoints.length; slots /= 2) divisor *= 2
  return endpoints.map((endpoint) => Math.max(1, Math.round(shareOf(endpoint, port) / divisor)))
}

/** The greatest common divisor. */
function divisorOf(a: number, b: number): number {
  let [larger, smaller] = [a, b]
  while (smaller > 0) [larger, smaller] = [smaller, larger % smaller]
  return larger
}
