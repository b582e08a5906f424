// Kubernetes' binary form of request bodies, which kubectl's own commands send; answers are always JSON. Pure.

import type { MutableJson } from './json.ts'
import { messages } from './protobuf-fields.ts'
import type { Schema, Shape } from './schema.ts'

/** The four bytes that open every such body, before the envelope. */
const magic = Buffer.from([0x6b, 0x38, 0x73, 0x00])

export const protobufType = 'application/vnd.kubernetes.protobuf'

/** Whether every part of the shape has field numbers; pods and nodes have too many parts that nobody reads here. */
export const isProtobufKnown = (shape: Shape): boolean => messages[shape.name] !== undefined

/** The object as its JSON would be. Throws a SyntaxError. */
export function decodeProtobuf(bytes: Buffer, shape: Shape): MutableJson {
  if (!bytes.subarray(0, 4).equals(magic))
    throw new SyntaxError('the body does not begin as a Kubernetes protobuf message')
  let raw: Buffer | undefined
  let type: MutableJson = {}
  for (const field of fieldsOf(bytes.subarray(4))) {
    if (field.number === 1) type = decodeMessage(bytesOf(field), typeMeta, 0)
    if (field.number === 2) raw = bytesOf(field)
  }
  if (raw === undefined) throw new SyntaxError('the protobuf envelope is empty')
  return { ...type, ...decodeMessage(raw, shape, 0) }
}

const typeMeta: Shape = {
  type: 'object',
  name: 'TypeMeta',
  fields: { apiVersion: { type: 'string' }, kind: { type: 'string' } },
}

interface Field {
  readonly number: number
  readonly value: bigint | Buffer
}

function* fieldsOf(bytes: Buffer): Generator<Field> {
  let at = 0
  const varint = (): bigint => {
    let value = 0n
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = bytes[at++]
      if (byte === undefined) break
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return BigInt.asIntN(64, value)
    }
    throw new SyntaxError('a protobuf number is cut off')
  }
  while (at < bytes.length) {
    const key = Number(varint())
    const number = key >> 3
    switch (key & 7) {
      case 0:
        yield { number, value: varint() }
        break
      case 2: {
        const length = Number(varint())
        if (length < 0 || at + length > bytes.length) throw new SyntaxError('a protobuf field is cut off')
        yield { number, value: bytes.subarray(at, at + length) }
        at += length
        break
      }
      default:
        throw new SyntaxError(`a protobuf field has the unexpected wire type ${key & 7}`)
    }
  }
}

function decodeMessage(bytes: Buffer, shape: Shape, depth: number): MutableJson {
  if (depth > 20) throw new SyntaxError('protobuf messages nest too deeply')
  const numbers = messages[shape.name]
  if (numbers === undefined) throw new SyntaxError(`${shape.name} is only read as JSON`)
  const names = new Map(Object.entries(numbers).map(([name, number]) => [number, name]))
  const made: MutableJson = {}
  for (const field of fieldsOf(bytes)) {
    const name = names.get(field.number)
    const schema = name === undefined ? undefined : shape.fields[name]
    if (name === undefined || schema === undefined) continue
    if (schema.type === 'list') {
      const list = (made[name] ?? []) as unknown[]
      list.push(decodeField(field, schema.of, depth))
      made[name] = list
    } else if (schema.type === 'map') {
      const entry = decodeEntry(bytesOf(field))
      if (entry.key !== '__proto__')
        made[name] = { ...(made[name] as MutableJson | undefined), [entry.key]: entry.value }
    } else made[name] = decodeField(field, schema, depth)
  }
  return made
}

function decodeField(field: Field, schema: Schema, depth: number): unknown {
  switch (schema.type) {
    case 'boolean':
      return field.value !== 0n
    case 'integer':
      return typeof field.value === 'bigint' ? Number(field.value) : wrongWire()
    case 'string':
      return bytesOf(field).toString('utf8')
    case 'time':
      return decodeTime(bytesOf(field))
    case 'int-or-string':
      return decodeIntOrString(bytesOf(field))
    case 'object':
      return decodeMessage(bytesOf(field), schema, depth + 1)
    default:
      // Managed fields are the server's own; what a client sends in them is not taken over.
      return undefined
  }
}

function bytesOf({ value }: Field): Buffer {
  return typeof value === 'bigint' ? wrongWire() : value
}

function wrongWire(): never {
  throw new SyntaxError('a protobuf field has another type than the API says')
}

/** All maps are of strings. */
function decodeEntry(bytes: Buffer): { key: string; value: string } {
  const entry = { key: '', value: '' }
  for (const field of fieldsOf(bytes)) {
    if (field.number === 1) entry.key = bytesOf(field).toString('utf8')
    if (field.number === 2) entry.value = bytesOf(field).toString('utf8')
  }
  return entry
}

function numbersOf(bytes: Buffer): ReadonlyMap<number, bigint | Buffer> {
  return new Map([...fieldsOf(bytes)].map(({ number, value }) => [number, value]))
}

function decodeTime(bytes: Buffer): string | undefined {
  const fields = numbersOf(bytes)
  const [seconds, nanos] = [Number(fields.get(1) ?? 0n), Number(fields.get(2) ?? 0n)]
  // An unset time is an empty message.
  if (seconds === 0 && nanos === 0) return undefined
  const milliseconds = seconds * 1000
  if (!Number.isFinite(milliseconds) || Math.abs(milliseconds) > 8.64e15) throw new SyntaxError('no time')
  const whole = new Date(milliseconds).toISOString().slice(0, -'.000Z'.length)
  // Only a MicroTime has a fraction, and Go's clients read it with six digits, no more and no fewer.
  const micros = String(Math.floor(nanos / 1000)).padStart(6, '0')
  return nanos === 0 ? `${whole}Z` : `${whole}.${micros}Z`
}

function decodeIntOrString(bytes: Buffer): number | string {
  const fields = numbersOf(bytes)
  const text = fields.get(3)
  if (fields.get(1) === 1n) return Buffer.isBuffer(text) ? text.toString('utf8') : ''
  return Number(fields.get(2) ?? 0n)
}
