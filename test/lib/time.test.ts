// Checks Go's durations, RFC 3339 times, and waiting on a clock.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Clock, formatDuration, formatTime, parseDuration, sleep, systemClock } from '../../src/lib/time.ts'

describe('durations', () => {
  it.each([
    ['0', 0],
    ['0s', 0],
    ['-0', 0],
    ['5s', 5000],
    ['30s', 30_000],
    ['+5s', 5000],
    ['-5s', -5000],
    ['15m0s', 900_000],
    ['24h0m0s', 86_400_000],
    ['1h15m30.918s', 4_530_918],
    ['250ms', 250],
    ['1.5h', 5_400_000],
    ['.5s', 500],
    ['5.s', 5000],
    ['10us', 0.01],
    ['10µs', 0.01],
    ['10μs', 0.01],
    ['11ns', 0.000011],
    ['4.1s', 4100],
    ['0.1s0.2s', 300],
    ['1.005s', 1005],
  ])('parses %s', (text, ms) => {
    expect(parseDuration(text)).toBe(ms)
  })

  it.each(['', '3', '-', '+', 's', '.', '-.', '.s', '+.s', '1d', '00', '1 s', '1s ', '1.1.1s', '1e3s', 'five'])(
    'refuses %j',
    (text) => {
      expect(parseDuration(text)).toBeUndefined()
    },
  )

  it.each([
    [0, '0s'],
    [900_000, '15m0s'],
    [86_400_000, '24h0m0s'],
    [1000, '1s'],
    [250, '250ms'],
    [2.2, '2.2ms'],
    [0.001, '1µs'],
    [0.0011, '1.1µs'],
    [0.000001, '1ns'],
    [3300, '3.3s'],
    [245_000, '4m5s'],
    [245_001, '4m5.001s'],
    [18_367_001, '5h6m7.001s'],
    [59_123.456789, '59.123456789s'],
    [59_123.4, '59.1234s'],
    [-1500, '-1.5s'],
    [31_536_000_000, '8760h0m0s'],
  ])('formats %d ms', (ms, text) => {
    expect(formatDuration(ms)).toBe(text)
  })

  it('formats nanoseconds without rounding errors', () => {
    const nanoseconds = fc.oneof(fc.integer({ min: 1, max: 200_000_000_000 }), fc.integer({ min: 1, max: 5000 }))
    fc.assert(
      fc.property(nanoseconds, (ns) => {
        const text = formatDuration(ns / 1e6)
        expect(text).toMatch(/^(\d+h)?(\d+m)?\d+(\.\d{1,9})?(s|ms|µs|ns)$/)
        expect(Math.round((parseDuration(text) as number) * 1e6)).toBe(ns)
      }),
      { numRuns: 1000 },
    )
  })
})

describe('times', () => {
  it('trims the fraction', () => {
    expect(formatTime(0)).toBe('1970-01-01T00:00:00Z')
    expect(formatTime(1_700_000_000_000)).toBe('2023-11-14T22:13:20Z')
    expect(formatTime(1_700_000_000_120)).toBe('2023-11-14T22:13:20.12Z')
    expect(formatTime(1_700_000_000_001)).toBe('2023-11-14T22:13:20.001Z')
  })
})

describe('sleep', () => {
  /** A clock whose timers fire when the test calls them. */
  const manual = () => {
    const timers = new Set<() => void>()
    const clock: Clock = {
      now: () => 0,
      monotonic: () => 0,
      after: (_, run) => {
        timers.add(run)
        return { cancel: () => timers.delete(run) }
      },
    }
    return { clock, timers, fire: () => [...timers].map((run) => run()) }
  }

  it('ends when the timer fires', async () => {
    const { clock, fire } = manual()
    const slept = sleep(clock, 1000, new AbortController().signal)
    fire()
    await expect(slept).resolves.toBeUndefined()
  })

  it('ends with the reason of the abort and leaves no timer', async () => {
    const { clock, timers } = manual()
    const controller = new AbortController()
    const slept = sleep(clock, 1000, controller.signal)
    controller.abort(new Error('enough'))
    await expect(slept).rejects.toThrow('enough')
    expect(timers.size).toBe(0)
    await expect(sleep(clock, 1000, controller.signal)).rejects.toThrow('enough')
    expect(timers.size).toBe(0)
  })

  it('works with the real clock, and a cancelled timer does not fire', async () => {
    let fired = false
    systemClock
      .after(1, () => {
        fired = true
      })
      .cancel()
    await sleep(systemClock, 5)
    expect(fired).toBe(false)
  })

  it('does not fire a very long delay at once', async () => {
    let fired = false
    const timer = systemClock.after(2 ** 40, () => {
      fired = true
    })
    await sleep(systemClock, 10)
    timer.cancel()
    expect(fired).toBe(false)
  })
})
