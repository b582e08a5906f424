// How many slots endpoints get by their weights, and which endpoints have none.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Endpoint } from '../../src/model/types.ts'
import {
  countSlots,
  findWeight,
  leaveOutWeightless,
  manySlots,
  slotsPerEndpoint,
  startSteps,
} from '../../src/model/weights.ts'
import { endpoint as record } from '../support/builders.ts'

const endpoint = (weight?: number, startStep?: number): Endpoint => ({
  ...{ ip: '10.0.0.1', port: 80, local: false },
  ...(weight === undefined ? {} : { weight }),
  ...(startStep === undefined ? {} : { startStep }),
})

const slots = (weights: readonly number[]) =>
  countSlots(
    weights.map((weight) => endpoint(weight)),
    {},
  )
const someWeights = fc.array(fc.integer({ min: 1, max: 65_535 }), { minLength: 1, maxLength: 300 })
const sum = (numbers: readonly number[]) => numbers.reduce((total, one) => total + one, 0)

describe('slots by weight', () => {
  it('are one for each where all weights are equal', () => {
    expect(slots([1, 1, 1])).toBeUndefined()
    expect(slots([7, 7])).toBeUndefined()
    expect(slots([])).toBeUndefined()
  })

  it('are exact as long as there are few', () => {
    expect(slots([3, 1])).toEqual([3, 1])
    expect(slots([200, 100, 100])).toEqual([2, 1, 1])
    expect(slots([99, 1])).toEqual([99, 1])
    expect(slots([127, 1])).toEqual([127, 1])
  })

  it('are at most 16 for each endpoint on average, or 128 in all, and one besides', () => {
    fc.assert(
      fc.property(someWeights, (weights) => {
        const total = sum(slots(weights) ?? [])
        const most = Math.max(128, Math.min(slotsPerEndpoint * weights.length, manySlots))
        expect(total).toBeLessThanOrEqual(most + weights.length)
      }),
    )
  })

  it('deviate from the weights by half a slot at most, unless the weight is too small for one', () => {
    fc.assert(
      fc.property(someWeights, (weights) => {
        const counts = slots(weights)
        if (counts === undefined) return
        const largest = weights.indexOf(Math.max(...weights))
        const unit = (weights[largest] as number) / (counts[largest] as number)
        for (const [i, count] of counts.entries()) {
          expect(count).toBeGreaterThanOrEqual(1)
          // The unit itself is known to half a slot of the largest weight.
          const slack = 0.5 + (0.5 * (weights[i] as number)) / (weights[largest] as number)
          if (count > 1) expect(Math.abs(count - (weights[i] as number) / unit)).toBeLessThanOrEqual(slack * 1.01)
        }
      }),
    )
  })

  it('change for one endpoint when it makes a step of its start', () => {
    fc.assert(
      fc.property(someWeights, fc.nat(), fc.integer({ min: 1, max: startSteps - 1 }), (weights, at, step) => {
        const chosen = at % weights.length
        const counts = (startStep: number) =>
          countSlots(
            weights.map((weight, i) => endpoint(weight, i === chosen ? startStep : undefined)),
            { slowStart: true },
          ) ?? []
        const [before, after] = [counts(step), counts(step + 1)]
        expect(after.toSpliced(chosen, 1)).toEqual(before.toSpliced(chosen, 1))
        expect(after[chosen]).toBeGreaterThanOrEqual(before[chosen] as number)
      }),
    )
  })

  it('are a step for each tenth where all weights are equal', () => {
    expect(countSlots([endpoint(), endpoint(1, 3)], { slowStart: true })).toEqual([10, 3])
    expect(countSlots([endpoint(5), endpoint(5)], { slowStart: true })).toEqual([10, 10])
  })
})

describe('weight 0', () => {
  it('takes an endpoint out, unless all have it', () => {
    const [a, b] = [endpoint(0), endpoint(2)]
    expect(leaveOutWeightless([a, b])).toEqual([b])
    expect(leaveOutWeightless([a, a])).toEqual([a, a])
    expect(slots([0, 0])).toBeUndefined()
    expect(countSlots([endpoint(0), endpoint(0)], { slowStart: true })).toEqual([10, 10])
  })
})

describe('the weight of an endpoint', () => {
  it('comes from its address, else from its node, else from *, else from its slice', () => {
    const rules = { '10.0.0.1': 4, 'node-a': 3, '*': 2 }
    expect(findWeight(rules, record('10.0.0.1', 'node-a'), 9)).toBe(4)
    expect(findWeight(rules, record('10.0.0.2', 'node-a'), 9)).toBe(3)
    expect(findWeight(rules, record('10.0.0.2', 'node-b'), 9)).toBe(2)
    expect(findWeight({ 'node-a': 3 }, record('10.0.0.2', ''), 9)).toBe(9)
    expect(findWeight({ 'node-a': 3 }, record('10.0.0.2', 'toString'), undefined)).toBeUndefined()
    expect(findWeight(undefined, record('10.0.0.2'), 9)).toBe(9)
  })
})
