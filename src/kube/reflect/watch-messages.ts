// Parses what the API server sends: the lines of a watch and the pages of a list. Pure.

import { excerptJson, parseBounded } from '../../lib/bounded-json.ts'
import { ProxyError } from '../../lib/errors.ts'
import { asObject, type JsonObject, readString } from './fields.ts'

const initialEventsEnd = 'k8s.io/initial-events-end'
/** Characters of an unusable message that are shown. */
const maxExcerpt = 120
/** A resourceVersion is a number of up to 20 digits. Both go into the URL of the next request, which a server limits. */
const maxVersionLength = 128
const maxTokenLength = 64 << 10

/** One line of a watch. */
export interface WatchEvent {
  readonly type: unknown
  readonly object: JsonObject
  /** The resourceVersion of the object; '' if it has none. */
  readonly version: string
}

export interface ListPage {
  readonly items: readonly unknown[]
  readonly version: string
  /** The token of the next page; undefined on the last page. */
  readonly next: string | undefined
}

/** Throws a ProxyError 'malformed-event'. */
export function parseEvent(line: string): WatchEvent {
  const event = parseObject(line)
  const object = asObject(event?.object)
  if (event === undefined || object === undefined) throw makeMalformedError(line)
  return { type: event.type, object, version: readVersion(object) }
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

export function makeMalformedError(line: string): ProxyError {
  return new ProxyError(
    'malformed-event',
    `the API server sent an invalid watch event: ${excerptJson(line, maxExcerpt)}`,
  )
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
  const version = readString(asObject(object?.metadata), 'resourceVersion')
  return version.length <= maxVersionLength ? version : ''
}
