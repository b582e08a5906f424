// The data structure under the registry: the entries of one resource by namespace and name, in order, with their recent changes. Pure.

import type { Json } from '../schema/json.ts'
import { nameOf, namespaceOf } from '../schema/object-metadata.ts'
import type { Mutation } from './log-lines.ts'

export interface Entry {
  readonly object: Json
  readonly json: string
  readonly version: number
}

/** Identifies an entry of the registry. */
export interface EntryId {
  readonly resource: string
  /** '' for objects without a namespace. */
  readonly namespace: string
  readonly name: string
}

export interface Change extends EntryId {
  readonly version: number
  /** undefined: the change created the object. */
  readonly previous: Entry | undefined
  /** undefined: the change removed the object. */
  readonly next: Entry | undefined
  /** Lines that watches rendered for this change, by renderer and event type; watches with equal renderers share them. */
  readonly rendered: Map<string, string>
}

type EntriesByName = Map<string, Entry>

export interface Collection {
  readonly namespaces: Map<string, EntriesByName>
  /** The sorted names of a namespace; missing after a name came or went. */
  readonly sorted: Map<string, readonly string[]>
  history: Change[]
  /** The sum of the changes' sizes. */
  historySize: number
  size: number
  /** The history does not reach back to versions before this one. */
  horizon: number
}

export const createCollection = (): Collection => ({
  namespaces: new Map(),
  sorted: new Map(),
  history: [],
  historySize: 0,
  size: 0,
  horizon: 0,
})

/** Stores the entry under its name; `undefined` removes what is there. */
export function setEntry(
  collection: Collection,
  { namespace, name }: Omit<EntryId, 'resource'>,
  entry: Entry | undefined,
): void {
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

/** The entries in the order of lists; without a namespace, those of all namespaces. */
export function* listEntries(collection: Collection, namespace: string | undefined): Generator<Entry> {
  const namespaces = namespace === undefined ? [...collection.namespaces.keys()].sort() : [namespace]
  for (const each of namespaces) {
    const names = collection.namespaces.get(each)
    if (names === undefined) continue
    for (const name of sortNames(collection, each, names)) {
      const entry = names.get(name)
      if (entry !== undefined) yield entry
    }
  }
}

function sortNames(collection: Collection, namespace: string, names: EntriesByName): readonly string[] {
  let sorted = collection.sorted.get(namespace)
  if (sorted === undefined) {
    sorted = [...names.keys()].sort()
    collection.sorted.set(namespace, sorted)
  }
  return sorted
}

export interface HistoryLimits {
  readonly changes: number
  /** Characters of JSON. */
  readonly size: number
}

/** Adds a change, and drops the oldest ones if there is a quarter too much. So not every change moves the whole list. */
export function addToHistory(collection: Collection, change: Change, limits: HistoryLimits): void {
  collection.history.push(change)
  collection.historySize += sizeOfChange(change)
  if (collection.history.length > 1.25 * limits.changes) {
    dropOldest(collection, collection.history.length - limits.changes)
  }
  if (collection.historySize <= 1.25 * limits.size) return
  let left = collection.historySize
  let count = 0
  // The newest change stays, however large it is.
  for (const old of collection.history.slice(0, -1)) {
    if (left <= limits.size) break
    left -= sizeOfChange(old)
    count++
  }
  dropOldest(collection, count)
}

function dropOldest(collection: Collection, count: number): void {
  const dropped = collection.history.splice(0, count)
  for (const change of dropped) collection.historySize -= sizeOfChange(change)
  collection.horizon = dropped.at(-1)?.version ?? collection.horizon
}

export function removeNewest(collection: Collection): void {
  const change = collection.history.pop()
  if (change !== undefined) collection.historySize -= sizeOfChange(change)
}

export function dropHistoryUntil(collection: Collection, version: number): void {
  collection.history = collection.history.filter((change) => change.version > version)
  collection.historySize = collection.history.reduce((sum, change) => sum + sizeOfChange(change), 0)
}

/** How much memory a change keeps in use, in characters of JSON. */
export const sizeOfChange = ({ next, previous }: Change): number => (next ?? previous)?.json.length ?? 0

export const createChange = (change: Omit<Change, 'rendered'>): Change => ({ ...change, rendered: new Map() })

export const formatKey = ({ namespace, name }: Omit<EntryId, 'resource'>): string =>
  namespace === '' ? name : `${namespace}/${name}`

export function parseKey(key: string): Omit<EntryId, 'resource'> {
  const slash = key.indexOf('/')
  return { namespace: slash < 0 ? '' : key.slice(0, slash), name: key.slice(slash + 1) }
}

export const keyOfEntry = ({ object }: Entry): string =>
  formatKey({ namespace: namespaceOf(object), name: nameOf(object) })

/** The order of lists: by namespace, then by name. */
export const compareEntries = (a: Entry, b: Entry): number =>
  compareText(namespaceOf(a.object), namespaceOf(b.object)) || compareText(nameOf(a.object), nameOf(b.object))

function compareText(a: string, b: string): number {
  if (a === b) return 0
  return a < b ? -1 : 1
}

export const toMutation = ({ version, resource, next, ...id }: Change): Mutation => ({
  version,
  resource,
  key: formatKey(id),
  json: next?.json,
})

export const toEntry = ({ version, json }: Mutation): Entry | undefined =>
  json === undefined ? undefined : { object: JSON.parse(json) as Json, json, version }
