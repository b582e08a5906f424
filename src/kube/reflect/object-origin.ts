// Reads from an object which version it has and who changed it last, for the history. The managed fields are read only when a change is
// recorded: decoding leaves them as they came.

import { cutText } from '../../lib/bounded-json.ts'
import { asObject, type JsonObject, readString } from '../decode/fields.ts'
import { managedFieldsEntry } from '../protobuf/message-tables.ts'
import { readMessage, UnreadBytes } from '../protobuf/read-message.ts'
import { readVersion } from './watch-messages.ts'

/** What metadata says about the last change. Every field is '' if it is unknown. */
export interface ReadOrigin {
  readonly resourceVersion: string
  readonly manager: string
  readonly operation: string
  readonly subresource: string
}

/** Nobody needs more, and the history keeps them. The API server allows 128 characters for a manager. */
const maxLength = 128
/** Entries that are read of one object. */
const maxEntries = 100

/**
 * The manager of the latest time is the one that changed the object last. Times have seconds: if several managers share the latest one, all
 * are named. An object does not say who deleted it: only the audit log of the API server does.
 */
export function readOrigin(json: unknown, isDeleted: boolean): ReadOrigin {
  const object = asObject(json)
  const resourceVersion = readVersion(object)
  const nobody = { resourceVersion, manager: '', operation: '', subresource: '' }
  const managed = asObject(object?.metadata)?.managedFields
  if (isDeleted || !Array.isArray(managed)) return nobody
  const entries = managed.slice(0, maxEntries).map((entry: unknown) => readEntry(entry))
  let latest = ''
  for (const entry of entries) if (readString(entry, 'time') > latest) latest = readString(entry, 'time')
  const last = entries.filter((entry) => readString(entry, 'time') === latest)
  const join = (name: string): string => {
    const words = new Set(last.map((entry) => readString(entry, name)))
    return cutText([...words].filter((word) => word !== '').join(' or '), maxLength)
  }
  return { ...nobody, manager: join('manager'), operation: join('operation'), subresource: join('subresource') }
}

/** A protobuf message is left as bytes until here. */
function readEntry(entry: unknown): JsonObject | undefined {
  if (!(entry instanceof UnreadBytes)) return asObject(entry)
  try {
    return readMessage(entry, managedFieldsEntry)
  } catch {
    return undefined
  }
}
