// Entries by namespace and name, in order, with their recent past; the data structure under the registry.

import { isObject, type Json } from '../schema/json.ts'
import type { Mutation } from './write-ahead-log.ts'

export interface Entry {
  readonly object: Json
  readonly json: string
  readonly version: number
}

export interface Change {
  readonly version: number
  readonly resource: string
  readonly namespace: string
  readonly name: string
  readonly previous: Entry | undefined
  /** undefined: removed. */
  readonly next: Entry | undefined
  /** Texts that were made of this change for watchers, by what they asked for. */
  readonly rendered: Map<string, string>
}

type Names = Map<string, Entry>

export interface Collection {
  readonly namespaces: Map<string, Names>
  readonly sorted: Map<string, readonly string[]>
  past: Change[]
  size: number
  /** What is older than this cannot be told any more. */
  horizon: number
}

export function place(collection: Collection, namespace: string, name: string, entry: Entry | undefined): void {
  let names = collection.namespaces.get(namespace)
  if (entry === undefined) {
    if (names?.delete(name)) collection.size--
    collection.sorted.delete(namespace)
    if (names?.size === 0) collection.namespaces.delete(namespace)
    return
  }
  if (names === undefined) {
    names = new Map()
    collection.namespaces.set(namespace, names)
  }
  if (!names.has(name)) {
    collection.size++
    collection.sorted.delete(namespace)
  }
  names.set(name, entry)
}

export function sortedNames(collection: Collection, namespace: string, names: Names): readonly string[] {
  let sorted = collection.sorted.get(namespace)
  if (sorted === undefined) {
    sorted = [...names.keys()].sort()
    collection.sorted.set(namespace, sorted)
  }
  return sorted
}

export const makeChange = (change: Omit<Change, 'rendered'>): Change => ({ ...change, rendered: new Map() })

export const namespaceOf = (metadata: unknown): string =>
  isObject(metadata) && typeof metadata.namespace === 'string' ? metadata.namespace : ''

export const entryNamespace = (entry: Entry): string => namespaceOf(entry.object.metadata)
const entryName = (entry: Entry): string => String((entry.object.metadata as Json).name)
export const keyOf = (namespace: string, name: string): string => (namespace === '' ? name : `${namespace}/${name}`)
export const entryKey = (entry: Entry): string => keyOf(entryNamespace(entry), entryName(entry))

export function splitKey(key: string): { namespace: string; name: string } {
  const slash = key.indexOf('/')
  return { namespace: slash < 0 ? '' : key.slice(0, slash), name: key.slice(slash + 1) }
}

export function compareEntries(a: Entry, b: Entry): number {
  return compare(entryNamespace(a), entryNamespace(b)) || compare(entryName(a), entryName(b))
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

export const toMutation = ({ version, resource, namespace, name, next }: Change): Mutation => ({
  version,
  resource,
  key: keyOf(namespace, name),
  json: next?.json,
})

export const toEntry = ({ version, json }: Mutation): Entry | undefined =>
  json === undefined ? undefined : { object: JSON.parse(json) as Json, json, version }
