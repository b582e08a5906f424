// Reads protobuf messages into objects of the form that their JSON has, with only those fields that a table names. Everything else is
// skipped by its length, so that owner references and pod names cost nothing.

import { WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'
import { type Steps, stride } from '../../lib/yielding.ts'
import type { JsonObject } from '../decode/fields.ts'
import type { OrdinaryObject } from '../decode/ordinary-object.ts'
import { enterValue, KnownKeys } from './known-keys.ts'
import { readCachedText } from './text-cache.ts'

type MutableObject = Record<string, unknown>

/** One field of a message: its number, the name that JSON gives it, and how its value is stored. */
export interface MessageField {
  readonly number: number
  readonly wireType: number
  /** The table of a message within the message. */
  readonly table?: MessageTable
  /** The name of a single message within the message. */
  readonly child?: string
  /** Reads the value at the cursor and stores it in `object`. */
  read(object: MutableObject, cursor: WireCursor, end: number): void
}

export interface MessageTable {
  /** The full name of the message in the API's descriptors. */
  readonly name: string
  /** Field numbers by name, to compare with the descriptors. */
  readonly numbers: Readonly<Record<string, number>>
  readonly byNumber: readonly (MessageField | undefined)[]
  /** Reads an ordinary object straight into its record. Undefined if the object is not ordinary: then it is read by this table. */
  readonly readOrdinary?: (raw: UnreadBytes) => OrdinaryObject | undefined
}

export type FieldMaker = (name: string) => MessageField

/** Describes the fields of a message that are read. */
export function describeMessage(name: string, makers: Readonly<Record<string, FieldMaker>>): MessageTable {
  const byNumber: (MessageField | undefined)[] = []
  const numbers: Record<string, number> = {}
  for (const [fieldName, make] of Object.entries(makers)) {
    const field = make(fieldName)
    while (byNumber.length < field.number) byNumber.push(undefined)
    byNumber[field.number] = field
    numbers[fieldName] = field.number
  }
  return { name, numbers, byNumber }
}

/** The tag of a field: its number and its wire type. */
export function tagOf(table: MessageTable, name: string): number {
  const field = table.byNumber[table.numbers[name] ?? 0]
  if (field === undefined) throw new TypeError(`${table.name} has no field ${name}`)
  return (field.number << 3) | field.wireType
}

/** The table of a message within the message. */
export function childOf(table: MessageTable, name: string): MessageTable {
  const child = table.byNumber[table.numbers[name] ?? 0]?.table
  if (child === undefined) throw new TypeError(`${table.name} has no message ${name}`)
  return child
}

/** Passes over a field that the table does not name. Returns false if the table names it. */
export function skipUnnamed(cursor: WireCursor, tag: number, end: number, table: MessageTable): boolean {
  if (table.byNumber[tag >>> 3] !== undefined) return false
  cursor.skipField(tag & 7, end)
  return true
}

/** The value of a field that JSON leaves out if it is empty, after a text of it was read: an empty one changes nothing. */
export const replaceText = (before: string, text: string): string => (text === '' ? before : text)

/** A part of a body that is not read yet. Every object has several, and a Buffer for each would cost more than this. */
export class UnreadBytes {
  readonly bytes: Buffer
  readonly at: number
  readonly end: number

  constructor(bytes: Buffer, at = 0, end = bytes.length) {
    this.bytes = bytes
    this.at = at
    this.end = end
  }
}

/** Throws a SyntaxError if the bytes are not such a message. */
export function readMessage({ bytes, at, end }: UnreadBytes, table: MessageTable): JsonObject {
  return readRange(new WireCursor(bytes, at), end, table)
}

/** As `readMessage`, in steps: a large message takes tens of milliseconds. */
export const readMessageInSteps = ({ bytes, at, end }: UnreadBytes, table: MessageTable): Steps<JsonObject> =>
  readRangeInSteps(new WireCursor(bytes, at), end, table)

/** The elements of a list are small, so that each is read at once. */
function* readRangeInSteps(cursor: WireCursor, end: number, table: MessageTable): Steps<MutableObject> {
  const object: MutableObject = {}
  let seen = 0
  while (cursor.at < end) {
    if (++seen % stride === 0) yield
    const start = cursor.at
    const tag = cursor.readVarint(end)
    const field = table.byNumber[tag >>> 3]
    if (field?.child === undefined || field.table === undefined || field.wireType !== (tag & 7)) {
      cursor.at = start
      readField(object, cursor, end, table)
    } else object[field.child] = yield* readRangeInSteps(cursor, cursor.readFieldEnd(end), field.table)
  }
  return object
}

/** Reads the bytes from the cursor up to `end`. Tables do not refer to themselves, so that messages nest as deep as tables do. */
function readRange(cursor: WireCursor, end: number, table: MessageTable): MutableObject {
  const object: MutableObject = {}
  while (cursor.at < end) readField(object, cursor, end, table)
  return object
}

function readField(object: MutableObject, cursor: WireCursor, end: number, table: MessageTable): void {
  const tag = cursor.readVarint(end)
  const wireType = tag & 7
  const field = table.byNumber[tag >>> 3]
  if (field === undefined) cursor.skipField(wireType, end)
  else if (field.wireType === wireType) field.read(object, cursor, end)
  else throw new SyntaxError(`field ${field.number} of ${table.name} has the wire type ${wireType}`)
}

// ---- Kinds of fields. The API server always writes fields that are not pointers; where JSON leaves out their zero value, so do we. ----

/** A string that seldom repeats, and that JSON leaves out if it is empty. */
export const readUniqueString =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      const text = cursor.readText(end)
      if (text !== '') object[name] = text
    },
  })

/** A string that JSON leaves out if it is empty. */
export const readString =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      const text = readCachedText(cursor, end)
      if (text !== '') object[name] = text
    },
  })

/** A string that is there even if it is empty: a pointer, or a field without `omitempty`. */
export const readStringOrEmpty =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      object[name] = readCachedText(cursor, end)
    },
  })

/** A number that JSON leaves out if it is 0. */
export const readInteger =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.varint,
    read(object, cursor, end) {
      const value = cursor.readVarint(end)
      if (value !== 0) object[name] = value
    },
  })

/** A number that is there even if it is 0. */
export const readIntegerOrZero =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.varint,
    read(object, cursor, end) {
      object[name] = cursor.readVarint(end)
    },
  })

/** A pointer to a boolean. */
export const readFlag =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.varint,
    read(object, cursor, end) {
      object[name] = cursor.readVarint(end) !== 0
    },
  })

/** A message that is left unread. */
export const readBytes =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      object[name] = takeField(cursor, end)
    },
  })

export const readStrings =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read: (object, cursor, end) => listOf(object, name).push(cursor.readText(end)),
  })

export const readChild =
  (number: number, table: MessageTable): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    table,
    child: name,
    read(object, cursor, end) {
      object[name] = readRange(cursor, cursor.readFieldEnd(end), table)
    },
  })

export const readChildren =
  (number: number, table: MessageTable): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    table,
    read: (object, cursor, end) => listOf(object, name).push(readRange(cursor, cursor.readFieldEnd(end), table)),
  })

/** Leaves each element unread, so that one that is not valid costs itself only. */
export const readEach =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read: (object, cursor, end) => listOf(object, name).push(takeField(cursor, end)),
  })

/** A map of strings, of which only the named keys are kept. */
export const readMap = (number: number, keys: readonly string[]): FieldMaker =>
  readEntries(number, keys, (cursor, end) => cursor.readText(end))

/** As `readMap`, for messages that JSON writes as one text: `inner` is the field of the message that has it. */
export const readMessageMap =
  (number: number, keys: readonly string[], table: MessageTable, inner: string): FieldMaker =>
  (name) => ({
    ...readEntries(
      number,
      keys,
      (cursor, end) => readRange(cursor, cursor.readFieldEnd(end), table)[inner] ?? '',
    )(name),
    table,
  })

/** A map of which only the named keys are kept. Other keys are compared as bytes, and their values are skipped. */
function readEntries(
  number: number,
  keys: readonly string[],
  readValue: (cursor: WireCursor, end: number) => unknown,
): FieldMaker {
  const known = new KnownKeys(keys)
  return (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      const stop = cursor.readFieldEnd(end)
      const key = known.readKey(cursor, stop)
      if (key === undefined) return
      const entries = (object[name] ?? {}) as MutableObject
      entries[key] = enterValue(cursor, stop) ? readValue(cursor, stop) : ''
      object[name] = entries
      cursor.at = stop
    },
  })
}

export const timestamp = describeMessage('io.k8s.apimachinery.pkg.apis.meta.v1.Time', {
  seconds: readInteger(1),
  nanos: readInteger(2),
})

/** The latest time that a Date can hold, in seconds. */
const maxSeconds = 8.64e12

/** A time, in the form of JSON. An unset time is an empty message, and left out. */
export const readTimestamp =
  (number: number): FieldMaker =>
  (name) => ({
    number,
    wireType: wireTypes.delimited,
    read(object, cursor, end) {
      const { seconds = 0 } = readRange(cursor, cursor.readFieldEnd(end), timestamp)
      if (typeof seconds !== 'number' || seconds === 0) return
      if (Math.abs(seconds) > maxSeconds) throw new SyntaxError('a protobuf time is out of range')
      object[name] = `${new Date(seconds * 1000).toISOString().slice(0, -'.000Z'.length)}Z`
    },
  })

/** Passes over a field, and returns where it is. */
export function takeField(cursor: WireCursor, end: number): UnreadBytes {
  const stop = cursor.readFieldEnd(end)
  const field = new UnreadBytes(cursor.bytes, cursor.at, stop)
  cursor.at = stop
  return field
}

function listOf(object: MutableObject, name: string): unknown[] {
  const list = object[name]
  if (Array.isArray(list)) return list
  const created: unknown[] = []
  object[name] = created
  return created
}
