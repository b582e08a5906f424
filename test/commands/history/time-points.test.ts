import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parsePoint, parseTime } from '../../../src/commands/history/time-points.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { formatDuration } from '../../../src/lib/time.ts'

// Times of the day are local, whatever zone the test runs in.
const now = new Date(2026, 10, 17, 12, 30, 15).getTime()
const local = (day: number, hours: number, minutes: number, seconds = 0) =>
  new Date(2026, 10, day, hours, minutes, seconds).getTime()

describe('times that people write', () => {
  it.each([
    ['2026-11-17T03:12:07Z', Date.UTC(2026, 10, 17, 3, 12, 7)],
    ['2026-11-17T03:12:07.250+01:00', Date.UTC(2026, 10, 17, 2, 12, 7, 250)],
    ['2026-11-17 03:12', local(17, 3, 12)],
    ['2026-11-17T03:12:07', local(17, 3, 12, 7)],
    ['2026-11-16', local(16, 0, 0)],
    ['03:12', local(17, 3, 12)],
    ['3:12', local(17, 3, 12)],
    ['03:12:07', local(17, 3, 12, 7)],
    ['12:30', local(17, 12, 30)],
    ['12:31', local(16, 12, 31)],
    ['23:59:59', local(16, 23, 59, 59)],
    ['-10m', now - 600_000],
    ['10m', now - 600_000],
    ['-2h30m', now - 9_000_000],
    ['-1d', now - 86_400_000],
    ['-1d12h', now - 129_600_000],
    ['now', now],
  ])('%s', (text, time) => {
    expect(parseTime(text, now)).toBe(time)
  })

  it.each([
    '',
    '-',
    'yesterday',
    '24:00',
    '03:60',
    '03:12:60',
    '3',
    '2026-13-01',
    '2026-11-17T25:00:00Z',
    '10',
    '-10',
    '--10m',
    '10 m',
    'd',
    '1x',
  ])('refuses %j', (text) => {
    expect(() => parseTime(text, now)).toThrow(ProxyError)
    if (!/^\d+$/.test(text)) expect(() => parsePoint(text, now)).toThrow(ProxyError)
  })

  it('a number alone is a sync', () => {
    expect(parsePoint('4711', now)).toEqual({ sync: 4711 })
    expect(parsePoint('04:11', now)).toEqual({ time: local(17, 4, 11) })
  })

  it('reads back every duration and every RFC 3339 time', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1e10 }), (ms) => {
        expect(parseTime(`-${formatDuration(ms)}`, now)).toBe(now - ms)
        expect(parseTime(new Date(now - ms).toISOString(), now)).toBe(now - ms)
      }),
    )
  })

  it('a time of the day is never in the future, and at most a day ago', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 86_399 }), (second) => {
        const text = [Math.floor(second / 3600), Math.floor(second / 60) % 60, second % 60]
          .map((part) => String(part).padStart(2, '0'))
          .join(':')
        const time = parseTime(text, now)
        expect(time).toBeLessThanOrEqual(now)
        // A day with a change of the clocks has 25 hours.
        expect(now - time).toBeLessThanOrEqual(25 * 3_600_000)
      }),
    )
  })
})
