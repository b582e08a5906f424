// When endpoints are probed, over random histories, with a clock that the test passes in.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { DueQueue } from '../../../src/engine/probes/due-queue.ts'
import { ProbeSchedule } from '../../../src/engine/probes/probe-schedule.ts'

/** A generator of pseudo-random numbers, so that a failure can be repeated. */
const makeRandom = (seed: number) => () => {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
  return seed / 2 ** 32
}

interface Run {
  readonly targets: number
  readonly intervalMs: number
  readonly perSecond: number
  readonly atOnce: number
  /** How long a probe takes. */
  readonly lastsMs: number
  readonly endMs: number
}

/** Plays a schedule in steps of 10 ms. Returns the times of the starts of each target, and the most that ran at once. */
function play({ targets, intervalMs, perSecond, atOnce, lastsMs, endMs }: Run) {
  const schedule = new ProbeSchedule({ perSecond, atOnce, random: makeRandom(7) })
  const starts = new Map<string, number[]>()
  for (let i = 0; i < targets; i++) schedule.add(`t${i}`, intervalMs, 0)
  let running: { id: string; until: number }[] = []
  let most = 0
  for (let now = 0; now < endMs; now += 10) {
    for (const { id, until } of running) if (until <= now) schedule.end(id, now)
    running = running.filter(({ until }) => until > now)
    for (const id of schedule.start(now)) {
      starts.set(id, [...(starts.get(id) ?? []), now])
      running.push({ id, until: now + lastsMs })
    }
    most = Math.max(most, running.length)
  }
  return { starts, most, delayed: schedule.delayed }
}

describe('the schedule', () => {
  it('probes every target once per interval, spread over it', () => {
    const { starts, delayed } = play({
      ...{ targets: 100, intervalMs: 10_000, perSecond: 50, atOnce: 32, lastsMs: 20, endMs: 100_000 },
    })
    expect(starts.size).toBe(100)
    for (const times of starts.values()) {
      expect(times.length).toBeGreaterThanOrEqual(8)
      expect(times.length).toBeLessThanOrEqual(11)
    }
    const firsts = [...starts.values()].map(([first = 0]) => first)
    for (let second = 0; second < 10; second++) {
      const inSecond = firsts.filter((at) => at >= second * 1000 && at < (second + 1) * 1000)
      expect(inSecond.length).toBeGreaterThan(1)
      expect(inSecond.length).toBeLessThan(25)
    }
    expect(delayed).toBe(0)
  })

  it('with too much to do, probes late and in turn, never more than the rate, and counts what is late', () => {
    const { starts, delayed } = play({
      ...{ targets: 1_000, intervalMs: 1_000, perSecond: 50, atOnce: 32, lastsMs: 20, endMs: 60_000 },
    })
    const all = [...starts.values()].flat()
    expect(all.length).toBeGreaterThan(50 * 55)
    expect(all.length).toBeLessThanOrEqual(50 * 60 + 6)
    expect(starts.size).toBe(1_000)
    const counts = [...starts.values()].map((times) => times.length)
    expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(2)
    expect(delayed).toBeGreaterThan(1_000)
  })

  it('never exceeds its rate and the number at once, whatever is given', () => {
    const given = fc.record({
      targets: fc.integer({ min: 1, max: 80 }),
      intervalMs: fc.integer({ min: 100, max: 5_000 }),
      perSecond: fc.integer({ min: 1, max: 100 }),
      atOnce: fc.integer({ min: 1, max: 20 }),
      lastsMs: fc.integer({ min: 0, max: 3_000 }),
      endMs: fc.constant(10_000),
    })
    fc.assert(
      fc.property(given, (run) => {
        const { starts, most } = play(run)
        const times = [...starts.values()].flat().sort((a, b) => a - b)
        expect(most).toBeLessThanOrEqual(run.atOnce)
        const burst = Math.max(1, run.perSecond / 10) + 1
        for (const [i, at] of times.entries()) {
          const withinSecond = times.slice(i).filter((other) => other - at < 1_000)
          expect(withinSecond.length).toBeLessThanOrEqual(run.perSecond + burst)
        }
        for (const own of starts.values()) {
          for (const [i, at] of own.entries()) {
            if (i > 0)
              expect(at - (own[i - 1] as number)).toBeGreaterThanOrEqual(
                Math.min(run.intervalMs * 0.9, run.lastsMs) - 10,
              )
          }
        }
      }),
      { numRuns: 60 },
    )
  })

  it('waits for the next probe that is due, and for the end of one if all places are taken', () => {
    const schedule = new ProbeSchedule({ perSecond: 100, atOnce: 1, random: () => 0.5 })
    expect(schedule.waitMs(0)).toBeUndefined()
    schedule.add('a', 1_000, 0)
    schedule.add('b', 1_000, 0)
    expect(schedule.waitMs(0)).toBe(500)
    expect(schedule.start(500)).toEqual(['a'])
    expect(schedule.waitMs(500)).toBeUndefined()
    schedule.end('a', 600)
    expect(schedule.start(600)).toEqual(['b'])
  })

  it('a target that is dropped while its probe runs is not probed again', () => {
    const schedule = new ProbeSchedule({ perSecond: 100, atOnce: 4, random: () => 0 })
    schedule.add('a', 1_000, 0)
    expect(schedule.start(0)).toEqual(['a'])
    schedule.drop('a')
    schedule.end('a', 10)
    expect([schedule.start(5_000), schedule.size]).toEqual([[], 0])
  })
})

it('the queue returns ids in the order of their times', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(1_000)), (times) => {
      const queue = new DueQueue()
      for (const [i, at] of times.entries()) queue.add(`${i}`, at)
      const found: number[] = []
      for (let first = queue.first; first !== undefined; first = queue.first) {
        found.push(first.at)
        queue.removeFirst()
      }
      expect(found).toEqual([...times].sort((a, b) => a - b))
    }),
  )
})
