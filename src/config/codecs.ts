// The kinds of values that flags and configuration fields hold: how each is read from a command line and from a file, and written back. Pure.

import { parseIp } from '../lib/ip.ts'
import { formatDuration } from '../lib/time.ts'
import {
  formatCsv,
  isIpPort,
  parseBool,
  parseCsv,
  parseGates,
  parseGoDuration,
  parseInteger,
  parseLevel,
  parsePortRange,
  parseQuantity,
  parseRules,
  type VerbosityRule,
} from './value-syntax.ts'

/** The type of a value of each kind after it has been read. Durations are in milliseconds. */
export interface Kinds {
  string: string
  bool: boolean
  int32: number
  float32: number
  duration: number
  flushFrequency: number
  list: readonly string[]
  gates: Readonly<Record<string, boolean>>
  ip: string
  ipPort: string
  level: number
  vmodule: readonly VerbosityRule[]
  quantity: string
  portRange: string
  version: string
}

export type Kind = keyof Kinds
export type Value = Kinds[Kind]

export interface Codec<T> {
  /** Type in usage texts. */
  readonly label: string
  /** Completes the sentence "allowed: ...". */
  readonly allowed: string
  /** The text that a flag without `=value` stands for. If undefined, the flag reads the next argument. */
  readonly bare?: string
  /** Parses one use on the command line, whose earlier uses gave `current`. Returns undefined if the text is not allowed. */
  parse(text: string, current: T, isFirst: boolean): T | undefined
  /** Reads a plain value from YAML or JSON. Returns undefined if it has the wrong type. */
  read(plain: unknown): T | undefined
  /** Formats the value as pflag prints it. */
  show(value: T): string
  /** Converts the value to its form in v1alpha1. */
  write(value: T): unknown
}

const readString = (plain: unknown): string | undefined => (typeof plain === 'string' ? plain : undefined)
const keep = <T>(value: T): T => value

const text: Codec<string> = {
  label: 'string',
  allowed: 'a string',
  parse: keep,
  read: readString,
  show: keep,
  write: keep,
}

const duration: Codec<number> = {
  label: 'duration',
  allowed: 'a duration such as 250ms, 5s, 1m or 2h22m',
  parse: parseGoDuration,
  read: (plain) => (typeof plain === 'string' ? parseGoDuration(plain) : undefined),
  show: formatDuration,
  write: formatDuration,
}

export const codecs: { readonly [K in Kind]: Codec<Kinds[K]> } = {
  string: text,
  bool: {
    label: '',
    allowed: 'true or false',
    bare: 'true',
    parse: parseBool,
    read: (plain) => (typeof plain === 'boolean' ? plain : undefined),
    show: String,
    write: keep,
  },
  int32: {
    label: 'int32',
    allowed: 'a whole number of 32 bits',
    parse: (given) => toInt32(parseInteger(given)),
    read: (plain) => toInt32(plain),
    show: String,
    write: keep,
  },
  float32: {
    label: 'float32',
    allowed: 'a number of 32 bits',
    parse: (given) => (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(given) ? toFloat32(Number(given)) : undefined),
    read: (plain) => toFloat32(plain),
    show: String,
    write: keep,
  },
  duration,
  flushFrequency: {
    ...duration,
    allowed: 'a duration such as 5s, or a whole number of nanoseconds',
    parse: parseGoDuration,
    read: (plain) => (isInteger(plain) ? plain / 1e6 : duration.read(plain)),
  },
  list: {
    label: 'strings',
    allowed: 'a comma-separated list',
    parse(given, current, isFirst) {
      const added = parseCsv(given)
      return added === undefined || isFirst ? added : [...current, ...added]
    },
    read: (plain) => (isStrings(plain) ? plain : undefined),
    show: (value) => `[${formatCsv(value)}]`,
    write: (value) => (value.length === 0 ? null : value),
  },
  gates: {
    label: 'mapStringBool',
    allowed: 'a comma-separated list of name=true or name=false',
    parse(given, current, isFirst) {
      const added = parseGates(given)
      return added === undefined || isFirst ? added : { ...current, ...added }
    },
    read: (plain) => (isGates(plain) ? plain : undefined),
    show: (value) =>
      Object.keys(value)
        .sort()
        .map((name) => `${name}=${value[name]}`)
        .join(','),
    write: (value) => Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))),
  },
  ip: {
    ...text,
    label: 'ip',
    allowed: 'an IP address',
    parse: (given, current) => chooseAddress(given, current, parseIp(given) !== undefined),
  },
  ipPort: {
    ...text,
    label: 'ipport',
    allowed: 'IP, IP:port or [IPv6]:port',
    parse: (given, current) => chooseAddress(given, current, isIpPort(given)),
  },
  level: {
    label: 'Level',
    allowed: 'a whole number from 0 to 2147483647',
    parse: parseLevel,
    read: (plain) => (isUint32(plain) ? plain : undefined),
    show: String,
    write: keep,
  },
  vmodule: {
    label: 'pattern=N,...',
    allowed: 'a comma-separated list of pattern=N',
    parse(given, current) {
      const added = parseRules(given)
      return added === undefined ? undefined : [...current, ...added]
    },
    read: (plain) => (isRules(plain) ? plain.map((rule) => ({ filePattern: '', verbosity: 0, ...rule })) : undefined),
    show: (value) => value.map((rule) => `${rule.filePattern}=${rule.verbosity}`).join(','),
    write: (value) => value.map((rule) => ({ filePattern: rule.filePattern, verbosity: rule.verbosity })),
  },
  quantity: {
    label: 'quantity',
    allowed: 'a size such as 512, 64k, 2Ki or 1Mi',
    parse: parseQuantity,
    read: (plain) =>
      typeof plain === 'string' || typeof plain === 'number' ? parseQuantity(String(plain)) : undefined,
    show: keep,
    write: keep,
  },
  portRange: {
    ...text,
    label: 'port-range',
    allowed: 'first-last, first+count or one port, none above 65535',
    parse: (given) => (parsePortRange(given) === undefined ? undefined : given),
  },
  version: {
    ...text,
    label: 'version',
    allowed: 'true, false, raw or a version that starts with v',
    bare: 'true',
    parse(given) {
      if (given === 'raw' || /^v\d+\.\d+\.\d+/.test(given)) return given
      return parseBool(given)?.toString()
    },
  },
}

/** As in kube-proxy, an empty string is accepted and changes nothing: manifests pass empty variables. */
function chooseAddress(given: string, current: string, isAddress: boolean): string | undefined {
  if (given === '') return current
  return isAddress ? given : undefined
}

/** Returns the number as it is written, if 32 bits can hold an approximation. */
const toFloat32 = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(Math.fround(value)) ? value : undefined

const toInt32 = (value: unknown): number | undefined =>
  isInteger(value) && value >= -(2 ** 31) && value < 2 ** 31 ? value : undefined

const isInteger = (plain: unknown): plain is number => Number.isInteger(plain)

const isUint32 = (plain: unknown): plain is number => isInteger(plain) && plain >= 0 && plain < 2 ** 32

function isStrings(plain: unknown): plain is string[] {
  return Array.isArray(plain) && plain.every((each) => typeof each === 'string')
}

function isGates(plain: unknown): plain is Record<string, boolean> {
  return isObject(plain) && Object.values(plain).every((each) => typeof each === 'boolean')
}

function isRules(plain: unknown): plain is Partial<VerbosityRule>[] {
  const fits = (rule: unknown) =>
    isObject(rule) &&
    ['string', 'undefined'].includes(typeof rule.filePattern) &&
    (rule.verbosity === undefined || isUint32(rule.verbosity))
  return Array.isArray(plain) && plain.every(fits)
}

const isObject = (plain: unknown): plain is Record<string, unknown> =>
  typeof plain === 'object' && plain !== null && !Array.isArray(plain)
