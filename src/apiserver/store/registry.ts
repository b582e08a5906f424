// All objects, their versions, and their recent changes. The registry knows no kinds; requests/ decides what an object must look like.
//
//  1. A change is visible at once, but no client learns of it before it is on disk: a reader reads, waits for `settled`, and then
//     answers; watchers are called after the write. So no crash can take back what a client has seen.
//  2. Changes that are made while a batch is being written become the next batch (group commit).
//  3. If a batch cannot be written, its changes are undone, newest first, and `settled` rejects for their makers.
//  4. The recent changes are kept, so that watches can resume and pages of a list stay consistent. Older versions have expired (410).

import type { Json } from '../schema/json.ts'
import { metadataOf, nameOf, namespaceOf } from '../schema/object-metadata.ts'
import {
  addToHistory,
  type Change,
  type Collection,
  compareEntries,
  createChange,
  createCollection,
  dropHistoryUntil,
  type Entry,
  type EntryId,
  formatKey,
  type HistoryLimits,
  keyOfEntry,
  listEntries,
  parseKey,
  removeNewest,
  setEntry,
  toEntry,
  toMutation,
} from './collection.ts'
import type { Mutation } from './log-lines.ts'
import type { Recovered } from './log-recovery.ts'
import type { WriteAheadLog } from './write-ahead-log.ts'

export interface RegistryOptions {
  readonly writeAheadLog: WriteAheadLog
  readonly recovered?: Recovered
  /** The version to begin with if nothing was recovered. */
  readonly firstVersion?: number
  /** The recent changes to keep for each resource. */
  readonly historyLimits?: HistoryLimits
  readonly onStorageError?: (error: unknown) => void
}

/** A client that falls further behind lists the objects again. Without a limit in bytes, large objects would fill the memory. */
const defaultHistoryLimits: HistoryLimits = { changes: 10_000, size: 32 << 20 }

/** A caller of `settled`. */
interface Waiter {
  resolve(): void
  reject(error: unknown): void
}

export class Registry {
  readonly #writeAheadLog: WriteAheadLog
  readonly #collections = new Map<string, Collection>()
  readonly #indexers: ((change: Change) => void)[] = []
  readonly #subscribers = new Map<string, Set<(changes: readonly Change[]) => void>>()
  readonly #historyLimits: HistoryLimits
  readonly #onStorageError: (error: unknown) => void
  #head: number
  #committed: number
  #horizon: number
  #pending: Change[] = []
  #waiters: Waiter[] = []
  #flushing: Promise<void> | undefined
  #closed = false
  #failing = false

  constructor(options: RegistryOptions) {
    this.#writeAheadLog = options.writeAheadLog
    this.#historyLimits = options.historyLimits ?? defaultHistoryLimits
    this.#onStorageError = options.onStorageError ?? (() => {})
    this.#head = options.firstVersion ?? 1
    this.#horizon = this.#head
    if (options.recovered !== undefined) this.#recover(options.recovered)
    this.#committed = this.#head
  }

  /** The newest version that is on disk. */
  get version(): number {
    return this.#committed
  }

  /** The newest version; readers of it must wait for `settled` before they answer. */
  get head(): number {
    return this.#head
  }

  /** True if the last batch could not be written. */
  get failing(): boolean {
    return this.#failing
  }

  /** The oldest version that has not expired. */
  horizon(resource: string): number {
    return Math.max(this.#horizon, this.#collections.get(resource)?.horizon ?? 0)
  }

  find(resource: string, namespace: string, name: string): Entry | undefined {
    return this.#collections.get(resource)?.namespaces.get(namespace)?.get(name)
  }

  /** The entries in the order of namespaces and names; without `namespace`, those of all namespaces. */
  *list(resource: string, namespace?: string): Generator<Entry> {
    const collection = this.#collections.get(resource)
    if (collection !== undefined) yield* listEntries(collection, namespace)
  }

  size(resource: string): number {
    return this.#collections.get(resource)?.size ?? 0
  }

  /** The list as it was at `version`; undefined if that version has expired. */
  listAt(resource: string, namespace: string | undefined, version: number): readonly Entry[] | undefined {
    if (version < this.horizon(resource)) return undefined
    const undone = new Map<string, Entry | undefined>()
    for (const change of this.#newerChanges(resource, version).reverse()) {
      undone.set(formatKey(change), change.previous)
    }
    const entries = [...this.list(resource, namespace)]
    if (undone.size === 0) return entries
    const unchanged = entries.filter((entry) => !undone.has(keyOfEntry(entry)))
    const restored = [...undone.values()]
      .filter((entry) => entry !== undefined)
      .filter(({ object }) => namespace === undefined || namespaceOf(object) === namespace)
    return [...unchanged, ...restored].sort(compareEntries)
  }

  /** The changes after `version` that are on disk; undefined if some of them have expired. */
  changesSince(resource: string, version: number): readonly Change[] | undefined {
    if (version < this.horizon(resource)) return undefined
    return this.#newerChanges(resource, version).filter((change) => change.version <= this.#committed)
  }

  #newerChanges(resource: string, version: number): Change[] {
    const { history } = this.#collection(resource)
    let low = 0
    let high = history.length
    while (low < high) {
      const middle = (low + high) >> 1
      if ((history[middle]?.version ?? 0) > version) high = middle
      else low = middle + 1
    }
    return history.slice(low)
  }

  /** Stores the object under the name in its metadata, with the next version. */
  put(resource: string, object: Json): Entry {
    const version = ++this.#head
    const stored: Json = { ...object, metadata: { ...metadataOf(object), resourceVersion: String(version) } }
    const entry: Entry = { object: stored, json: JSON.stringify(stored), version }
    this.#record({ resource, namespace: namespaceOf(object), name: nameOf(object) }, entry)
    return entry
  }

  /** Returns the entry that was removed; undefined if there was none. */
  remove(resource: string, namespace: string, name: string): Entry | undefined {
    const previous = this.find(resource, namespace, name)
    if (previous === undefined) return undefined
    this.#head++
    this.#record({ resource, namespace, name }, undefined)
    return previous
  }

  /** Resolves when every change so far is on disk. Rejects if a change could not be written. */
  settled(): Promise<void> {
    if (this.#pending.length === 0 && this.#flushing === undefined) return Promise.resolve()
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }))
  }

  /**
   * Calls the indexer for every object that exists, then for every change when it is made, and with the inverse of a change that is
   * undone.
   */
  index(indexer: (change: Change) => void): void {
    this.#indexers.push(indexer)
    for (const [resource, { namespaces }] of this.#collections) {
      for (const [namespace, names] of namespaces) {
        for (const [name, next] of names)
          indexer(createChange({ version: next.version, resource, namespace, name, previous: undefined, next }))
      }
    }
  }

  /** Calls the listener with changes that are on disk, in order. */
  subscribe(resource: string, listener: (changes: readonly Change[]) => void): () => void {
    const listeners = this.#subscribers.get(resource) ?? new Set()
    this.#subscribers.set(resource, listeners)
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  /** Drops all changes up to now, as etcd's compaction does. */
  compactHistory(): void {
    this.#horizon = this.#committed
    for (const collection of this.#collections.values()) {
      dropHistoryUntil(collection, this.#horizon)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#flushing
    await this.#writeAheadLog.close()
  }

  /** Makes the change with version `head`. */
  #record(id: EntryId, next: Entry | undefined): void {
    if (this.#closed) throw new Error('the registry is closed')
    const previous = this.find(id.resource, id.namespace, id.name)
    const change = createChange({ ...id, version: this.#head, previous, next })
    this.#apply(change)
    this.#pending.push(change)
    this.#flushing ??= this.#flush()
  }

  #apply(change: Change): void {
    const collection = this.#collection(change.resource)
    setEntry(collection, change, change.next)
    addToHistory(collection, change, this.#historyLimits)
    for (const indexer of this.#indexers) indexer(change)
  }

  /** Never rejects; errors go to the waiters. */
  async #flush(): Promise<void> {
    // Changes that the caller makes in the same turn of the event loop belong to the same batch.
    await Promise.resolve()
    while (this.#pending.length > 0) {
      const batch = this.#pending
      const waiters = this.#waiters
      this.#pending = []
      this.#waiters = []
      try {
        await this.#writeAheadLog.append(batch.map(toMutation))
      } catch (error) {
        this.#failing = true
        this.#onStorageError(error)
        this.#undo(batch, waiters, error)
        continue
      }
      this.#failing = false
      this.#committed = batch.at(-1)?.version ?? this.#committed
      this.#publish(batch)
      for (const { resolve } of waiters) resolve()
      if (this.#writeAheadLog.needsCompaction) await this.#compactLog()
    }
    this.#flushing = undefined
    for (const { resolve } of this.#waiters.splice(0)) resolve()
  }

  /** Undoes the batch, and all later changes as well, because they may build on it. */
  #undo(batch: readonly Change[], waiters: readonly Waiter[], error: unknown): void {
    const undone = [...batch, ...this.#pending.splice(0)].reverse()
    const rejected = [...waiters, ...this.#waiters.splice(0)]
    for (const change of undone) {
      const collection = this.#collection(change.resource)
      setEntry(collection, change, change.previous)
      removeNewest(collection)
      const inverse = createChange({ ...change, previous: change.next, next: change.previous })
      for (const indexer of this.#indexers) indexer(inverse)
    }
    for (const { reject } of rejected) reject(error)
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
      // Few watches ask for old changes; keeping the lines for them would hold ten thousand texts in memory.
      for (const change of changes) change.rendered.clear()
    }
  }

  /** Waits only for the switch to the next log file; the snapshot is written while other work goes on. */
  async #compactLog(): Promise<void> {
    const state: Mutation[] = []
    for (const [resource, { namespaces }] of this.#collections) {
      for (const [namespace, names] of namespaces) {
        for (const [name, { version, json }] of names) {
          state.push({ version, resource, key: formatKey({ namespace, name }), json })
        }
      }
    }
    const durable = this.#withoutPending(state)
    await this.#writeAheadLog.compact(this.#committed, durable, this.#onStorageError).catch(this.#onStorageError)
  }

  /** Pending changes are not on disk yet, so the snapshot must hold the entries from before them. */
  #withoutPending(state: Mutation[]): Mutation[] {
    if (this.#pending.length === 0) return state
    const before = new Map<string, Entry | undefined>()
    for (const change of this.#pending) {
      const id = `${change.resource} ${formatKey(change)}`
      if (!before.has(id)) before.set(id, change.previous)
    }
    const durable = state.filter(({ resource, key }) => !before.has(`${resource} ${key}`))
    for (const [id, entry] of before) {
      const [resource = '', key = ''] = id.split(' ')
      if (entry !== undefined) durable.push({ version: entry.version, resource, key, json: entry.json })
    }
    return durable
  }

  #recover({ base, snapshot, since }: Recovered): void {
    for (const mutation of snapshot) {
      setEntry(this.#collection(mutation.resource), parseKey(mutation.key), toEntry(mutation))
    }
    for (const mutation of since) {
      const { version, resource } = mutation
      const { namespace, name } = parseKey(mutation.key)
      const previous = this.find(resource, namespace, name)
      this.#apply(createChange({ version, resource, namespace, name, previous, next: toEntry(mutation) }))
    }
    this.#horizon = Math.max(base, this.#horizon)
    this.#head = Math.max(this.#head, base, since.at(-1)?.version ?? 0)
  }

  #collection(resource: string): Collection {
    let collection = this.#collections.get(resource)
    if (collection === undefined) {
      collection = createCollection()
      this.#collections.set(resource, collection)
    }
    return collection
  }
}
