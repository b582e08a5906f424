// Reads bodies in Kubernetes' protobuf form: an object in its envelope, the events of a watch, a page of a list, a Status.

import { WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'
import type { Steps } from '../../lib/yielding.ts'
import { asObject, type JsonObject, makeUnreadable } from '../decode/fields.ts'
import { envelope, identity, objectList, status, watchEvent } from './message-tables.ts'
import { type MessageTable, readMessage, readMessageInSteps, UnreadBytes } from './read-message.ts'

export const protobufType = 'application/vnd.kubernetes.protobuf'

export const isProtobufType = (contentType: string | undefined): boolean =>
  contentType?.startsWith(protobufType) === true

/** The four bytes that every body starts with: `k8s` and a zero. */
export const magic = Buffer.from([0x6b, 0x38, 0x73, 0x00])

/** Metadata is field 1 of every object. */
const metadataTag = (1 << 3) | wireTypes.delimited

interface Envelope {
  readonly kind: unknown
  readonly raw: UnreadBytes
}

const noBytes = new UnreadBytes(Buffer.alloc(0))

function openEnvelope({ bytes, at, end }: UnreadBytes): Envelope {
  const start = at + magic.length
  if (start > end || !new WireCursor(bytes, at).matches(magic, start)) {
    throw new SyntaxError('a body does not begin as a protobuf body')
  }
  const { typeMeta, raw } = readMessage(new UnreadBytes(bytes, start, end), envelope)
  return { kind: asObject(typeMeta)?.kind, raw: raw instanceof UnreadBytes ? raw : noBytes }
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

function openEvent(frame: Buffer): Envelope & { readonly type: unknown } {
  const { type, object } = readMessage(new UnreadBytes(frame), watchEvent)
  const body = asObject(object)?.raw
  if (!(body instanceof UnreadBytes)) throw new SyntaxError('a watch event has no object')
  const { kind, raw } = openEnvelope(body)
  return { type, kind, raw }
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
    return readMessage(raw, table)
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
    return kind === 'Status' ? readMessage(raw, status) : `an object of the kind ${String(kind)}`
  } catch {
    return body.toString('utf8')
  }
}
