// Checks for any requests and any costs of runs that a pacer limits the load, forgets no request, and lets no request wait too long.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Pacer } from '../../src/engine/pacer.ts'
import { FakeClock } from '../support/fake-clock.ts'

const minMs = 1_000
const wholeRunMs = 50
const quickRuns = 2

interface Run {
  readonly start: number
  readonly end: number
}

/** How often requests come and how long runs take, both in phases: quiet times, single changes and bursts. */
const phases = fc.array(
  fc.record({
    everyMs: fc.constantFrom(1, 3, 20, 150, 1_000, 7_000),
    requests: fc.integer({ min: 1, max: 60 }),
    takesMs: fc.constantFrom(0, 1, 2, 8, 30, 50, 400),
  }),
  { minLength: 1, maxLength: 8 },
)

async function play(given: readonly { everyMs: number; requests: number; takesMs: number }[]) {
  const clock = new FakeClock()
  const runs: Run[] = []
  const requests: number[] = []
  let takesMs = 0
  const pacer = new Pacer({
    minMs,
    wholeRunMs,
    quickRuns,
    retryMs: 30_000,
    maxMs: 3_600_000,
    clock,
    run: async () => {
      const start = clock.monotonic()
      if (takesMs > 0) await new Promise<void>((resolve) => clock.after(takesMs, resolve))
      runs.push({ start, end: clock.monotonic() })
      return 'ok'
    },
  })
  pacer.start()
  for (const phase of given) {
    takesMs = phase.takesMs
    for (let i = 0; i < phase.requests; i++) {
      requests.push(clock.monotonic())
      pacer.requestRun()
      await clock.advance(phase.everyMs)
    }
  }
  await clock.advance(10_000)
  await pacer.stop()
  return { runs, requests }
}

const shareOf = ({ start, end }: Run): number => Math.min(1, (end - start) / wholeRunMs)

describe('a pacer, for any requests and any costs of runs', () => {
  it('lets runs cost no more in any time than one long run per minimum distance, and the quick ones', async () => {
    await fc.assert(
      fc.asyncProperty(phases, async (given) => {
        const { runs } = await play(given)
        let worst = 0
        for (const [i, first] of runs.entries()) {
          let cost = 0
          for (const [j, next] of runs.slice(i + 1).entries()) {
            cost += shareOf(runs[i + j] as Run)
            worst = Math.max(worst, cost - (next.start - first.end) / minMs)
          }
        }
        expect(worst).toBeLessThanOrEqual(quickRuns + 1e-6)
      }),
      { numRuns: 60 },
    )
  })

  it('runs after every request, within the minimum distance of the run before', async () => {
    await fc.assert(
      fc.asyncProperty(phases, async (given) => {
        const { runs, requests } = await play(given)
        for (const at of requests) {
          const next = runs.findIndex(({ start }) => start >= at)
          expect(next).toBeGreaterThanOrEqual(0)
          const before = runs[next - 1]?.end ?? Number.NEGATIVE_INFINITY
          expect((runs[next] as Run).start).toBeLessThanOrEqual(Math.max(at, before + minMs))
        }
      }),
      { numRuns: 60 },
    )
  })

  it('runs at once after a quiet time, and joins what comes within moments of a run', async () => {
    await fc.assert(
      fc.asyncProperty(phases, fc.integer({ min: 0, max: 9 }), async (given, gapMs) => {
        const { runs, requests } = await play([
          ...given,
          { everyMs: 10_000, requests: 1, takesMs: 1 },
          { everyMs: gapMs, requests: 5, takesMs: 1 },
        ])
        expect(runs.map(({ start }) => start)).toContain(requests.at(-5))
        const distances = runs.slice(1).map(({ start }, i) => start - (runs[i] as Run).end)
        expect(Math.min(...distances)).toBeGreaterThanOrEqual(10)
      }),
      { numRuns: 40 },
    )
  })
})
