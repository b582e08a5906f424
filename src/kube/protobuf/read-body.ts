// Reads bodies in Kubernetes' protobuf form: an object in its envelope, the events of a watch, a page of a list, a Status.

import { WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'
import type { Steps } from '../../lib/yielding.ts'
import { type JsonObject, makeUnreadable } from '../decode/fields.ts'
import { envelope, identity, objectList, status, watchEvent } from './message-tables.ts'
import {
  childOf,
  type MessageTable,
  readMessage,
  readMessageInSteps,
  skipUnnamed,
  tagOf,
  takeField,
  UnreadBytes,
} from './read-message.ts'
import { readCachedText } from './text-cache.ts'

export const protobufType = 'application/vnd.kubernetes.protobuf'

export const isProtobufType = (contentType: string | undefined): boolean =>
  contentType?.startsWith(protobufType) === true

/** The four bytes that every body starts with: `k8s` and a zero. */
export const magic = Buffer.from([0x6b, 0x38, 0x73, 0x00])

/** Metadata is field 1 of every object. */
const metadataTag = (1 << 3) | wireTypes.delimited

interface Envelope {
  readonly kind: string
  readonly raw: UnreadBytes
}

const noBytes = new UnreadBytes(Buffer.alloc(0))

const typeMeta = childOf(envelope, 'typeMeta')
const rawExtension = childOf(watchEvent, 'object')
const tags = {
  type: tagOf(watchEvent, 'type'),
  object: tagOf(watchEvent, 'object'),
  body: tagOf(rawExtension, 'raw'),
  typeMeta: tagOf(envelope, 'typeMeta'),
  raw: tagOf(envelope, 'raw'),
  kind: tagOf(typeMeta, 'kind'),
} as const

/** Every event has an envelope, so this is read without the table. */
function openEnvelope({ bytes, at, end }: UnreadBytes): Envelope {
  const start = at + magic.length
  const cursor = new WireCursor(bytes, at)
  if (start > end || !cursor.matches(magic, start)) {
    throw new SyntaxError('a body does not begin as a protobuf body')
  }
  cursor.at = start
  let kind = ''
  let raw = noBytes
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === tags.raw) raw = takeField(cursor, end)
    else if (tag === tags.typeMeta) kind = readKind(cursor, cursor.readFieldEnd(end))
    else skipOrRefuse(cursor, tag, end, envelope)
  }
  return { kind, raw }
}

function readKind(cursor: WireCursor, end: number): string {
  let kind = ''
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === tags.kind) kind = readCachedText(cursor, end)
    else cursor.skipField(tag & 7, end)
  }
  return kind
}

/** Reads an event of a watch, in the form that its JSON has. Throws a SyntaxError. */
export function readWatchEvent(frame: Buffer, table: MessageTable): JsonObject {
  const { type, kind, raw } = openEvent(frame)
  return { type, object: kind === 'Status' ? readMessage(raw, status) : readObject(raw, table) }
}

/** As `readWatchEvent`, for an event that may be large. */
export function* readWatchEventInSteps(frame: Buffer, table: MessageTable): Steps<JsonObject> {
  const { type, kind, raw } = openEvent(frame)
  if (kind === 'Status') return { type, object: readMessage(raw, status) }
  try {
    return { type, object: yield* readMessageInSteps(raw, table) }
  } catch (error) {
    return { type, object: makeUnreadable(readIdentity(raw), error) }
  }
}

function openEvent(frame: Buffer): Envelope & { readonly type: string } {
  const end = frame.length
  const cursor = new WireCursor(frame)
  let type = ''
  let body: UnreadBytes | undefined
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === tags.type) type = readCachedText(cursor, end)
    else if (tag === tags.object) body = readBody(cursor, cursor.readFieldEnd(end))
    else skipOrRefuse(cursor, tag, end, watchEvent)
  }
  if (body === undefined) throw new SyntaxError('a watch event has no object')
  const { kind, raw } = openEnvelope(body)
  return { type, kind, raw }
}

function readBody(cursor: WireCursor, end: number): UnreadBytes | undefined {
  let body: UnreadBytes | undefined
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === tags.body) body = takeField(cursor, end)
    else skipOrRefuse(cursor, tag, end, rawExtension)
  }
  return body
}

/** Passes over a field that the table does not name. A field that it names has another wire type than it should. */
function skipOrRefuse(cursor: WireCursor, tag: number, end: number, table: MessageTable): void {
  if (!skipUnnamed(cursor, tag, end, table)) {
    throw new SyntaxError(`field ${tag >>> 3} of ${table.name} has the wire type ${tag & 7}`)
  }
}

/** Reads a page of a list, in the form that its JSON has. Throws a SyntaxError if the page itself is not valid. */
export function readList(body: Buffer, table: MessageTable): JsonObject {
  const { raw } = openEnvelope(new UnreadBytes(body))
  const { metadata = {}, items } = readMessage(raw, objectList)
  const elements = Array.isArray(items) ? items : []
  return { metadata, items: elements.map((item: UnreadBytes) => readObject(item, table)) }
}

/** Reads one object. If it is not valid, an UnreadableObject takes its place: one object costs itself only. */
function readObject(raw: UnreadBytes, table: MessageTable): JsonObject {
  try {
    return table.readOrdinary?.(raw) ?? readMessage(raw, table)
  } catch (error) {
    return makeUnreadable(readIdentity(raw), error)
  }
}

/** The metadata comes first, so that it can often be read although a later field cannot. */
function readIdentity({ bytes, at, end }: UnreadBytes): unknown {
  try {
    const cursor = new WireCursor(bytes, at)
    if (cursor.readVarint(end) !== metadataTag) return undefined
    return readMessage(new UnreadBytes(bytes, at, cursor.readFieldEnd(end)), identity).metadata
  } catch {
    return undefined
  }
}

/** Reads the Status of a refused request; the text of the body if it is something else. */
export function readStatus(body: Buffer): unknown {
  try {
    const { kind, raw } = openEnvelope(new UnreadBytes(body))
    return kind === 'Status' ? readMessage(raw, status) : `an object of the kind ${kind}`
  } catch {
    return body.toString('utf8')
  }
}
