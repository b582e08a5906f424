// Parses what the API server sends, as JSON or as protobuf: the events of a watch and the pages of a list.

import { excerptJson, parseBounded, parseBoundedInSteps } from '../../lib/bounded-json.ts'
import { ProxyError } from '../../lib/errors.ts'
import type { Steps } from '../../lib/yielding.ts'
import { asObject, type JsonObject, readString } from '../decode/fields.ts'
import { readList, readWatchEvent, readWatchEventInSteps } from '../protobuf/read-body.ts'
import { readEventIdentity } from '../protobuf/read-identity.ts'
import type { MessageTable } from '../protobuf/read-message.ts'

const initialEventsEnd = 'k8s.io/initial-events-end'
/** Characters of an unusable message that are shown. */
const maxExcerpt = 120
/** A resourceVersion is a number of up to 20 digits. Both go into the URL of the next request, which a server limits. */
const maxVersionLength = 128
const maxTokenLength = 64 << 10

/** One event of a watch. */
export interface WatchEvent {
  readonly type: unknown
  readonly object: JsonObject
  /** The resourceVersion of the object; '' if it has none. */
  readonly version: string
}

/** The object that an event is about. */
export interface EventIdentity {
  readonly namespace: string
  readonly name: string
  /** As in WatchEvent. */
  readonly version: string
}

export interface ListPage {
  readonly items: readonly unknown[]
  readonly version: string
  /** The token of the next page; undefined on the last page. */
  readonly next: string | undefined
}

/** A message of a watch: a line of JSON, or the bytes of a protobuf message. */
export type WatchMessage = string | Buffer

/** Parses a message of a watch over objects of this form. Throws a ProxyError 'malformed-event'. */
export function parseEvent(message: WatchMessage, table: MessageTable): WatchEvent {
  const event = typeof message === 'string' ? parseObject(message) : readFrame(message, table)
  const object = asObject(event?.object)
  if (event === undefined || object === undefined) throw makeMalformedError(message)
  return { type: event.type, object, version: readVersion(object) }
}

/** As `parseEvent`, for a message that may be large. */
export function* parseEventInSteps(message: WatchMessage, table: MessageTable): Steps<WatchEvent> {
  const event = yield* readInSteps(message, table)
  const object = asObject(event?.object)
  if (event === undefined || object === undefined) throw makeMalformedError(message)
  return { type: event.type, object, version: readVersion(object) }
}

function* readInSteps(message: WatchMessage, table: MessageTable): Steps<JsonObject | undefined> {
  try {
    if (typeof message === 'string') return asObject(yield* parseBoundedInSteps(message))
    return yield* readWatchEventInSteps(message, table)
  } catch {
    return undefined
  }
}

/** What every message about an object begins with. Nothing that a user may choose comes before it. */
const lineStart =
  /^\{"type":"(ADDED|MODIFIED|DELETED)","object":\{"kind":"\w+","apiVersion":"[\w./]+","metadata":\{"name":"([\w.-]+)",(?:"generateName":"[\w.-]+",)?"namespace":"([\w.-]+)",(?:"uid":"[\w.-]+",)?"resourceVersion":"(\d+)"/

/** Reads only which object a message is about, which costs a tenth of reading all of it. Undefined if that cannot be seen at once. */
export function identifyEvent(message: WatchMessage): EventIdentity | undefined {
  if (typeof message === 'string') {
    const [, type, name = '', namespace = '', version = ''] = lineStart.exec(message) ?? []
    return type === undefined ? undefined : { namespace, name, version }
  }
  try {
    const { type, namespace, name, resourceVersion } = readEventIdentity(message)
    if (!isChange(type) || name === '') return undefined
    return { namespace, name, version: checkVersion(resourceVersion) }
  } catch {
    return undefined
  }
}

/** True for events that are about an object and may wait for others. */
export const isChange = (type: unknown): boolean => type === 'ADDED' || type === 'MODIFIED' || type === 'DELETED'

export function identifyObject(object: JsonObject | undefined): EventIdentity | undefined {
  const metadata = asObject(object?.metadata)
  const name = readString(metadata, 'name')
  return name === '' ? undefined : { namespace: readString(metadata, 'namespace'), name, version: readVersion(object) }
}

function readFrame(frame: Buffer, table: MessageTable): JsonObject | undefined {
  try {
    return readWatchEvent(frame, table)
  } catch {
    return undefined
  }
}

/** Reads a page in protobuf form. Throws a ProxyError 'malformed-event'. */
export function parseProtobufPage(body: Buffer, table: MessageTable): ListPage {
  try {
    return parsePage(readList(body, table))
  } catch (error) {
    if (error instanceof SyntaxError) throw makeMalformedError(body)
    throw error
  }
}

/** Throws a ProxyError 'malformed-event'. */
export function parsePage(json: unknown): ListPage {
  const list = asObject(json)
  const metadata = asObject(list?.metadata)
  if (list === undefined || !Array.isArray(list.items) || metadata === undefined) {
    throw makeMalformedError(excerptJson(json, maxExcerpt))
  }
  const next = readString(metadata, 'continue')
  if (next.length > maxTokenLength) throw makeMalformedError(next)
  return { items: list.items, version: readVersion(list), next: next === '' ? undefined : next }
}

/** True for the bookmark that ends a snapshot. */
export const isSnapshotEnd = (object: JsonObject): boolean =>
  asObject(asObject(object.metadata)?.annotations)?.[initialEventsEnd] === 'true'

export function makeMalformedError(message: WatchMessage): ProxyError {
  const shown =
    typeof message === 'string' ? excerptJson(message, maxExcerpt) : message.toString('hex', 0, maxExcerpt / 2)
  return new ProxyError('malformed-event', `the API server sent an invalid watch event: ${shown}`)
}

function parseObject(line: string): JsonObject | undefined {
  try {
    return asObject(parseBounded(line))
  } catch {
    return undefined
  }
}

/** Returns '' if the object has no usable resourceVersion. */
export function readVersion(object: JsonObject | undefined): string {
  return checkVersion(readString(asObject(object?.metadata), 'resourceVersion'))
}

const checkVersion = (version: string): string => (version.length <= maxVersionLength ? version : '')
