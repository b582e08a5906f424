// Decodes request bodies in Kubernetes' protobuf form, which kubectl's own commands send; responses are always JSON. Pure.

import { ensureObject, type MutableJson } from './json.ts'
import { messages } from './protobuf-fields.ts'
import type { ObjectSchema, Schema } from './schema.ts'

/** The four bytes that every Kubernetes protobuf body starts with, before the envelope. */
const magic = Buffer.from([0x6b, 0x38, 0x73, 0x00])

export const protobufType = 'application/vnd.kubernetes.protobuf'

/** True if the schema has field numbers. Pods and nodes have none: they have too many parts that this server does not read. */
export const hasProtobufForm = (schema: ObjectSchema): boolean => messages[schema.name] !== undefined

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
  readonly value: bigint | Buffer
}

/** The two wire types that Kubernetes' messages use. */
const wireTypes = { varint: 0, lengthDelimited: 2 }

function* readFields(bytes: Buffer): Generator<WireField> {
  let at = 0
  const readVarint = (): bigint => {
    let value = 0n
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = bytes[at++]
      if (byte === undefined) break
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return BigInt.asIntN(64, value)
    }
    throw new SyntaxError('a protobuf number is cut off')
  }
  const readBytes = (): Buffer => {
    const length = Number(readVarint())
    if (length < 0 || at + length > bytes.length) throw new SyntaxError('a protobuf field is cut off')
    at += length
    return bytes.subarray(at - length, at)
  }
  while (at < bytes.length) {
    const key = Number(readVarint())
    const wireType = key & 7
    if (wireType === wireTypes.varint) yield { number: key >> 3, value: readVarint() }
    else if (wireType === wireTypes.lengthDelimited) yield { number: key >> 3, value: readBytes() }
    else throw new SyntaxError(`a protobuf field has the unexpected wire type ${wireType}`)
  }
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
      return field.value !== 0n
    case 'integer':
      return typeof field.value === 'bigint' ? Number(field.value) : refuseWireType()
    case 'string':
      return bytesOf(field).toString('utf8')
    case 'time':
      return decodeTime(bytesOf(field))
    case 'int-or-string':
      return decodeIntOrString(bytesOf(field))
    case 'object':
      return decodeMessage(bytesOf(field), schema, depth + 1)
    default:
      // Only the server writes managed fields; those that a client sends are ignored.
      return undefined
  }
}

function bytesOf({ value }: WireField): Buffer {
  return typeof value === 'bigint' ? refuseWireType() : value
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

const valuesByNumber = (bytes: Buffer): ReadonlyMap<number, bigint | Buffer> =>
  new Map([...readFields(bytes)].map(({ number, value }) => [number, value]))

function decodeTime(bytes: Buffer): string | undefined {
  const fields = valuesByNumber(bytes)
  const [seconds, nanos] = [Number(fields.get(1) ?? 0n), Number(fields.get(2) ?? 0n)]
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
  if (fields.get(1) === 1n) return Buffer.isBuffer(text) ? text.toString('utf8') : ''
  return Number(fields.get(2) ?? 0n)
}
