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

/** The metadata in the form of JSON, without labels and annotations: an object with others than these two is not ordinary. */
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

export type MetadataReader = (cursor: WireCursor, end: number) => OrdinaryMetadata | undefined

const listTags = (table: MessageTable) => ({
  nameTag: tagOf(table, 'name'),
  namespaceTag: tagOf(table, 'namespace'),
  uidTag: tagOf(table, 'uid'),
  versionTag: tagOf(table, 'resourceVersion'),
  labelsTag: tagOf(table, 'labels'),
  annotationsTag: tagOf(table, 'annotations'),
  managedTag: tagOf(table, 'managedFields'),
  // No tag equals NaN.
  createdTag: table.numbers.creationTimestamp === undefined ? Number.NaN : tagOf(table, 'creationTimestamp'),
})

/** Makes a reader for the metadata of one kind. It returns undefined if only the table can tell what the metadata means. */
export function makeMetadataReader(object: MessageTable, keys: OrdinaryKeys): MetadataReader {
  const table = childOf(object, 'metadata')
  const { nameTag, namespaceTag, uidTag, versionTag, labelsTag, annotationsTag, managedTag, createdTag } =
    listTags(table)
  const allowedLabel = keys.label ?? ''
  const allowedAnnotation = keys.annotation ?? ''
  return (cursor, end) => {
    const metadata = new OrdinaryMetadata()
    while (cursor.at < end) {
      const tag = cursor.readVarint(end)
      let isOrdinary = true
      switch (tag) {
        case nameTag:
          metadata.name = replaceText(metadata.name, cursor.readText(end))
          break
        case namespaceTag:
          metadata.namespace = replaceText(metadata.namespace, readCachedText(cursor, end))
          break
        case uidTag:
          metadata.uid = replaceText(metadata.uid, cursor.readText(end))
          break
        case versionTag:
          metadata.resourceVersion = replaceText(metadata.resourceVersion, cursor.readText(end))
          break
        case labelsTag: {
          const stop = cursor.readFieldEnd(end)
          const key = labelKeys.readKey(cursor, stop)
          if (key === allowedLabel) metadata.label = readValue(cursor, stop)
          isOrdinary = key === undefined || key === allowedLabel
          break
        }
        case annotationsTag: {
          const stop = cursor.readFieldEnd(end)
          const key = annotationKeys.readKey(cursor, stop)
          if (key === allowedAnnotation) metadata.annotation = readValue(cursor, stop)
          isOrdinary = key === undefined || key === allowedAnnotation
          break
        }
        case managedTag:
          addManager(metadata, takeField(cursor, end))
          break
        case createdTag:
          isOrdinary = readCreated(metadata, cursor, cursor.readFieldEnd(end))
          break
        default:
          isOrdinary = skipUnnamed(cursor, tag, end, table)
      }
      if (!isOrdinary) return undefined
    }
    return metadata
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
