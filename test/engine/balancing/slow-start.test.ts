// Which endpoints are new and how much of their share they get, over random histories.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { SlowStart } from '../../../src/engine/balancing/slow-start.ts'
import { startSteps } from '../../../src/model/weights.ts'

const minute = 60_000
const set = (...names: string[]) => new Set(names)

describe('a slow start', () => {
  it('lets a new endpoint reach its share in ten steps, and then forgets it', () => {
    const slow = new SlowStart()
    slow.note('4 ns/a', set('a', 'b'), minute, 0)
    const steps: (number | undefined)[] = []
    for (let at = 1_000; at <= minute + 7_000; at += 6_000) {
      steps.push(slow.note('4 ns/a', set('a', 'b', 'c'), minute, at).get('c'))
    }
    expect(steps).toEqual([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, undefined, undefined])
    expect(slow.nextStepAt()).toBeUndefined()
  })

  it('does not concern what is there at the first plan', () => {
    const slow = new SlowStart()
    expect(slow.note('4 ns/a', set('a', 'b'), minute, 500).size).toBe(0)
    expect(slow.nextStepAt()).toBeUndefined()
  })

  it('does not concern a service whose endpoints are all new', () => {
    const slow = new SlowStart()
    slow.note('4 ns/a', set(), minute, 0)
    expect(slow.note('4 ns/a', set('a', 'b'), minute, 10).size).toBe(0)
    expect(slow.note('4 ns/a', set('c', 'd'), minute, 20).size).toBe(0)
    expect([...slow.note('4 ns/a', set('c', 'd', 'e'), minute, 30)]).toEqual([['e', 1]])
  })

  it('begins again for an endpoint that was away', () => {
    const slow = new SlowStart()
    slow.note('4 ns/a', set('a', 'b'), minute, 0)
    slow.note('4 ns/a', set('a'), minute, 10)
    expect([...slow.note('4 ns/a', set('a', 'b'), minute, 20)]).toEqual([['b', 1]])
  })

  it('ends at once when the service is dropped or has another time', () => {
    const slow = new SlowStart()
    slow.note('4 ns/a', set('a'), minute, 0)
    slow.note('4 ns/a', set('a', 'b'), minute, 0)
    expect(slow.note('4 ns/a', set('a', 'b'), 2 * minute, 0).size).toBe(0)
    slow.note('4 ns/a', set('a', 'b', 'c'), 2 * minute, 0)
    slow.drop('4 ns/a')
    expect([slow.nextStepAt(), slow.size]).toEqual([undefined, 0])
  })

  it('makes the steps of a service at the same moments, however many endpoints start', () => {
    const slow = new SlowStart()
    slow.note('4 ns/a', set('a'), minute, 0)
    slow.note('4 ns/a', set('a', 'b'), minute, 1_000)
    slow.note('4 ns/a', set('a', 'b', 'c'), minute, 5_000)
    expect(slow.nextStepAt()).toBe(6_000)
    expect(slow.takeDue(5_999)).toEqual([])
    expect(slow.takeDue(6_000)).toEqual(['4 ns/a'])
    expect(slow.takeDue(6_000)).toEqual([])
  })

  it('never shrinks a share, never starts all endpoints, and has no step left when nothing starts', () => {
    const endpoint = fc.constantFrom('a', 'b', 'c', 'd', 'e')
    const event = fc.record({ ready: fc.uniqueArray(endpoint), pause: fc.nat(20_000) })
    fc.assert(
      fc.property(fc.array(event, { maxLength: 40 }), (events) => {
        const slow = new SlowStart()
        let now = 0
        let before: ReadonlyMap<string, number> = new Map()
        let known: ReadonlySet<string> = new Set()
        for (const { ready, pause } of events) {
          now += pause
          const wanted = new Set<string>(ready)
          const steps = slow.note('4 ns/a', wanted, minute, now)
          for (const [name, step] of steps) {
            expect(wanted.has(name)).toBe(true)
            expect(step).toBeGreaterThanOrEqual(1)
            expect(step).toBeLessThan(startSteps)
            if (known.has(name)) expect(step).toBeGreaterThanOrEqual(before.get(name) ?? startSteps)
          }
          expect(slow.nextStepAt() === undefined).toBe(steps.size === 0)
          before = steps
          known = wanted
        }
        expect(slow.note('4 ns/a', known, minute, now + 2 * minute).size).toBe(0)
      }),
    )
  })
})
