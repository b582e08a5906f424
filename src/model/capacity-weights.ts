// The weights of endpoints by the capacity of their nodes. Pure.
//
// 1. The weight of a node is its allocatable CPU in halves of a CPU, rounded. It follows from the node alone, so a change of one node
//    changes no weight on another, and nodes of one size weigh the same even if a few millicores of them are reserved.
// 2. An endpoint has the weight of its node, however many endpoints of the service are there. So a pod that comes or goes changes no
//    weight of another, which slow starts and consistent hashing rely on.
// 3. An endpoint whose node is not known has the smallest weight among those nodes of the service that are known: it is neither starved
//    nor given more than any other.

import type { CapacityWeights, Endpoint, SliceRecord } from './types.ts'
import { maxWeight } from './weights.ts'

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
