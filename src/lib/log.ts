// Writes leveled, structured log lines in klog's text format or as JSON. The library pino has neither klog's `-v` levels nor its header.

import { describeError } from './errors.ts'

export type Fields = Readonly<Record<string, unknown>>

export interface Logger {
  info(message: string, fields?: Fields): void
  warn(message: string, fields?: Fields): void
  error(message: string, fields?: Fields): void
  /** Info that is printed only at verbosity `level` or above (`-v`, `--vmodule`). */
  v(level: number, message: string, fields?: Fields): void
  enabled(level: number): boolean
  /** Returns the same log under the name of a component; `--vmodule` matches this name. */
  named(name: string): Logger
}

export interface LogOptions {
  readonly format: 'text' | 'json'
  readonly verbosity: number
  readonly vmodule?: readonly { readonly filePattern: string; readonly verbosity: number }[]
  readonly write: (line: string) => void
  readonly now?: () => number
}

export interface RootLogger extends Logger {
  setVerbosity(level: number): void
}

export function createLogger(options: LogOptions): RootLogger {
  let verbosity = options.verbosity
  const now = options.now ?? Date.now
  const make = (name: string): Logger => {
    const matched = options.vmodule?.find((entry) => matches(entry.filePattern, name))?.verbosity
    // As in klog, the verbosity of a component can only raise the general verbosity.
    const enabled = (level: number) => level <= Math.max(matched ?? 0, verbosity)
    const line = (severity: Severity, level: number, message: string, fields: Fields = {}) =>
      options.write(
        (options.format === 'json' ? jsonLine : textLine)({ severity, level, name, message, fields, at: now() }),
      )
    return {
      info: (message, fields) => line('I', 0, message, fields),
      warn: (message, fields) => line('W', 0, message, fields),
      error: (message, fields) => line('E', 0, message, fields),
      v: (level, message, fields) => {
        if (enabled(level)) line('I', level, message, fields)
      },
      enabled,
      named: make,
    }
  }
  return {
    ...make('proxy'),
    setVerbosity(level) {
      verbosity = level
    },
  }
}

export const silentLogger: Logger = {
  info() {},
  warn() {},
  error() {},
  v() {},
  enabled: () => false,
  named: () => silentLogger,
}

type Severity = 'I' | 'W' | 'E'
interface Line {
  readonly severity: Severity
  readonly level: number
  readonly name: string
  readonly message: string
  readonly fields: Fields
  readonly at: number
}

function textLine(line: Line): string {
  const time = new Date(line.at)
  const two = (n: number) => String(n).padStart(2, '0')
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${String(time.getMilliseconds()).padStart(3, '0')}000`
  const head = `${line.severity}${two(time.getMonth() + 1)}${two(time.getDate())} ${clock} ${String(process.pid).padStart(7)} ${line.name}]`
  const pairs = Object.entries(line.fields).map(([key, value]) => ` ${key}=${textValue(value)}`)
  return `${head} ${JSON.stringify(line.message)}${pairs.join('')}\n`
}

function jsonLine(line: Line): string {
  const plain: Record<string, unknown> = { ts: line.at, caller: line.name, msg: line.message }
  if (line.severity === 'I') plain.v = line.level
  if (line.severity === 'W') plain.level = 'warning'
  for (const [key, value] of Object.entries(line.fields)) {
    plain[jsonKey(key)] = value
  }
  return `${toJson(plain)}\n`
}

function jsonKey(field: string): string {
  if (field === 'error') return 'err'
  return reserved.has(field) ? `field_${field}` : field
}

/** Keys of the log line itself, which a field must not overwrite. */
const reserved: ReadonlySet<string> = new Set(['ts', 'caller', 'msg', 'v', 'level'])

function textValue(value: unknown): string {
  if (typeof value === 'object' && value !== null) return toJson(value)
  return typeof value === 'string' ? JSON.stringify(value) : String(value)
}

/** Formats any value as JSON without ever throwing: writing a log line must not fail. */
function toJson(value: unknown): string {
  const above: unknown[] = []
  return JSON.stringify(value, function (this: unknown, _key, part: unknown) {
    if (typeof part === 'bigint') return String(part)
    if (typeof part !== 'object' || part === null) return part
    while (above.length > 0 && above.at(-1) !== this) above.pop()
    if (above.includes(part)) return '[circular]'
    const plain = plainObject(part)
    above.push(plain)
    return plain
  })
}

function plainObject(value: object): unknown {
  if (value instanceof Error) return describeError(value)
  if (value instanceof Map) return Object.fromEntries(value)
  return value instanceof Set ? [...value] : value
}

function matches(pattern: string, name: string): boolean {
  const source = pattern.replace(/\.(go|ts)$/, '').replace(/[.+^${}()|[\]\\]/g, '\\$&')
  return new RegExp(`^${source.replace(/\*/g, '.*').replace(/\?/g, '.')}$`).test(name)
}
