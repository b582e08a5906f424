// Decodes request bodies in Kubernetes' protobuf form, which kubectl's own commands send. Pure.

import { WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'
import { ensureObject, type MutableJson, parseJson } from '../schema/json.ts'
import type { ObjectSchema, Schema } from '../schema/schema.ts'
import { magic, messages } from './protobuf-fields.ts'

/** Returns the object in the form that its JSON would have. Throws a SyntaxError. */
export function decodeProtobuf(bytes: Buffer, schema: ObjectSchema): MutableJson {
  if (!bytes.subarray(0, 4).equals(magic))
    throw new SyntaxError('the body does not begin as a Kubernetes protobuf message')
  let raw: Buffer | undefined
  let type: MutableJson = {}
  for (const field of readFields(bytes.subarray(4))) {
    if (field.number === 1) type = decodeMessage(bytesOf(field), typeMeta, 0)
    if (field.number === 2) raw = bytesOf(field)
  }
  if (raw === undefined) throw new SyntaxError('the protobuf envelope is empty')
  return { ...type, ...decodeMessage(raw, schema, 0) }
}

const typeMeta: ObjectSchema = {
  type: 'object',
  name: 'TypeMeta',
  fields: { apiVersion: { type: 'string' }, kind: { type: 'string' } },
}

interface WireField {
  readonly number: number
  readonly value: number | Buffer
}

function* readFields(bytes: Buffer): Generator<WireField> {
  const cursor = new WireCursor(bytes)
  const end = bytes.length
  while (cursor.at < end) {
    const key = cursor.readVarint(end)
    const wireType = key & 7
    if (wireType === wireTypes.varint) yield { number: key >>> 3, value: cursor.readVarint(end) }
    else if (wireType === wireTypes.delimited) yield { number: key >>> 3, value: readBytes(cursor, end) }
    else throw new SyntaxError(`a protobuf field has the unexpected wire type ${wireType}`)
  }
}

function readBytes(cursor: WireCursor, end: number): Buffer {
  const stop = cursor.readFieldEnd(end)
  const start = cursor.at
  cursor.at = stop
  return cursor.bytes.subarray(start, stop)
}

function decodeMessage(bytes: Buffer, message: ObjectSchema, depth: number): MutableJson {
  if (depth > 20) throw new SyntaxError('protobuf messages nest too deeply')
  const numbers = messages[message.name]
  if (numbers === undefined) throw new SyntaxError(`${message.name} is only read as JSON`)
  const names = new Map(Object.entries(numbers).map(([name, number]) => [number, name]))
  const object: MutableJson = {}
  for (const field of readFields(bytes)) {
    const name = names.get(field.number)
    const schema = name === undefined ? undefined : message.fields[name]
    if (name === undefined || schema === undefined) continue
    if (schema.type === 'list') append(object, name, decodeField(field, schema.of, depth))
    else if (schema.type === 'map') decodeMapEntry(bytesOf(field), object, name)
    else object[name] = decodeField(field, schema, depth)
  }
  return object
}

function append(object: MutableJson, name: string, element: unknown): void {
  const list = object[name]
  if (Array.isArray(list)) list.push(element)
  else object[name] = [element]
}

function decodeField(field: WireField, schema: Schema, depth: number): unknown {
  switch (schema.type) {
    case 'boolean':
      return field.value !== 0
    case 'integer':
      return typeof field.value === 'number' ? field.value : refuseWireType()
    case 'string':
      return bytesOf(field).toString('utf8')
    case 'time':
      return decodeTime(bytesOf(field))
    case 'int-or-string':
      return decodeIntOrString(bytesOf(field))
    case 'object':
      return decodeMessage(bytesOf(field), schema, depth + 1)
    default:
      return decodeManagedFields(bytesOf(field))
  }
}

function bytesOf({ value }: WireField): Buffer {
  return typeof value === 'number' ? refuseWireType() : value
}

function refuseWireType(): never {
  throw new SyntaxError('a protobuf field has another type than the API says')
}

/** Adds one entry to a map. All maps of the API have strings as keys and values. `__proto__` is dropped, as in JSON bodies. */
function decodeMapEntry(bytes: Buffer, object: MutableJson, name: string): void {
  let key = ''
  let value = ''
  for (const field of readFields(bytes)) {
    if (field.number === 1) key = bytesOf(field).toString('utf8')
    if (field.number === 2) value = bytesOf(field).toString('utf8')
  }
  if (key !== '__proto__') ensureObject(object, name)[key] = value
}

const valuesByNumber = (bytes: Buffer): ReadonlyMap<number, number | Buffer> =>
  new Map([...readFields(bytes)].map(({ number, value }) => [number, value]))

function decodeTime(bytes: Buffer): string | undefined {
  const fields = valuesByNumber(bytes)
  const [seconds, nanos] = [Number(fields.get(1) ?? 0), Number(fields.get(2) ?? 0)]
  // An unset time is an empty message.
  if (seconds === 0 && nanos === 0) return undefined
  const milliseconds = seconds * 1000
  if (!Number.isFinite(milliseconds) || Math.abs(milliseconds) > 8.64e15)
    throw new SyntaxError('a protobuf time is out of range')
  const whole = new Date(milliseconds).toISOString().slice(0, -'.000Z'.length)
  // Only a MicroTime has a fraction, and Go's clients accept exactly six digits.
  const micros = String(Math.floor(nanos / 1000)).padStart(6, '0')
  return nanos === 0 ? `${whole}Z` : `${whole}.${micros}Z`
}

function decodeIntOrString(bytes: Buffer): number | string {
  const fields = valuesByNumber(bytes)
  const text = fields.get(3)
  if (fields.get(1) === 1) return Buffer.isBuffer(text) ? text.toString('utf8') : ''
  return Number(fields.get(2) ?? 0)
}

/** The message FieldsV1 holds JSON. */
function decodeManagedFields(bytes: Buffer): unknown {
  const json = valuesByNumber(bytes).get(1)
  return Buffer.isBuffer(json) && json.length > 0 ? parseJson(json.toString('utf8')) : undefined
}
