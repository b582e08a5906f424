// Reads the times and sync numbers that people write: RFC 3339, a time of the day, a time ago, or a sync. Pure.

import type { HistoryPoint } from '../../http/admin-history.ts'
import { ProxyError } from '../../lib/errors.ts'
import { parseDuration } from '../../lib/time.ts'

const forms = 'RFC 3339, HH:MM[:SS] of the last 24 hours, YYYY-MM-DD HH:MM[:SS], or a time ago such as -10m or -2h30m'
const dayMs = 86_400_000

/** Returns Unix ms. Times without a zone are those of the local zone. `now` is Unix ms. Throws a ProxyError 'usage'. */
export function parseTime(text: string, now: number): number {
  if (text === 'now') return now
  const time = parseAgo(text, now) ?? parseClock(text, now) ?? parseDate(text)
  if (time === undefined) throw new ProxyError('usage', `"${text}" is not a time; allowed: ${forms}`)
  return time
}

/** As `parseTime`; a number alone is a sync. */
export function parsePoint(text: string, now: number): HistoryPoint {
  return /^\d{1,15}$/.test(text) ? { sync: Number(text) } : { time: parseTime(text, now) }
}

function parseAgo(text: string, now: number): number | undefined {
  const [, days, rest = ''] = /^-?(?:(\d+)d)?(.*)$/s.exec(text) ?? []
  if (days === undefined && !/^\d/.test(rest)) return undefined
  const ms = rest === '' ? 0 : parseDuration(rest)
  return ms === undefined ? undefined : now - Number(days ?? 0) * dayMs - ms
}

/** The last moment at which clocks showed that time. */
function parseClock(text: string, now: number): number | undefined {
  const match = /^(\d{1,2}):(\d\d)(?::(\d\d))?$/.exec(text)
  if (match === null) return undefined
  const [hours, minutes, seconds] = [Number(match[1]), Number(match[2]), Number(match[3] ?? 0)]
  if (hours > 23 || minutes > 59 || seconds > 59) return undefined
  const date = new Date(now)
  date.setHours(hours, minutes, seconds, 0)
  if (date.getTime() > now) date.setDate(date.getDate() - 1)
  return date.getTime()
}

function parseDate(text: string): number | undefined {
  const form = /^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?$/i
  if (!form.test(text)) return undefined
  // A date alone would be read as UTC, and a date with a time as local.
  const time = Date.parse(text.length === 10 ? `${text}T00:00` : text.replace(' ', 'T').toUpperCase())
  return Number.isNaN(time) ? undefined : time
}
