// Parses what the API server sends: the lines of a watch and the pages of a list. Pure.

import { ProxyError } from '../../lib/errors.ts'
import { asObject, type JsonObject } from './fields.ts'

const initialEventsEnd = 'k8s.io/initial-events-end'

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
    throw makeMalformedError(JSON.stringify(json) ?? '')
  }
  const next = typeof metadata.continue === 'string' && metadata.continue !== '' ? metadata.continue : undefined
  return { items: list.items, version: readVersion(list), next }
}

/** True for the bookmark that ends a snapshot. */
export const isSnapshotEnd = (object: JsonObject): boolean =>
  asObject(asObject(object.metadata)?.annotations)?.[initialEventsEnd] === 'true'

export function makeMalformedError(line: string): ProxyError {
  const shown = line.length <= 120 ? line : `${line.slice(0, 117)}...`
  return new ProxyError('malformed-event', `the API server sent an invalid watch event: ${JSON.stringify(shown)}`)
}

function parseObject(line: string): JsonObject | undefined {
  try {
    return asObject(JSON.parse(line))
  } catch {
    return undefined
  }
}

function readVersion(object: JsonObject): string {
  const version = asObject(object.metadata)?.resourceVersion
  return typeof version === 'string' ? version : ''
}
