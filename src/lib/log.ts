// Leveled, structured log lines in klog's text form or as JSON; pino has neither klog's `-v` numbers nor its header.

export type Fields = Readonly<Record<string, unknown>>

export interface Logger {
  info(message: string, fields?: Fields): void
  warn(message: string, fields?: Fields): void
  error(message: string, fields?: Fields): void
  /** Info that is printed only at verbosity `level` or above (`-v`, `--vmodule`). */
  v(level: number, message: string, fields?: Fields): void
  enabled(level: number): boolean
  /** The same log, under a component's name: it is the file pattern of `--vmodule`. */
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
    const enabled = (level: number) => level <= (matched ?? verbosity)
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
  if (line.severity === 'I') plain['v'] = line.level
  if (line.severity === 'W') plain['level'] = 'warning'
  for (const [key, value] of Object.entries(line.fields)) plain[key === 'error' ? 'err' : key] = jsonValue(value)
  return `${JSON.stringify(plain)}\n`
}

function textValue(value: unknown): string {
  if (typeof value === 'number' || typeof value === 'boolean' || value === null || value === undefined)
    return String(value)
  return JSON.stringify(jsonValue(value))
}

function jsonValue(value: unknown): unknown {
  if (!(value instanceof Error)) return value
  return value.cause === undefined ? value.message : `${value.message}: ${String(jsonValue(value.cause))}`
}

function matches(pattern: string, name: string): boolean {
  const source = pattern.replace(/\.(go|ts)$/, '').replace(/[.+^${}()|[\]\\]/g, '\\$&')
  return new RegExp(`^${source.replace(/\*/g, '.*').replace(/\?/g, '.')}$`).test(name)
}
