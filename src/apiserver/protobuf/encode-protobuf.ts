// Encodes objects in Kubernetes' protobuf form: bodies, lists and the events of a watch. A field that the JSON form leaves out is left out
// here as well: clients read it as its zero value. Pure.

import { encodeDelimited, encodeNumber } from '../../lib/protobuf-writer.ts'
import type { Json } from '../schema/json.ts'
import { int32, listOf, type ObjectSchema, objectOf, type Schema, string } from '../schema/schema.ts'
import { magic, messages } from './protobuf-fields.ts'

/** Encodes the fields that the schema and the table of numbers know. */
export function encodeMessage(object: Json, schema: ObjectSchema): Buffer {
  const numbers = messages[schema.name] ?? {}
  const parts: Buffer[] = []
  for (const name of Object.keys(object)) {
    const [number, field, value] = [numbers[name], schema.fields[name], object[name]]
    if (number !== undefined && field !== undefined && value !== undefined && value !== null) {
      parts.push(encodeField(number, value, field))
    }
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
      return encodeDelimited(number, encodeTime(String(value)))
    case 'int-or-string':
      return encodeDelimited(number, encodeIntOrString(value))
    case 'list':
      return Buffer.concat((value as readonly unknown[]).map((element) => encodeField(number, element, schema.of)))
    case 'map':
      return Buffer.concat(Object.entries(value as Json).map((entry) => encodeDelimited(number, encodeMapEntry(entry))))
    case 'object':
      return encodeDelimited(number, encodeMessage(value as Json, schema))
    case 'any':
      // Managed fields: the message FieldsV1 holds their JSON.
      return encodeDelimited(number, encodeDelimited(1, JSON.stringify(value)))
  }
}

const encodeMapEntry = ([key, value]: [string, unknown]): Buffer =>
  Buffer.concat([encodeDelimited(1, key), encodeDelimited(2, String(value))])

function encodeTime(text: string): Buffer {
  const milliseconds = Date.parse(text)
  const seconds = encodeNumber(1, Math.floor(milliseconds / 1000))
  // A MicroTime has six digits, of which a Date keeps three.
  const micros = Number(/\.(\d{1,6})/.exec(text)?.[1]?.padEnd(6, '0') ?? 0)
  return micros === 0 ? seconds : Buffer.concat([seconds, encodeNumber(2, micros * 1000)])
}

const encodeIntOrString = (value: unknown): Buffer =>
  typeof value === 'number'
    ? Buffer.concat([encodeNumber(1, 0), encodeNumber(2, value)])
    : Buffer.concat([encodeNumber(1, 1), encodeDelimited(3, String(value))])

/** Puts a message into the envelope of a body. */
export function encodeBody(kind: string, apiVersion: string, message: Buffer): Buffer {
  const typeMeta = Buffer.concat([encodeDelimited(1, apiVersion), encodeDelimited(2, kind)])
  return Buffer.concat([magic, encodeDelimited(1, typeMeta), encodeDelimited(2, message)])
}

const meta = (name: string): string => `io.k8s.apimachinery.pkg.apis.meta.v1.${name}`

const listMeta = objectOf(meta('ListMeta'), {
  resourceVersion: string,
  continue: string,
  remainingItemCount: { type: 'integer', format: 'int64' },
})

/** Encodes the content of a list. Lists of all kinds have the same form. */
export const encodeList = (metadata: Json, items: readonly Buffer[]): Buffer =>
  Buffer.concat([
    encodeDelimited(1, encodeMessage(metadata, listMeta)),
    ...items.map((item) => encodeDelimited(2, item)),
  ])

/** Encodes one event of a watch as it goes over the wire: its length, then the event with a body in it. */
export function encodeWatchFrame(type: string, body: Buffer): Buffer {
  const event = Buffer.concat([encodeDelimited(1, type), encodeDelimited(2, encodeDelimited(1, body))])
  const length = Buffer.alloc(4)
  length.writeUInt32BE(event.length)
  return Buffer.concat([length, event])
}

const statusCause = objectOf(meta('StatusCause'), { reason: string, message: string, field: string })
const statusDetails = objectOf(meta('StatusDetails'), {
  name: string,
  group: string,
  kind: string,
  uid: string,
  causes: listOf(statusCause),
  retryAfterSeconds: int32,
})
const statusSchema = objectOf(meta('Status'), {
  metadata: listMeta,
  status: string,
  message: string,
  reason: string,
  details: statusDetails,
  code: int32,
})

export const encodeStatus = (status: Json): Buffer => encodeBody('Status', 'v1', encodeMessage(status, statusSchema))
