// All objects, their versions, and the recent past. Knows nothing of kinds; what an object must look like is decided before.
//
//  1. A change is visible at once, but nobody is told of it before it is on disk: readers read, wait until that is
//     `settled`, and then answer; watchers are called afterwards. No crash can take back what somebody has seen.
//  2. Changes that are made while a batch is being written become the next batch (group commit).
//  3. If a batch cannot be written, its changes are taken back, newest first, and their makers are told.
//  4. The recent past is kept so that watches can go on where they were and pages stay consistent; what is older than
//     that has expired (410).

import type { Json } from '../schema/json.ts'
import {
  type Change,
  type Collection,
  compareEntries,
  type Entry,
  entryKey,
  entryNamespace,
  keyOf,
  makeChange,
  namespaceOf,
  place,
  sortedNames,
  splitKey,
  toEntry,
  toMutation,
} from './collection.ts'
import type { Mutation, Recovered, WriteAheadLog } from './write-ahead-log.ts'

export interface RegistryOptions {
  readonly journal: WriteAheadLog
  readonly recovered?: Recovered
  /** The version to begin with when there is nothing to go on from. */
  readonly firstVersion?: number
  /** Changes of one resource that can be told again. */
  readonly pastLimit?: number
  readonly onStorageError?: (error: unknown) => void
}

export class Registry {
  readonly #journal: WriteAheadLog
  readonly #collections = new Map<string, Collection>()
  readonly #indexers: ((change: Change) => void)[] = []
  readonly #subscribers = new Map<string, Set<(changes: readonly Change[]) => void>>()
  readonly #pastLimit: number
  readonly #onStorageError: (error: unknown) => void
  #head: number
  #committed: number
  #horizon: number
  #pending: Change[] = []
  #waiting: { resolve(): void; reject(error: unknown): void }[] = []
  #flushing: Promise<void> | undefined
  #closed = false
  #failing = false

  constructor(options: RegistryOptions) {
    this.#journal = options.journal
    this.#pastLimit = options.pastLimit ?? 10_000
    this.#onStorageError = options.onStorageError ?? (() => {})
    this.#head = options.firstVersion ?? 1
    this.#horizon = this.#head
    if (options.recovered !== undefined) this.#recover(options.recovered)
    this.#committed = this.#head
  }

  /** The version that readers see. */
  get version(): number {
    return this.#committed
  }

  /** The version that writers see, and readers who wait until it has settled. */
  get head(): number {
    return this.#head
  }

  /** The last batch could not be written. */
  get failing(): boolean {
    return this.#failing
  }

  /** Versions before this have expired. */
  horizon(resource: string): number {
    return Math.max(this.#horizon, this.#collections.get(resource)?.horizon ?? 0)
  }

  find(resource: string, namespace: string, name: string): Entry | undefined {
    return this.#collections.get(resource)?.namespaces.get(namespace)?.get(name)
  }

  /** In the order of namespaces and names; without `namespace`, all of them. */
  *list(resource: string, namespace?: string): Generator<Entry> {
    const collection = this.#collections.get(resource)
    if (collection === undefined) return
    const namespaces = namespace === undefined ? [...collection.namespaces.keys()].sort() : [namespace]
    for (const each of namespaces) {
      const names = collection.namespaces.get(each)
      if (names === undefined) continue
      for (const name of sortedNames(collection, each, names)) {
        const entry = names.get(name)
        if (entry !== undefined) yield entry
      }
    }
  }

  size(resource: string): number {
    return this.#collections.get(resource)?.size ?? 0
  }

  /** All as it was at `version`; undefined if that has expired. */
  listAt(resource: string, namespace: string | undefined, version: number): readonly Entry[] | undefined {
    if (version < this.horizon(resource)) return undefined
    const undone = new Map<string, Entry | undefined>()
    const past = this.#collection(resource).past
    for (let i = past.length - 1; i >= 0; i--) {
      const change = past[i] as Change
      if (change.version <= version) break
      undone.set(keyOf(change.namespace, change.name), change.previous)
    }
    const entries = [...this.list(resource, namespace)]
    if (undone.size === 0) return entries
    const kept = entries.filter((entry) => !undone.has(entryKey(entry)))
    for (const entry of undone.values()) {
      if (entry !== undefined && (namespace === undefined || entryNamespace(entry) === namespace)) kept.push(entry)
    }
    return kept.sort((a, b) => compareEntries(a, b))
  }

  /** Told changes after `version`; undefined if some of them have expired. */
  since(resource: string, version: number): readonly Change[] | undefined {
    if (version < this.horizon(resource)) return undefined
    const past = this.#collection(resource).past
    let low = 0
    let high = past.length
    while (low < high) {
      const middle = (low + high) >> 1
      if ((past[middle] as Change).version > version) high = middle
      else low = middle + 1
    }
    return past.slice(low).filter((change) => change.version <= this.#committed)
  }

  /** Stores the object under the names in its metadata, with the next version. */
  put(resource: string, object: Json): Entry {
    const version = ++this.#head
    const metadata = object.metadata as Json
    const stored: Json = { ...object, metadata: { ...metadata, resourceVersion: String(version) } }
    const entry: Entry = { object: stored, json: JSON.stringify(stored), version }
    this.#record(resource, namespaceOf(metadata), String(metadata.name), entry, version)
    return entry
  }

  remove(resource: string, namespace: string, name: string): Entry | undefined {
    const previous = this.find(resource, namespace, name)
    if (previous === undefined) return undefined
    const version = ++this.#head
    this.#record(resource, namespace, name, undefined, version)
    return previous
  }

  /** Resolves when everything that has been changed so far is on disk. Rejects if it could not be written. */
  settled(): Promise<void> {
    if (this.#pending.length === 0 && this.#flushing === undefined) return Promise.resolve()
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }))
  }

  /** Called for every change as it is made, and with its inverse if it is taken back. */
  index(indexer: (change: Change) => void): void {
    this.#indexers.push(indexer)
    for (const [resource, { namespaces }] of this.#collections) {
      for (const [namespace, names] of namespaces) {
        for (const [name, next] of names)
          indexer(makeChange({ version: next.version, resource, namespace, name, previous: undefined, next }))
      }
    }
  }

  /** Called with changes that are on disk, in order. */
  subscribe(resource: string, listener: (changes: readonly Change[]) => void): () => void {
    const listeners = this.#subscribers.get(resource) ?? new Set()
    this.#subscribers.set(resource, listeners)
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  /** Forgets the past up to now, as etcd's compaction does. */
  forget(): void {
    this.#horizon = this.#committed
    for (const collection of this.#collections.values()) {
      collection.past = collection.past.filter((change) => change.version > this.#horizon)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#flushing
    await this.#journal.close()
  }

  #record(resource: string, namespace: string, name: string, next: Entry | undefined, version: number): void {
    if (this.#closed) throw new Error('the registry is closed')
    const previous = this.find(resource, namespace, name)
    const change = makeChange({ version, resource, namespace, name, previous, next })
    this.#apply(change)
    this.#pending.push(change)
    this.#flushing ??= this.#flush()
  }

  #apply(change: Change): void {
    const collection = this.#collection(change.resource)
    place(collection, change.namespace, change.name, change.next)
    collection.past.push(change)
    if (collection.past.length > 1.25 * this.#pastLimit) {
      const gone = collection.past.splice(0, collection.past.length - this.#pastLimit)
      collection.horizon = (gone.at(-1) as Change).version
    }
    for (const indexer of this.#indexers) indexer(change)
  }

  /** Never rejects: those who wait are told. */
  async #flush(): Promise<void> {
    // What the caller changes in the same turn belongs to the same batch.
    await Promise.resolve()
    while (this.#pending.length > 0) {
      const batch = this.#pending
      const waiting = this.#waiting
      this.#pending = []
      this.#waiting = []
      try {
        await this.#journal.append(batch.map(toMutation))
      } catch (error) {
        this.#failing = true
        this.#onStorageError(error)
        this.#takeBack(batch, waiting, error)
        continue
      }
      this.#failing = false
      this.#committed = (batch.at(-1) as Change).version
      this.#publish(batch)
      for (const { resolve } of waiting) resolve()
      if (this.#journal.large) await this.#compact()
    }
    this.#flushing = undefined
    for (const { resolve } of this.#waiting.splice(0)) resolve()
  }

  /** Later changes may stand on the failed ones, so they go as well. */
  #takeBack(batch: readonly Change[], waiting: readonly { reject(error: unknown): void }[], error: unknown): void {
    const failed = [...batch, ...this.#pending.splice(0)]
    const refused = [...waiting, ...this.#waiting.splice(0)]
    for (const change of failed.reverse()) {
      const collection = this.#collection(change.resource)
      place(collection, change.namespace, change.name, change.previous)
      collection.past.pop()
      const inverse = makeChange({ ...change, previous: change.next, next: change.previous })
      for (const indexer of this.#indexers) indexer(inverse)
    }
    for (const { reject } of refused) reject(error)
  }

  #publish(batch: readonly Change[]): void {
    const byResource = new Map<string, Change[]>()
    for (const change of batch) {
      const list = byResource.get(change.resource)
      if (list === undefined) byResource.set(change.resource, [change])
      else list.push(change)
    }
    for (const [resource, changes] of byResource) {
      for (const listener of this.#subscribers.get(resource) ?? []) listener(changes)
      // Who comes later is rare; ten thousand texts would be kept for them.
      for (const change of changes) change.rendered.clear()
    }
  }

  /** Only the switch to the next journal is waited for; the snapshot is written beside the work. */
  async #compact(): Promise<void> {
    const state: Mutation[] = []
    for (const [resource, { namespaces }] of this.#collections) {
      for (const [namespace, names] of namespaces) {
        for (const [name, { version, json }] of names) {
          state.push({ version, resource, key: keyOf(namespace, name), json })
        }
      }
    }
    const settled = this.#withoutPending(state)
    await this.#journal.compact(this.#committed, settled, this.#onStorageError).catch(this.#onStorageError)
  }

  /** A change that waits for the next batch is not on disk yet; the snapshot has what was before it. */
  #withoutPending(state: Mutation[]): Mutation[] {
    if (this.#pending.length === 0) return state
    const before = new Map<string, Entry | undefined>()
    for (const { resource, namespace, name, previous } of this.#pending) {
      const id = `${resource} ${keyOf(namespace, name)}`
      if (!before.has(id)) before.set(id, previous)
    }
    const kept = state.filter(({ resource, key }) => !before.has(`${resource} ${key}`))
    for (const [id, entry] of before) {
      const [resource = '', key = ''] = id.split(' ')
      if (entry !== undefined) kept.push({ version: entry.version, resource, key, json: entry.json })
    }
    return kept
  }

  #recover({ base, snapshot, since }: Recovered): void {
    for (const mutation of snapshot) {
      const { namespace, name } = splitKey(mutation.key)
      place(this.#collection(mutation.resource), namespace, name, toEntry(mutation))
    }
    for (const mutation of since) {
      const { namespace, name } = splitKey(mutation.key)
      const previous = this.find(mutation.resource, namespace, name)
      const next = toEntry(mutation)
      this.#apply(
        makeChange({ version: mutation.version, resource: mutation.resource, namespace, name, previous, next }),
      )
    }
    this.#horizon = Math.max(base, this.#horizon)
    this.#head = Math.max(this.#head, base, since.at(-1)?.version ?? 0)
  }

  #collection(resource: string): Collection {
    let collection = this.#collections.get(resource)
    if (collection === undefined) {
      collection = { namespaces: new Map(), sorted: new Map(), past: [], size: 0, horizon: 0 }
      this.#collections.set(resource, collection)
    }
    return collection
  }
}
