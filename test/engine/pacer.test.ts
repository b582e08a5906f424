// Checks when a pacer runs: on request, urgently, after failures, and after the maximum interval.

import { describe, expect, it } from 'vitest'
import { Pacer, type PacerOptions, type RunResult } from '../../src/engine/pacer.ts'
import { FakeClock } from '../support/fake-clock.ts'

function setUp({
  minMs = 1000,
  retryMs = 5000,
  maxMs = 60_000,
  takesMs = 0,
  quickRuns = 0,
  wholeRunMs = 0,
  ...rest
}: Partial<PacerOptions> & { takesMs?: number } = {}) {
  const clock = new FakeClock()
  const runs: number[] = []
  let result: RunResult = 'ok'
  let running = 0
  const pacer = new Pacer({
    minMs,
    quickRuns,
    wholeRunMs,
    retryMs,
    maxMs,
    clock,
    ...rest,
    run: async () => {
      if (++running > 1) throw new Error('two runs at once')
      runs.push(clock.monotonic())
      if (takesMs > 0) await new Promise<void>((resolve) => clock.after(takesMs, resolve))
      running--
      return result
    },
  })
  pacer.start()
  return { clock, runs, pacer, end: (value: RunResult) => (result = value) }
}

describe('Pacer', () => {
  it('runs again at once while a run is unfinished, and then keeps the minimum distance', async () => {
    const { clock, runs, pacer, end } = setUp({ takesMs: 10 })
    end('unfinished')
    pacer.requestRun()
    await clock.advance(15)
    end('ok')
    pacer.requestRun()
    await clock.advance(500)
    expect(runs).toEqual([0, 10])
    await clock.advance(1000)
    expect(runs).toEqual([0, 10, 1020])
  })

  it('G1: runs at once on the first request, and once for all later ones after the minimum distance', async () => {
    const { clock, runs, pacer } = setUp()
    await clock.advance(10_000)
    pacer.requestRun()
    await clock.advance(500)
    expect(runs).toEqual([10_000])
    pacer.requestRun()
    await clock.advance(499)
    pacer.requestRun()
    expect(runs).toEqual([10_000])
    await clock.advance(5000)
    expect(runs).toEqual([10_000, 11_000])
    pacer.requestRun()
    await clock.advance(0)
    expect(runs).toEqual([10_000, 11_000, 15_999])
  })

  it('runs some times quickly after a quiet time, and then keeps the minimum distance until they are paid back', async () => {
    const { clock, runs, pacer } = setUp({ quickRuns: 2 })
    await clock.advance(10_000)
    const request = async (ms: number) => {
      pacer.requestRun()
      await clock.advance(ms)
    }
    for (let i = 0; i < 5; i++) await request(100)
    expect(runs).toEqual([10_000, 10_100, 10_200])
    await clock.advance(2_000)
    expect(runs.splice(0)).toEqual([10_000, 10_100, 10_200, 11_000])
    // The quick runs are not paid back yet.
    await request(5)
    await request(2_000)
    expect(runs.splice(0)).toEqual([12_500, 13_000])
    await clock.advance(10_000)
    for (let i = 0; i < 3; i++) await request(20)
    expect(runs).toEqual([24_505, 24_525, 24_545])
  })

  it('runs no more often than the minimum distance allows in the long run', async () => {
    const { clock, runs, pacer } = setUp({ quickRuns: 2, takesMs: 3 })
    for (let i = 0; i < 6_000; i++) {
      pacer.requestRun()
      await clock.advance(10)
    }
    expect(runs.length).toBeLessThanOrEqual(60 + 2 + 1)
    expect(runs.length).toBeGreaterThan(55)
  })

  it('joins requests that come within a moment of a quick run', async () => {
    const { clock, runs, pacer } = setUp({ quickRuns: 2 })
    for (let i = 0; i < 4; i++) {
      pacer.requestRun()
      await clock.advance(2)
    }
    expect(runs).toEqual([0])
    await clock.advance(2)
    expect(runs).toEqual([0, 10])
  })

  it('runs in moments while runs are cheap: several changes per second, each of two objects', async () => {
    const { clock, runs, pacer } = setUp({ quickRuns: 2, wholeRunMs: 50, takesMs: 2 })
    const requests: number[] = []
    for (let i = 0; i < 100; i++) {
      for (const wait of [3, 97]) {
        requests.push(clock.monotonic())
        pacer.requestRun()
        await clock.advance(wait)
      }
    }
    const waits = requests.map((at) => (runs.find((run) => run >= at) as number) - at)
    expect(Math.max(...waits)).toBeLessThanOrEqual(10)
    expect(runs).toHaveLength(200)
  })

  it('charges what a run costs and not how long it waits on a busy machine', async () => {
    let spent = 0
    const { clock, runs, pacer } = setUp({ wholeRunMs: 50, takesMs: 200, spentMs: () => (spent += 1) })
    for (let i = 0; i < 3; i++) {
      pacer.requestRun()
      await clock.advance(300)
    }
    expect(runs).toEqual([0, 300, 600])
  })

  it('never charges more than the time of a run, whatever was spent since the last reading', async () => {
    let spent = 0
    const { clock, runs, pacer } = setUp({ wholeRunMs: 50, takesMs: 20, spentMs: () => (spent += 10_000) })
    pacer.requestRun()
    await clock.advance(20)
    pacer.requestRun()
    await clock.advance(1_000)
    expect(runs).toEqual([0, 420])
  })

  it('charges a run for the unfinished ones before it', async () => {
    const { clock, runs, pacer, end } = setUp({ wholeRunMs: 50, takesMs: 20 })
    end('unfinished')
    pacer.requestRun()
    await clock.advance(30)
    end('ok')
    await clock.advance(20)
    pacer.requestRun()
    await clock.advance(1_000)
    expect(runs).toEqual([0, 20, 840])
  })

  it('runs at once if it is urgent, however recent the last run, but once per minimum distance', async () => {
    const { clock, runs, pacer } = setUp()
    await clock.advance(10_000)
    pacer.requestRun()
    await clock.advance(100)
    pacer.requestRun()
    pacer.requestRun(true)
    await clock.advance(100)
    expect(runs).toEqual([10_000, 10_100])
    pacer.requestRun(true)
    await clock.advance(5000)
    expect(runs).toEqual([10_000, 10_100, 11_100])
  })

  it('runs again at the end of a run if an urgent request came meanwhile', async () => {
    const { clock, runs, pacer } = setUp({ takesMs: 200 })
    await clock.advance(10_000)
    pacer.requestRun()
    await clock.advance(100)
    pacer.requestRun(true)
    await clock.advance(5000)
    expect(runs).toEqual([10_000, 10_200])
  })

  it('never runs inside the request', () => {
    const { runs, pacer } = setUp()
    pacer.requestRun()
    expect(runs).toEqual([])
  })

  it('G2: runs after the maximum interval without requests; a request right after that waits for the minimum', async () => {
    const { clock, runs, pacer } = setUp()
    await clock.advance(59_999)
    expect(runs).toEqual([])
    await clock.advance(1)
    expect(runs).toEqual([60_000])
    pacer.requestRun()
    await clock.advance(999)
    expect(runs).toHaveLength(1)
    await clock.advance(1)
    expect(runs).toEqual([60_000, 61_000])
    await clock.advance(60_000)
    expect(runs).toEqual([60_000, 61_000, 121_000])
  })

  it('G3: runs again after a failure at the retry interval, not before', async () => {
    const { clock, runs, pacer, end } = setUp()
    end('failed')
    pacer.requestRun()
    await clock.advance(0)
    end('ok')
    await clock.advance(4999)
    expect(runs).toEqual([0])
    await clock.advance(1)
    expect(runs).toEqual([0, 5000])
    await clock.advance(59_999)
    expect(runs).toHaveLength(2)
  })

  it('G3: a requested run that succeeds cancels the retry', async () => {
    const { clock, runs, pacer, end } = setUp()
    end('failed')
    pacer.requestRun()
    await clock.advance(3000)
    end('ok')
    pacer.requestRun()
    await clock.advance(30_000)
    expect(runs).toEqual([0, 3000])
  })

  it('G4: a retry interval below the minimum waits for the minimum', async () => {
    const { clock, runs, pacer, end } = setUp({ minMs: 5000, retryMs: 1000 })
    end('failed')
    pacer.requestRun()
    await clock.advance(4999)
    expect(runs).toEqual([0])
    await clock.advance(1)
    expect(runs).toEqual([0, 5000])
  })

  it('G5: repeated failures lead to one run per retry interval', async () => {
    const { clock, runs, pacer, end } = setUp()
    end('failed')
    pacer.requestRun()
    await clock.advance(20_000)
    expect(runs).toEqual([0, 5000, 10_000, 15_000, 20_000])
  })

  it('a retry interval above the maximum is limited to the maximum', async () => {
    const { clock, runs, pacer, end } = setUp({ retryMs: 5000, maxMs: 2000 })
    end('failed')
    pacer.requestRun()
    await clock.advance(4000)
    expect(runs).toEqual([0, 2000, 4000])
  })

  it('G6: requests during a run lead to exactly one more run, the minimum distance after its end', async () => {
    const { clock, runs, pacer } = setUp({ takesMs: 300 })
    pacer.requestRun()
    await clock.advance(100)
    pacer.requestRun()
    pacer.requestRun()
    await clock.advance(10_000)
    expect(runs).toEqual([0, 1300])
  })

  it('runs back to back with a minimum of 0', async () => {
    const { clock, runs, pacer } = setUp({ minMs: 0, takesMs: 10 })
    pacer.requestRun()
    await clock.advance(5)
    pacer.requestRun()
    await clock.advance(100)
    expect(runs).toEqual([0, 10])
  })

  it('G7: refuses a maximum below the minimum', () => {
    expect(() => setUp({ minMs: 2000, maxMs: 1999 })).toThrow(/below the minimum/)
    expect(() => setUp({ minMs: 2000, maxMs: 2000 })).not.toThrow()
  })

  it('stop waits for the current run, and no run follows', async () => {
    const { clock, runs, pacer } = setUp({ takesMs: 50 })
    pacer.requestRun()
    await clock.advance(10)
    let stopped = false
    const stopping = pacer.stop().then(() => (stopped = true))
    await clock.advance(10)
    expect(stopped).toBe(false)
    await clock.advance(50)
    await stopping
    pacer.requestRun()
    await clock.advance(200_000)
    expect(runs).toEqual([0])
    expect(clock.armed).toBe(0)
  })
})
