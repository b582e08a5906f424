// Tolerant reading of JSON fields: what has the wrong type is reported by object and field, and read as absent.

import { canonicalIp } from '../../lib/ip.ts'
import type { Problem } from '../../model/types.ts'

export type JsonObject = Readonly<Record<string, unknown>>

/** Shared by all records: most lists of most objects are empty. */
export const nothing: readonly never[] = Object.freeze([])
/** A list that was filled by push has room for sixteen more; a record keeps one that fits. */
export const fitted = <T>(list: readonly T[]): readonly T[] => (list.length === 0 ? nothing : list.slice())

const emptyObject: JsonObject = Object.freeze({})

/** One broken object must not fill the log: the first of its problems are named, the rest are counted. */
const namedProblems = 20

export const asObject = (value: unknown): JsonObject | undefined =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as JsonObject) : undefined

/** A value as people see it in a message. */
export function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value)
  return text.length <= 80 ? text : `${text.slice(0, 77)}...`
}

export interface DecodedRecord<R> {
  /** `namespace/name`, or `name` if the kind has no namespace; '' if the object does not say. */
  readonly key: string
  /** undefined: to be ignored, and dropped if it was there. */
  readonly record: R | undefined
  readonly problems: readonly Problem[]
}

/** What is read out of one object; collects what is wrong with it. Paths are only spelled out when something is wrong. */
export class FieldReader {
  readonly kind: string
  readonly object: string
  readonly uid: string
  #problems: Problem[] | undefined
  #unnamed = 0

  constructor(kind: string, object: string, uid: string) {
    this.kind = kind
    this.object = object
    this.uid = uid
  }

  problem(field: string, message: string): void {
    this.#problems ??= []
    if (this.#problems.length >= namedProblems) this.#unnamed++
    else this.#problems.push({ kind: this.kind, object: this.object, uid: this.uid, field, message })
  }

  problems(): readonly Problem[] {
    if (this.#problems === undefined) return nothing
    if (this.#unnamed === 0) return this.#problems
    const { kind, object, uid } = this
    return [...this.#problems, { kind, object, uid, field: '', message: `and ${this.#unnamed} more problems` }]
  }

  text(from: JsonObject, name: string, at: string): string | undefined {
    const value = from[name]
    if (typeof value === 'string') return value
    return this.#absent(value, 'a string', at, name)
  }

  flag(from: JsonObject, name: string, at: string): boolean | undefined {
    const value = from[name]
    if (typeof value === 'boolean') return value
    return this.#absent(value, 'true or false', at, name)
  }

  integer(from: JsonObject, name: string, at: string): number | undefined {
    const value = from[name]
    if (Number.isSafeInteger(value)) return value as number
    return this.#absent(value, 'a whole number', at, name)
  }

  list(from: JsonObject, name: string, at: string): readonly unknown[] {
    const value = from[name]
    if (Array.isArray(value)) return value
    return this.#absent(value, 'a list', at, name) ?? nothing
  }

  child(from: JsonObject, name: string, at: string): JsonObject {
    const value = asObject(from[name])
    if (value !== undefined) return value
    return this.#absent(from[name], 'an object', at, name) ?? emptyObject
  }

  /** The objects of a list; an element of another type is reported and left out. */
  *children(from: JsonObject, name: string, at: string): Generator<[number, JsonObject]> {
    const values = this.list(from, name, at)
    for (let i = 0; i < values.length; i++) {
      const value = asObject(values[i])
      if (value === undefined) this.problem(`${join(at, name)}[${i}]`, `must be an object, is ${show(values[i])}`)
      else yield [i, value]
    }
  }

  /** The strings of a list; an element of another type is reported and left out. */
  *texts(from: JsonObject, name: string, at: string): Generator<[number, string]> {
    const values = this.list(from, name, at)
    for (let i = 0; i < values.length; i++) {
      const value = values[i]
      if (typeof value === 'string') yield [i, value]
      else this.problem(`${join(at, name)}[${i}]`, `must be a string, is ${show(value)}`)
    }
  }

  #absent(value: unknown, wanted: string, at: string, name: string): undefined {
    if (value !== undefined && value !== null) this.problem(join(at, name), `must be ${wanted}, is ${show(value)}`)
    return undefined
  }
}

export const join = (at: string, name: string): string => (at === '' ? name : `${at}.${name}`)

export interface OpenedObject {
  readonly key: string
  readonly reading: FieldReader
  readonly object: JsonObject
  readonly metadata: JsonObject
}

/** Names reach rules and comments, so nothing else than what the API server allows may be in them. */
const nameForm = /^[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$/

export const wellNamed = (name: string): boolean => nameForm.test(name)

/** The object with its identity; a finished answer if it has none. */
export function openObject(kind: string, json: unknown, namespaced: boolean): OpenedObject | DecodedRecord<never> {
  const object = asObject(json)
  const metadata = asObject(object?.metadata)
  const part = (name: string) => (typeof metadata?.[name] === 'string' ? (metadata[name] as string) : '')
  const namespace = namespaced ? part('namespace') : ''
  const key = namespaced ? `${namespace}/${part('name')}` : part('name')
  const reading = new FieldReader(kind, part('name') === '' ? `${namespace}/(no name)` : key, part('uid'))
  if (object === undefined) reading.problem('', `must be an object, is ${show(json)}`)
  else if (metadata === undefined) reading.problem('metadata', 'is missing')
  else {
    for (const name of namespaced ? ['namespace', 'name'] : ['name']) {
      if (!wellNamed(part(name))) reading.problem(`metadata.${name}`, `is no valid name: ${show(metadata[name])}`)
    }
    if (reading.problems().length === 0) return { key, reading, object, metadata }
  }
  return { key: '', record: undefined, problems: reading.problems() }
}

/** Unix ms; 0 if absent or unreadable. Fractions may be longer than milliseconds. */
export function readTime(reading: FieldReader, from: JsonObject, name: string, at: string): number {
  const text = reading.text(from, name, at) ?? ''
  if (text === '') return 0
  const form = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/
  const time = form.test(text) ? Date.parse(text) : Number.NaN
  if (!Number.isNaN(time)) return time
  reading.problem(join(at, name), `is no RFC 3339 time: ${show(text)}`)
  return 0
}

export function readIp(reading: FieldReader, text: string, field: string): string | undefined {
  const ip = canonicalIp(text)
  if (ip === undefined) reading.problem(field, `is no IP address: ${show(text)}`)
  return ip
}
