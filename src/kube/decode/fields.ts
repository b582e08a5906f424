// Reads fields of JSON objects tolerantly: a field of the wrong type is reported by object and path, and read as absent. Pure.

import { cutText, excerptJson } from '../../lib/bounded-json.ts'
import { canonicalIp } from '../../lib/ip.ts'
import { type Steps, stride } from '../../lib/yielding.ts'
import type { Problem } from '../../model/types.ts'

export type JsonObject = Readonly<Record<string, unknown>>

/** Stands for an object that could be identified, if at all, but not read. */
class UnreadableObject {
  readonly [name: string]: unknown
  readonly metadata: unknown
  readonly error: unknown

  constructor(metadata: unknown, error: unknown) {
    this.metadata = metadata
    this.error = error
  }
}

export const makeUnreadable = (metadata: unknown, error: unknown): JsonObject => new UnreadableObject(metadata, error)

export const isUnreadable = (json: unknown): boolean => json instanceof UnreadableObject

/** Throws the reason if the object could not be read. */
export function throwIfUnreadable(json: unknown): void {
  if (json instanceof UnreadableObject) throw json.error
}

/** Shared by all records: most lists of most objects are empty. */
export const emptyList: readonly never[] = Object.freeze([])
/** Copies a list to its exact size: a list that was filled by push has room for sixteen more elements, and a record keeps it for long. */
export const copyFitted = <T>(list: readonly T[]): readonly T[] => (list.length === 0 ? emptyList : list.slice())

const emptyObject: JsonObject = Object.freeze({})

/** Problems of one object that are reported one by one; the rest are counted, so that one broken object does not fill the log. */
const maxProblems = 20

export const asObject = (value: unknown): JsonObject | undefined =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as JsonObject) : undefined

/** Returns a string field, or '' if the field is absent or has another type. */
export function readString(from: JsonObject | undefined, name: string): string {
  const value = from?.[name]
  return typeof value === 'string' ? value : ''
}

/** Formats a value for a message. */
export const formatValue = (value: unknown): string => excerptJson(value, 80)

/** No field that is read needs more; records keep some of these texts for as long as the object exists. */
const maxTextLength = 4_096
/** A UID has 36 characters. It goes into every Event about its object. */
const maxUidLength = 128

export const isShortText = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= maxTextLength

export function readUid(metadata: JsonObject | undefined): string {
  const uid = readString(metadata, 'uid')
  return uid.length <= maxUidLength ? uid : ''
}

export interface DecodedRecord<R> {
  /** `namespace/name`, or `name` if the kind has no namespace; '' if the object has no valid name. */
  readonly key: string
  /** Undefined if the object is ignored; an earlier record of it is dropped. */
  readonly record: R | undefined
  readonly problems: readonly Problem[]
  /** Why an object without problems is of no use to the proxy, if a user may want to know. */
  readonly unused?: string
}

/** Reads fields of one object and collects its problems. Paths are built only when there is a problem. */
export class FieldReader {
  readonly kind: string
  readonly object: string
  readonly uid: string
  #problems: Problem[] | undefined
  #unlisted = 0

  constructor(kind: string, object: string, uid: string) {
    this.kind = kind
    this.object = object
    this.uid = uid
  }

  report(field: string, message: string): void {
    this.#problems ??= []
    if (this.#problems.length >= maxProblems) this.#unlisted++
    else this.#problems.push({ kind: this.kind, object: this.object, uid: this.uid, field, message })
  }

  listProblems(): readonly Problem[] {
    if (this.#problems === undefined) return emptyList
    if (this.#unlisted === 0) return this.#problems
    const { kind, object, uid } = this
    return [...this.#problems, { kind, object, uid, field: '', message: `and ${this.#unlisted} more problems` }]
  }

  readText(from: JsonObject, name: string, at: string): string | undefined {
    const value = from[name]
    if (isShortText(value)) return value
    return this.#absent(value, describeText(value), at, name)
  }

  readFlag(from: JsonObject, name: string, at: string): boolean | undefined {
    const value = from[name]
    if (typeof value === 'boolean') return value
    return this.#absent(value, 'true or false', at, name)
  }

  readInteger(from: JsonObject, name: string, at: string): number | undefined {
    const value = from[name]
    if (typeof value === 'number' && Number.isSafeInteger(value)) return value
    return this.#absent(value, 'a whole number', at, name)
  }

  readList(from: JsonObject, name: string, at: string): readonly unknown[] {
    const value = from[name]
    if (Array.isArray(value)) return value
    return this.#absent(value, 'a list', at, name) ?? emptyList
  }

  readChild(from: JsonObject, name: string, at: string): JsonObject {
    const value = asObject(from[name])
    if (value !== undefined) return value
    return this.#absent(from[name], 'an object', at, name) ?? emptyObject
  }

  /** Yields the objects of a list with their index. An element of another type is reported and skipped. */
  *readChildren(from: JsonObject, name: string, at: string): Generator<[number, JsonObject]> {
    const values = this.readList(from, name, at)
    for (let i = 0; i < values.length; i++) {
      const value = asObject(values[i])
      if (value === undefined)
        this.report(`${joinPath(at, name)}[${i}]`, `must be an object, is ${formatValue(values[i])}`)
      else yield [i, value]
    }
  }

  /**
   * Visits the strings of a list in steps. An element of another type is reported and skipped. A generator of the strings would take twice
   * as long.
   */
  *visitTexts(from: JsonObject, name: string, at: string, visit: (text: string, index: number) => void): Steps<void> {
    const values = this.readList(from, name, at)
    for (let i = 0; i < values.length; i++) {
      if (isPause(i)) yield
      const value = values[i]
      if (isShortText(value)) visit(value, i)
      else this.report(`${joinPath(at, name)}[${i}]`, `must be ${describeText(value)}, is ${formatValue(value)}`)
    }
  }

  #absent(value: unknown, wanted: string, at: string, name: string): undefined {
    if (value !== undefined && value !== null)
      this.report(joinPath(at, name), `must be ${wanted}, is ${formatValue(value)}`)
    return undefined
  }
}

/** True for the index of an element before which reading a long list may pause. */
export const isPause = (index: number): boolean => index > 0 && index % stride === 0

const describeText = (given: unknown): string =>
  typeof given === 'string' ? `at most ${maxTextLength} characters long` : 'a string'

export const joinPath = (at: string, name: string): string => (at === '' ? name : `${at}.${name}`)

/** An API object whose identity is known, and the reader for the rest of it. */
export interface IdentifiedObject {
  readonly key: string
  readonly reader: FieldReader
  readonly object: JsonObject
  readonly metadata: JsonObject
}

/** Namespace and name have at most 253 characters each. */
export const maxKeyLength = 600

/** Names reach rules and comments, so that only characters that the API server allows may be in them. */
const nameForm = /^[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$/

export const isObjectName = (name: string): boolean => nameForm.test(name)

/** Reads the identity of an object. If the object has none, returns the final result of decoding it. */
export function identifyObject(
  kind: string,
  json: unknown,
  scope: 'namespaced' | 'cluster',
): IdentifiedObject | DecodedRecord<never> {
  const object = asObject(json)
  const metadata = asObject(object?.metadata)
  const name = readString(metadata, 'name')
  const namespace = scope === 'namespaced' ? readString(metadata, 'namespace') : ''
  const key = scope === 'namespaced' ? `${namespace}/${name}` : name
  const shownKey = cutText(name === '' ? `${namespace}/(no name)` : key, maxKeyLength)
  const reader = new FieldReader(kind, shownKey, readUid(metadata))
  if (object === undefined) reader.report('', `must be an object, is ${formatValue(json)}`)
  else if (metadata === undefined) reader.report('metadata', 'is missing')
  else {
    if (scope === 'namespaced' && !isObjectName(namespace)) reportName(reader, metadata, 'namespace')
    if (!isObjectName(name)) reportName(reader, metadata, 'name')
    if (reader.listProblems().length === 0) return { key, reader, object, metadata }
  }
  return { key: '', record: undefined, problems: reader.listProblems() }
}

function reportName(reader: FieldReader, metadata: JsonObject, field: string): void {
  reader.report(`metadata.${field}`, `is not a valid name: ${formatValue(metadata[field])}`)
}

/** Returns Unix ms, or 0 if the time is absent or not valid. */
export function readTime(reader: FieldReader, from: JsonObject, name: string, at: string): number {
  const text = reader.readText(from, name, at) ?? ''
  if (text === '') return 0
  const time = parseTime(text)
  if (time !== undefined) return time
  reader.report(joinPath(at, name), `is not a valid RFC 3339 time: ${formatValue(text)}`)
  return 0
}

/** Returns Unix ms, or undefined if the text is not a time of RFC 3339. Fractions may have more digits than milliseconds. */
export function parseTime(text: string): number | undefined {
  const form = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/
  const time = form.test(text) ? Date.parse(text) : Number.NaN
  return Number.isNaN(time) ? undefined : time
}

export function readIp(reader: FieldReader, text: string, field: string): string | undefined {
  const ip = canonicalIp(text)
  if (ip === undefined) reader.report(field, `is not a valid IP address: ${formatValue(text)}`)
  return ip
}
