// Reads the metadata of an object straight from its protobuf form, as far as ordinary objects need it.

import type { WireCursor } from '../../lib/protobuf-wire.ts'
import { enterValue, KnownKeys } from './known-keys.ts'
import { readAnnotations, readLabels } from './message-tables.ts'
import {
  childOf,
  type MessageTable,
  replaceText,
  skipUnnamed,
  tagOf,
  takeField,
  timestamp,
  type UnreadBytes,
} from './read-message.ts'
import { readCachedText } from './text-cache.ts'

const labelKeys = new KnownKeys(readLabels)
const annotationKeys = new KnownKeys(readAnnotations)
const secondsTag = tagOf(timestamp, 'seconds')
const nanosTag = tagOf(timestamp, 'nanos')

/** The metadata in the form of JSON, but for labels and annotations, of which there is at most one each that a decoder reads. */
export class OrdinaryMetadata {
  readonly [name: string]: unknown
  name = ''
  namespace = ''
  uid = ''
  resourceVersion = ''
  managedFields: UnreadBytes[] | undefined = undefined
  /** The value of the label and of the annotation that the reader was made for; '' if there is none. */
  label = ''
  annotation = ''
  /** Seconds since 1970; 0 if the field is not there. */
  created = 0
}

/** The labels and annotations that an ordinary object of a kind may have, of all that any decoder reads. */
interface OrdinaryKeys {
  readonly label?: string
  readonly annotation?: string
}

const listTags = (table: MessageTable) => ({
  name: tagOf(table, 'name'),
  namespace: tagOf(table, 'namespace'),
  uid: tagOf(table, 'uid'),
  version: tagOf(table, 'resourceVersion'),
  labels: tagOf(table, 'labels'),
  annotations: tagOf(table, 'annotations'),
  managedFields: tagOf(table, 'managedFields'),
  // No tag equals NaN.
  created: table.numbers.creationTimestamp === undefined ? Number.NaN : tagOf(table, 'creationTimestamp'),
})

/** Reads the metadata of one kind. */
export class MetadataReader {
  readonly #table: MessageTable
  readonly #tags: ReturnType<typeof listTags>
  readonly #keys: OrdinaryKeys

  constructor(object: MessageTable, keys: OrdinaryKeys) {
    this.#table = childOf(object, 'metadata')
    this.#tags = listTags(this.#table)
    this.#keys = keys
  }

  /** Returns undefined if only the table can tell what the metadata means. */
  read(cursor: WireCursor, end: number): OrdinaryMetadata | undefined {
    const metadata = new OrdinaryMetadata()
    while (cursor.at < end) {
      if (!this.#readField(metadata, cursor, end)) return undefined
    }
    return metadata
  }

  #readField(metadata: OrdinaryMetadata, cursor: WireCursor, end: number): boolean {
    const tags = this.#tags
    const tag = cursor.readVarint(end)
    switch (tag) {
      case tags.name:
        metadata.name = replaceText(metadata.name, cursor.readText(end))
        return true
      case tags.namespace:
        metadata.namespace = replaceText(metadata.namespace, readCachedText(cursor, end))
        return true
      case tags.uid:
        metadata.uid = replaceText(metadata.uid, cursor.readText(end))
        return true
      case tags.version:
        metadata.resourceVersion = replaceText(metadata.resourceVersion, cursor.readText(end))
        return true
      case tags.labels:
        return this.#readLabel(metadata, cursor, cursor.readFieldEnd(end))
      case tags.annotations:
        return this.#readAnnotation(metadata, cursor, cursor.readFieldEnd(end))
      case tags.managedFields:
        addManager(metadata, takeField(cursor, end))
        return true
      case tags.created:
        return readCreated(metadata, cursor, cursor.readFieldEnd(end))
      default:
        return skipUnnamed(cursor, tag, end, this.#table)
    }
  }

  #readLabel(metadata: OrdinaryMetadata, cursor: WireCursor, stop: number): boolean {
    const key = labelKeys.readKey(cursor, stop)
    if (key === undefined) return true
    metadata.label = readValue(cursor, stop)
    return key === this.#keys.label
  }

  #readAnnotation(metadata: OrdinaryMetadata, cursor: WireCursor, stop: number): boolean {
    const key = annotationKeys.readKey(cursor, stop)
    if (key === undefined) return true
    metadata.annotation = readValue(cursor, stop)
    return key === this.#keys.annotation
  }
}

function readValue(cursor: WireCursor, stop: number): string {
  const value = enterValue(cursor, stop) ? cursor.readText(stop) : ''
  cursor.at = stop
  return value
}

function addManager(metadata: OrdinaryMetadata, entry: UnreadBytes): void {
  if (metadata.managedFields === undefined) metadata.managedFields = [entry]
  else metadata.managedFields.push(entry)
}

/** The end of the year 9999, in seconds. A later year has another form in JSON. */
const maxSeconds = 253_402_300_799

/** Returns false if the time has another form in JSON than usual. */
function readCreated(metadata: OrdinaryMetadata, cursor: WireCursor, end: number): boolean {
  let seconds = 0
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === secondsTag) seconds = cursor.readVarint(end) || seconds
    else if (tag === nanosTag) cursor.readVarint(end)
    else if (!skipUnnamed(cursor, tag, end, timestamp)) return false
  }
  if (seconds < 0 || seconds > maxSeconds) return false
  if (seconds !== 0) metadata.created = seconds
  return true
}
