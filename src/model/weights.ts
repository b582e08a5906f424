// The shares of endpoints: what a service says about their weights, and how many slots each gets. Pure.

import type { Endpoint, EndpointRecord, ServicePort } from './types.ts'

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
