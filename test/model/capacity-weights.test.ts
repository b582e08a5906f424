// Weights by node capacity: the rule for nodes, what endpoints get by it, and what goes before it.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  countSlots,
  findCapacityWeight,
  manySlots,
  maxWeight,
  slotsPerEndpoint,
  weighByCapacity,
  weighNode,
} from '../../src/model/weights.ts'
import { endpoint, service, slice, view } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

const weights = (nodes: Readonly<Record<string, number>>) => (node: string) =>
  Object.hasOwn(nodes, node) ? nodes[node] : undefined

const node = fc.constantFrom('a', 'b', 'c', 'd', 'e', '')
const known = fc.dictionary(fc.constantFrom('a', 'b', 'c', 'd'), fc.integer({ min: 1, max: 300 }))
const sliceOn = (nodes: readonly string[]) => slice(nodes.map((name, i) => endpoint(`10.0.0.${i + 1}`, name)))

describe('the weight of a node', () => {
  it.each([
    [4_000, 8],
    [3_920, 8],
    [1_930, 4],
    [940, 2],
    [1_500, 3],
    [31_850, 64],
    [500, 1],
    [100, 1],
    [0, 1],
    [Number.MAX_SAFE_INTEGER, maxWeight],
  ])('with %i millicores is %i', (milliCpu, weight) => {
    expect(weighNode(milliCpu)).toBe(weight)
  })

  it('is in proportion to the CPU, up to a quarter of a CPU, and never falls when the CPU rises', () => {
    fc.assert(
      fc.property(fc.integer({ min: 250, max: 30_000_000 }), fc.nat({ max: 1_000_000 }), (milliCpu, more) => {
        expect(Math.abs(weighNode(milliCpu) * 500 - milliCpu)).toBeLessThanOrEqual(250)
        expect(weighNode(milliCpu + more)).toBeGreaterThanOrEqual(weighNode(milliCpu))
      }),
    )
  })
})

describe('the weight of an endpoint by capacity', () => {
  it('is that of its node, however many endpoints are there', () => {
    const found = weighByCapacity([sliceOn(['big', 'big', 'big', 'small'])], weights({ big: 12, small: 4, unused: 1 }))
    expect(found && findCapacityWeight(found, 'big')).toEqual({ weight: 12, weightFrom: 'node-capacity' })
    expect(found && findCapacityWeight(found, 'small')).toEqual({ weight: 4, weightFrom: 'node-capacity' })
  })

  it('is that of the smallest node of the service if its own node is not known', () => {
    const found = weighByCapacity([sliceOn(['big', 'lost', '', 'small'])], weights({ big: 12, small: 4, unused: 1 }))
    for (const name of ['lost', '']) {
      expect(found && findCapacityWeight(found, name)).toEqual({ weight: 4, weightFrom: 'smallest-node' })
    }
  })

  it('does not exist if no node is known, so that all endpoints are equal', () => {
    expect(weighByCapacity([sliceOn(['lost', ''])], weights({ big: 12 }))).toBeUndefined()
    expect(weighByCapacity([], weights({ big: 12 }))).toBeUndefined()
  })

  it('does not depend on other endpoints where the node is known, nor on the order of slices', () => {
    fc.assert(
      fc.property(fc.array(node), fc.array(node), known, (first, second, nodes) => {
        const slices = [sliceOn(first), sliceOn(second)]
        const all = weighByCapacity(slices, weights(nodes))
        expect(weighByCapacity(slices.toReversed(), weights(nodes))?.others).toBe(all?.others)
        const values = [...first, ...second].flatMap((name) => weights(nodes)(name) ?? [])
        expect(all?.others).toBe(values.length === 0 ? undefined : Math.min(...values))
        for (const name of first) {
          const own = weights(nodes)(name)
          if (own !== undefined) expect(all && findCapacityWeight(all, name).weight).toBe(own)
        }
      }),
    )
  })

  it('needs no more slots than other weights do', () => {
    const cpus = fc.array(fc.integer({ min: 0, max: 1_000_000 }), { minLength: 1, maxLength: 40 })
    fc.assert(
      fc.property(cpus, (list) => {
        const endpoints = list.map((milliCpu, i) => ({
          ip: `10.0.0.${i + 1}`,
          port: 80,
          local: false,
          weight: weighNode(milliCpu),
        }))
        const slots = countSlots(endpoints, {}) ?? []
        const limit = Math.max(128, Math.min(slotsPerEndpoint * list.length, manySlots))
        // Rounding adds at most half a slot to each, and each has at least one.
        expect(slots.reduce((sum, one) => sum + one, 0)).toBeLessThanOrEqual(limit + list.length)
      }),
    )
  })
})

describe('a resolved service', () => {
  const capacityWeights = {
    byNode: new Map([
      ['big', 12],
      ['small', 4],
    ]),
    others: 4,
  }
  const endpoints = [endpoint('10.0.0.1', 'big'), endpoint('10.0.0.2', 'small'), endpoint('10.0.0.3', 'lost')]
  const weightsOf = (given: Parameters<typeof service>[0], ofSlice?: number) => {
    const slices = [slice(endpoints, ofSlice === undefined ? {} : { weight: ofSlice })]
    return resolve(service({ capacityWeights, ...given }), slices, view()).flatMap(({ cluster }) =>
      cluster.map(({ weight = 1, weightFrom = '-' }) => `${weight} ${weightFrom}`),
    )
  }

  it('has the weights of its nodes', () => {
    expect(weightsOf({})).toEqual(['12 node-capacity', '4 node-capacity', '4 smallest-node'])
  })

  it('has explicit weights before them: by address, node and *, and of the slice', () => {
    expect(weightsOf({ weights: { '10.0.0.1': 7 } })).toEqual(['7 -', '4 node-capacity', '4 smallest-node'])
    expect(weightsOf({ weights: { small: 1, lost: 0 } })).toEqual(['12 node-capacity', '1 -'])
    expect(weightsOf({ weights: { '*': 3 } })).toEqual(['3 -', '3 -', '3 -'])
    expect(weightsOf({}, 5)).toEqual(['5 -', '5 -', '5 -'])
  })
})
