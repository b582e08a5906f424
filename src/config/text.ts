// How Go and pflag read single values from text: booleans, integers, lists, sizes, ranges, addresses.

import { parseIp } from '../lib/ip.ts'
import { parseDuration } from '../lib/time.ts'

export interface VerbosityRule {
  readonly filePattern: string
  readonly verbosity: number
}

/** First and last port of a range; null for none at all (empty, or port 0). Undefined: not a range. */
export function parsePortRange(given: string): readonly [number, number] | null | undefined {
  const trimmed = given.trim()
  if (trimmed === '') return null
  const match = /^(\d{1,6})(?:([-+])(\d{1,6}))?$/.exec(trimmed)
  if (match === null) return undefined
  const low = Number(match[1])
  const other = match[3] === undefined ? low : Number(match[3])
  const high = match[2] === '+' ? low + other : other
  if (low > 65535 || high > 65535 || high < low) return undefined
  return low === 0 ? null : [low, high]
}

/** Bytes of a Kubernetes quantity such as `2Ki`, rounded up; undefined if it is none. */
export function quantityBytes(given: string): number | undefined {
  const match = /^([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?$/.exec(given)
  if (match === null) return undefined
  const suffix = match[2] ?? ''
  const power = suffix.endsWith('i') ? 2 ** (10 * ('KMGTPE'.indexOf(suffix.charAt(0)) + 1)) : 10 ** decimalPower(suffix)
  return Math.ceil(Number(match[1]) * power * 10 ** Number(match[3] ?? 0))
}

function decimalPower(suffix: string): number {
  return suffix === '' ? 0 : 3 * ('num'.includes(suffix) ? 'num'.indexOf(suffix) - 3 : 'kMGTPE'.indexOf(suffix) + 1)
}

export function parseQuantity(given: string): string | undefined {
  const bytes = quantityBytes(given)
  return bytes === undefined ? undefined : bytes === 0 ? '0' : given
}

export function goDuration(given: string): number | undefined {
  const ms = parseDuration(given)
  // Go keeps durations as nanoseconds in 64 bits and refuses what does not fit.
  return ms === undefined || Math.abs(ms) > 2 ** 63 / 1e6 ? undefined : ms
}

export function parseBool(given: string): boolean | undefined {
  if (['1', 't', 'T', 'TRUE', 'true', 'True'].includes(given)) return true
  return ['0', 'f', 'F', 'FALSE', 'false', 'False'].includes(given) ? false : undefined
}

/** Go's base-0 integers: `0x`, `0o`, `0b`, a leading zero for octal, and underscores between digits. */
export function parseInteger(given: string): number | undefined {
  const match = /^([+-]?)(0[xX]_?|0[oO]_?|0[bB]_?|0_?(?=\d))?([\da-fA-F]+(?:_[\da-fA-F]+)*)$/.exec(given)
  if (match === null) return undefined
  const prefix = (match[2] ?? '').toLowerCase().replace('_', '')
  const base = prefix === '0x' ? 16 : prefix === '0b' ? 2 : prefix === '' ? 10 : 8
  const digits = (match[3] as string).replaceAll('_', '')
  if ([...digits].some((digit) => Number.parseInt(digit, 16) >= base)) return undefined
  const size = Number.parseInt(digits, base)
  return match[1] === '-' && size !== 0 ? -size : size
}

export function parseLevel(given: string): number | undefined {
  return /^\d{1,10}$/.test(given) && Number(given) < 2 ** 31 ? Number(given) : undefined
}

export function parseRules(given: string): VerbosityRule[] | undefined {
  const rules: VerbosityRule[] = []
  for (const part of given.split(',').filter((each) => each !== '')) {
    const [filePattern = '', level = '', ...more] = part.split('=')
    const verbosity = parseLevel(level)
    if (filePattern === '' || verbosity === undefined || more.length > 0) return undefined
    rules.push({ filePattern, verbosity })
  }
  return rules
}

export function parseGates(given: string): Record<string, boolean> | undefined {
  const gates: [string, boolean][] = []
  for (const part of given.split(',').filter((each) => each !== '')) {
    const equals = part.indexOf('=')
    const on = equals < 0 ? undefined : parseBool(part.slice(equals + 1).trim())
    if (on === undefined) return undefined
    gates.push([part.slice(0, equals).trim(), on])
  }
  return Object.fromEntries(gates)
}

/** One CSV record by RFC 4180, as pflag reads a list; an empty text is an empty list. */
export function parseCsv(given: string): string[] | undefined {
  if (given === '') return []
  const fields: string[] = []
  let rest = given
  for (;;) {
    const match = /^(?:"((?:[^"]|"")*)"|([^",]*))(,|$)/.exec(rest)
    if (match === null) return undefined
    fields.push(match[1] === undefined ? (match[2] as string) : match[1].replaceAll('""', '"'))
    if (match[3] === '') return fields
    rest = rest.slice(match[0].length)
  }
}

export function formatCsv(fields: readonly string[]): string {
  const quoted = (field: string) => (/[",\n\r]|^\s/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)
  return fields.map(quoted).join(',')
}

/** Host and port of `host:port` or `[host]:port`, the port still a text that may be no number. */
export function splitAddress(given: string): { host: string; port: string } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^:[\]]*)):([^:[\]]*)$/.exec(given)
  return match === null ? undefined : { host: (match[1] ?? match[2]) as string, port: match[3] as string }
}

export function isIpPort(given: string): boolean {
  if (parseIp(given) !== undefined) return true
  const parts = splitAddress(given)
  return (
    parts !== undefined && parseIp(parts.host) !== undefined && /^\d+$/.test(parts.port) && Number(parts.port) <= 65535
  )
}
