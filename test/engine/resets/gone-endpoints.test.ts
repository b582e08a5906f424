// Which endpoints count as gone, and when: over random histories and in single cases.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type GoneEndpoint, GoneEndpoints } from '../../../src/engine/resets/gone-endpoints.ts'
import { resolvePorts } from '../../../src/model/resolve.ts'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, type State, service, slice, view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const graceMs = 1_000
const wanting = service({ resetConnections: 'on' })

function makeGone(hasService: (name: string) => boolean = () => true) {
  const clock = new FakeClock()
  const reported: (readonly GoneEndpoint[])[] = []
  const gone = new GoneEndpoints({
    graceMs: ({ resetConnections }) => (resetConnections === 'on' ? graceMs : 0),
    onGone: (endpoints) => reported.push(endpoints),
    hasService,
    clock,
  })
  const resolve = gone.wrap(resolvePorts)
  const plan = (slices: readonly SliceRecord[], record: ServiceRecord = wanting) => [...resolve(record, slices, view())]
  const ips = () => reported.map((endpoints) => endpoints.map(({ ip }) => ip).sort())
  return { clock, gone, plan, ips, reported }
}

const states: readonly State[] = ['ready', 'draining', 'dead', 'unready']

/** The endpoints that must have been reported by now. */
function takeDue(leftAt: Map<string, number>, now: number): readonly string[] {
  const due = [...leftAt].filter(([, at]) => now >= at + graceMs + 50).map(([ip]) => ip)
  for (const ip of due) leftAt.delete(ip)
  return due
}

/** Endpoints that went within 50 ms may be reported by the timer of the first of them; never before their grace is over. */
function takeEarly(reported: readonly GoneEndpoint[], leftAt: Map<string, number>, now: number): readonly string[] {
  for (const { ip } of reported) {
    expect(now - (leftAt.get(ip) ?? Number.NaN)).toBeGreaterThanOrEqual(graceMs)
    leftAt.delete(ip)
  }
  return reported.map(({ ip }) => ip)
}

describe('endpoints', () => {
  it('are gone when they have been in no slice for the grace, and are reported together, once', async () => {
    const { clock, plan, ips, reported } = makeGone()
    plan([slice([endpoint('10.1.0.1'), endpoint('10.1.0.2'), endpoint('10.1.0.3')])])
    plan([slice([endpoint('10.1.0.3')])])
    await clock.advance(graceMs - 1)
    expect(reported).toEqual([])
    await clock.advance(100)
    expect(ips()).toEqual([['10.1.0.1', '10.1.0.2']])
    expect(reported[0]?.[0]).toMatchObject({ service: 'ns1/svc1', family: 4, protocol: 'tcp', port: 80 })
    await clock.advance(60_000)
    expect(reported).toHaveLength(1)
    expect(clock.armed).toBe(0)
  })

  it('that only change their conditions are never gone', async () => {
    const { clock, plan, reported } = makeGone()
    for (const state of states) {
      plan([slice([endpoint('10.1.0.1', 'remote', state)])])
      await clock.advance(60_000)
    }
    expect(reported).toEqual([])
  })

  it('that move to another slice, or come back within the grace, are not gone', async () => {
    const { clock, plan, reported } = makeGone()
    plan([slice([endpoint('10.1.0.1')], { key: 'ns1/a' })])
    plan([])
    await clock.advance(graceMs / 2)
    plan([slice([endpoint('10.1.0.1')], { key: 'ns1/b' })])
    await clock.advance(60_000)
    expect(reported).toEqual([])
  })

  it('of services that do not want it, or that are deleted, are left alone', async () => {
    const other = makeGone()
    other.plan([slice([endpoint('10.1.0.1')])], service())
    other.plan([], service())
    await other.clock.advance(60_000)
    expect([other.reported, other.clock.armed]).toEqual([[], 0])
    const deleted = makeGone(() => false)
    deleted.plan([slice([endpoint('10.1.0.1')])])
    deleted.plan([])
    await deleted.clock.advance(60_000)
    expect(deleted.reported).toEqual([])
  })

  it('do not change what the model decides', () => {
    const { plan } = makeGone()
    const slices = [slice([endpoint('10.1.0.1')])]
    expect(plan(slices)).toEqual([...resolvePorts(wanting, slices, view())])
  })

  it('over random histories: reported exactly if absent for the whole grace', async () => {
    const all = ['10.1.0.1', '10.1.0.2', '10.1.0.3']
    const step = fc.record({
      present: fc.subarray(all),
      state: fc.constantFrom(...states),
      afterMs: fc.integer({ min: 0, max: 1_500 }),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
        const { clock, plan, reported } = makeGone()
        const expected: string[] = []
        const leftAt = new Map<string, number>()
        let before: readonly string[] = []
        for (const { present, state, afterMs } of steps) {
          await clock.advance(afterMs)
          expected.push(...takeDue(leftAt, clock.monotonic()))
          expected.push(...takeEarly(reported.flat().slice(expected.length), leftAt, clock.monotonic()))
          for (const ip of before) if (!present.includes(ip)) leftAt.set(ip, clock.monotonic())
          for (const ip of present) leftAt.delete(ip)
          plan([slice(present.map((ip) => endpoint(ip, 'remote', state)))])
          before = present
        }
        await clock.advance(5_000)
        expected.push(...leftAt.keys())
        expect(
          reported
            .flat()
            .map(({ ip }) => ip)
            .sort(),
        ).toEqual(expected.sort())
      }),
      { numRuns: 100 },
    )
  })
})
