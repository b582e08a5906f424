// Parses single values as Go and pflag do: booleans, integers, lists, sizes, port ranges and addresses. Pure.

import { parseIp } from '../lib/ip.ts'
import { parseDuration } from '../lib/time.ts'

export interface VerbosityRule {
  readonly filePattern: string
  readonly verbosity: number
}

/** Returns the first and last port of a range, null for an empty range ('' or port 0), or undefined if the text is not a range. */
export function parsePortRange(given: string): readonly [number, number] | null | undefined {
  const trimmed = given.trim()
  if (trimmed === '') return null
  const match = /^(\d{1,6})(?:([-+])(\d{1,6}))?$/.exec(trimmed)
  if (match === null) return undefined
  const [, first, separator, second = first] = match
  const low = Number(first)
  const high = separator === '+' ? low + Number(second) : Number(second)
  if (low > 65535 || high > 65535 || high < low) return undefined
  return low === 0 ? null : [low, high]
}

/** Returns the bytes of a Kubernetes quantity such as `2Ki`, rounded up, or undefined if the text is not a quantity. */
export function parseQuantityBytes(given: string): number | undefined {
  const match = /^([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?$/.exec(given)
  if (match === null) return undefined
  const [, number, suffix = '', exponent = 0] = match
  return Math.ceil(Number(number) * parseUnit(suffix) * 10 ** Number(exponent))
}

function parseUnit(suffix: string): number {
  if (suffix.endsWith('i')) return 1024 ** ('KMGTPE'.indexOf(suffix.charAt(0)) + 1)
  // Steps of a thousand, from n (-3) over no suffix (0) to E (6).
  return 1000 ** (['n', 'u', 'm', '', 'k', 'M', 'G', 'T', 'P', 'E'].indexOf(suffix) - 3)
}

export function parseQuantity(given: string): string | undefined {
  const bytes = parseQuantityBytes(given)
  if (bytes === undefined) return undefined
  return bytes === 0 ? '0' : given
}

export function parseGoDuration(given: string): number | undefined {
  const ms = parseDuration(given)
  // Go stores a duration as nanoseconds in 64 bits and refuses a longer one.
  return ms === undefined || Math.abs(ms) > 2 ** 63 / 1e6 ? undefined : ms
}

export function parseBool(given: string): boolean | undefined {
  if (['1', 't', 'T', 'TRUE', 'true', 'True'].includes(given)) return true
  return ['0', 'f', 'F', 'FALSE', 'false', 'False'].includes(given) ? false : undefined
}

/** Parses Go's base-0 integers: `0x`, `0o`, `0b`, a leading zero for octal, and underscores between digits. */
export function parseInteger(given: string): number | undefined {
  const match = /^([+-]?)(0[xX]_?|0[oO]_?|0[bB]_?|0_?(?=\d))?([\da-fA-F]+(?:_[\da-fA-F]+)*)$/.exec(given)
  if (match === null) return undefined
  const [, sign, prefix = '', separated = ''] = match
  const base = parseBase(prefix.toLowerCase().replace('_', ''))
  const digits = separated.replaceAll('_', '')
  if ([...digits].some((digit) => Number.parseInt(digit, 16) >= base)) return undefined
  const size = Number.parseInt(digits, base)
  return sign === '-' && size !== 0 ? -size : size
}

function parseBase(prefix: string): number {
  if (prefix === '') return 10
  if (prefix === '0x') return 16
  return prefix === '0b' ? 2 : 8
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

/** Parses one CSV record by RFC 4180, as pflag reads a list. An empty text is an empty list. */
export function parseCsv(given: string): string[] | undefined {
  if (given === '') return []
  const fields: string[] = []
  let rest = given
  for (;;) {
    const match = /^(?:"((?:[^"]|"")*)"|([^",]*))(,|$)/.exec(rest)
    if (match === null) return undefined
    const [whole, quoted, bare = '', separator] = match
    fields.push(quoted?.replaceAll('""', '"') ?? bare)
    if (separator === '') return fields
    rest = rest.slice(whole.length)
  }
}

export function formatCsv(fields: readonly string[]): string {
  const quoted = (field: string) => (/[",\n\r]|^\s/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)
  return fields.map(quoted).join(',')
}

/** Splits `host:port` or `[host]:port`. The port is a text that may not be a number. */
export function splitAddress(given: string): { host: string; port: string } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^:[\]]*)):([^:[\]]*)$/.exec(given)
  if (match === null) return undefined
  const [, bracketed, bare = '', port = ''] = match
  return { host: bracketed ?? bare, port }
}

export function isIpPort(given: string): boolean {
  if (parseIp(given) !== undefined) return true
  const parts = splitAddress(given)
  return (
    parts !== undefined && parseIp(parts.host) !== undefined && /^\d+$/.test(parts.port) && Number(parts.port) <= 65535
  )
}
