// Encodes API objects as the API server does, by the schemas and field numbers of the embedded API server: a second source beside the tables
// of src/kube/protobuf, so that a wrong number in either shows.

import type { Json } from '../../src/apiserver/schema/json.ts'
import { messages } from '../../src/apiserver/schema/protobuf-fields.ts'
import type { ObjectSchema, Schema } from '../../src/apiserver/schema/schema.ts'

export function encodeVarint(value: number): Buffer {
  let rest = BigInt.asUintN(64, BigInt(value))
  const bytes: number[] = []
  do {
    const low = Number(rest & 0x7fn)
    rest >>= 7n
    bytes.push(rest === 0n ? low : low | 0x80)
  } while (rest !== 0n)
  return Buffer.from(bytes)
}

export const encodeNumber = (field: number, value: number): Buffer =>
  Buffer.concat([encodeVarint(field << 3), encodeVarint(value)])

export const encodeDelimited = (field: number, value: string | Buffer): Buffer => {
  const bytes = Buffer.from(value as string)
  return Buffer.concat([encodeVarint((field << 3) | 2), encodeVarint(bytes.length), bytes])
}

/** Encodes the fields that the schema and the numbers know. */
export function encodeMessage(object: Json, schema: ObjectSchema): Buffer {
  const numbers = messages[schema.name] ?? {}
  const parts: Buffer[] = []
  for (const [name, number] of Object.entries(numbers).sort(([, a], [, b]) => a - b)) {
    const field = schema.fields[name]
    const value = object[name]
    if (field !== undefined && value !== undefined && value !== null) parts.push(encodeField(number, value, field))
  }
  return Buffer.concat(parts)
}

function encodeField(number: number, value: unknown, schema: Schema): Buffer {
  switch (schema.type) {
    case 'string':
      return encodeDelimited(number, String(value))
    case 'boolean':
      return encodeNumber(number, value === true ? 1 : 0)
    case 'integer':
      return encodeNumber(number, Number(value))
    case 'time':
      return encodeDelimited(number, encodeNumber(1, Date.parse(String(value)) / 1000))
    case 'int-or-string':
      return encodeDelimited(
        number,
        typeof value === 'number' ? encodeNumber(2, value) : encodeDelimited(3, String(value)),
      )
    case 'list':
      return Buffer.concat((value as unknown[]).map((element) => encodeField(number, element, schema.of)))
    case 'map':
      return Buffer.concat(Object.entries(value as Json).map((entry) => encodeDelimited(number, encodeMapEntry(entry))))
    case 'object':
      return encodeDelimited(number, encodeMessage(value as Json, schema))
    default:
      return Buffer.alloc(0)
  }
}

const encodeMapEntry = ([key, value]: [string, unknown]): Buffer =>
  Buffer.concat([encodeDelimited(1, key), encodeDelimited(2, String(value))])

/** Puts a message into the envelope of a body. */
export function encodeBody(kind: string, apiVersion: string, raw: Buffer): Buffer {
  const typeMeta = Buffer.concat([encodeDelimited(1, apiVersion), encodeDelimited(2, kind)])
  const fields = [encodeDelimited(1, typeMeta), encodeDelimited(2, raw), encodeDelimited(3, ''), encodeDelimited(4, '')]
  return Buffer.concat([Buffer.from('k8s\0'), ...fields])
}

export const encodeWatchEvent = (type: string, body: Buffer): Buffer =>
  Buffer.concat([encodeDelimited(1, type), encodeDelimited(2, encodeDelimited(1, body))])

/** Puts the length before an event, as in the stream of a watch. */
export function encodeFrame(event: Buffer): Buffer {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(event.length)
  return Buffer.concat([length, event])
}

export const encodeList = (version: string, next: string, items: readonly Buffer[]): Buffer =>
  Buffer.concat([
    encodeDelimited(1, Buffer.concat([encodeDelimited(2, version), encodeDelimited(3, next)])),
    ...items.map((item) => encodeDelimited(2, item)),
  ])
