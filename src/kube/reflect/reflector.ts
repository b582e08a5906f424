// Keeps one kind of object in step with the API server: a snapshot by WatchList or by a paged list, then a watch, for ever.
//
// Goals, in this order:
//  1. No change is lost. The watch continues exactly where it stopped (#version); when that is not possible, a new snapshot is read. Half a
//     message at the end of a connection is dropped, since the next watch repeats its event.
//  2. No change is delivered twice. ChangeFilter knows the version of each object, so that a snapshot delivers only the difference.
//  3. Memory holds only what is needed: objects become records one by one, and neither messages nor lists are kept.
//  4. The event loop is never held for long: WatchList comes event by event, lists come in pages. Events of a namespace with very many of
//     them are held back while others have any (deferred-events.ts).
//  5. The load on the server stays low: jittered back-off, Retry-After, bookmarks, long watches with random ends.
//  6. A silent connection is trusted only as long as the server was asked to keep it open (silence-limit.ts).
//  7. Older servers work: without WatchList, and without the field selector if the decoder filters as well.
//
// configSyncPeriod has no effect here. In client-go a resync passes every cached object to its handlers again, to make up for handlers that
// failed; our engine keeps the changes that it could not apply and retries them itself.

import { ApiError, describeError, type ErrorCode, ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'
import { makeStatusError } from '../api-errors.ts'
import type { Client } from '../client.ts'
import type { MessageBatches } from '../message-stream.ts'
import { ChangeFilter, type RecordSink } from './change-filter.ts'
import { DeferredEvents, readInTurns } from './deferred-events.ts'
import { EventReader } from './event-reader.ts'
import { PageReader } from './page-reader.ts'
import { canResume, computeRetryDelay, maxBackoffMs } from './retry-policy.ts'
import { SilenceLimit } from './silence-limit.ts'
import {
  isSnapshotEnd,
  type ListPage,
  makeMalformedError,
  type WatchEvent,
  type WatchMessage,
} from './watch-messages.ts'
import type { WatchedResource } from './watched-resources.ts'

export interface ReflectorOptions<R> extends WatchedResource<R> {
  readonly client: Pick<Client, 'request' | 'stream'>
  readonly sink: RecordSink<R>
  readonly clock: Clock
  readonly log: Logger
  readonly random?: () => number
}

export interface ReflectorStatus {
  readonly kind: string
  readonly synced: boolean
  readonly connected: boolean
  readonly objects: number
  readonly resourceVersion: string
  /** Unix ms of the last message; 0 before the first. */
  readonly lastMessageAt: number
  /** Why there is no connection; '' while there is one. */
  readonly error: string
}

/** Two snapshots within this time count as a server that forgets versions too fast. */
const recentSnapshotMs = 10_000

/** Codes of a server that does not support WatchList. */
const watchListRefusals: ReadonlySet<ErrorCode> = new Set([
  'bad-request',
  'invalid',
  'method-not-allowed',
  'watch-list-ignored',
])

/** Codes of a snapshot that one object, or a missing right to watch, may have spoilt. A list may still be readable. */
const listableCodes: ReadonlySet<ErrorCode> = new Set(['malformed-event', 'line-too-long', 'forbidden'])

export class Reflector<R> {
  readonly #options: ReflectorOptions<R>
  readonly #filter: ChangeFilter<R>
  readonly #random: () => number
  readonly #timeSlice: TimeSlice
  readonly #pages: PageReader
  readonly #deferred: DeferredEvents
  readonly #reader: EventReader
  /** Where the next watch starts; '' if a snapshot is needed. */
  #version = ''
  /** The next snapshot may be of any version from this one on; '' if it must be the newest one. */
  #leastVersion = ''
  #usesWatchList = true
  /** True if this server has streamed a snapshot: then silence means that it is busy. */
  #hasStreamed = false
  /** True while the watch sends a snapshot. */
  #inSnapshot = false
  #fieldSelector: string | undefined
  #synced = false
  #connected = false
  #lastMessageAt = 0
  #error = ''
  #failures = 0
  #snapshotAt = Number.NEGATIVE_INFINITY

  constructor(options: ReflectorOptions<R>) {
    this.#options = options
    this.#filter = new ChangeFilter(options, options.sink, (object, reason) =>
      options.log.info('Ignoring an object', { kind: options.kind, object, reason }),
    )
    this.#random = options.random ?? Math.random
    this.#timeSlice = new TimeSlice(options.clock)
    this.#pages = new PageReader(options)
    this.#deferred = new DeferredEvents(options.clock)
    const prepare = (object: unknown) => this.#filter.prepare(object)
    this.#reader = new EventReader(options.protobuf, prepare, this.#timeSlice)
    this.#fieldSelector = options.fieldSelector
  }

  status(): ReflectorStatus {
    return {
      kind: this.#options.kind,
      synced: this.#synced,
      connected: this.#connected,
      objects: this.#filter.size,
      resourceVersion: this.#version,
      lastMessageAt: this.#lastMessageAt,
      error: this.#error,
    }
  }

  /** Resolves when the signal aborts. Never rejects: whatever is thrown, a failure of the server or a bug, is reported and retried. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock } = this.#options
    while (!signal.aborted) {
      const started = clock.monotonic()
      let delayMs = 0
      try {
        await this.#readOnce(signal)
        // A server ends a watch after minutes. If it ends at once, something is wrong.
        if (clock.monotonic() - started < 1_000) throw new ProxyError('connection', 'the watch ended at once')
      } catch (error) {
        if (signal.aborted) break
        // A kind that never changes makes no progress, but a connection that lasted counts as progress.
        if (clock.monotonic() - started >= maxBackoffMs) this.#failures = 0
        delayMs = this.#planRetry(asProxyError(error))
      }
      this.#connected = false
      await sleep(clock, delayMs, signal).catch(() => {})
    }
    this.#connected = false
  }

  /** Reads a snapshot if one is needed, then a watch. Returns when the server ends the watch in good order. */
  async #readOnce(signal: AbortSignal): Promise<void> {
    if (this.#version !== '') return this.#watch(false, signal)
    this.#snapshotAt = this.#options.clock.monotonic()
    if (this.#usesWatchList) {
      try {
        return await this.#watch(true, signal)
      } catch (error) {
        if (signal.aborted || this.#version !== '' || !this.#canListInstead(error)) throw error
      }
    }
    await this.#list(signal)
    await this.#watch(false, signal)
  }

  /** Returns whether a list may provide the snapshot that WatchList did not provide. */
  #canListInstead(error: unknown): boolean {
    if (!(error instanceof ProxyError) || this.#isSelectorUnknown(error)) return false
    if (error.code === 'watch-list-ignored' && this.#hasStreamed) return false
    const isRefused = watchListRefusals.has(error.code) || (error instanceof ApiError && error.status === 501)
    if (isRefused) {
      this.#usesWatchList = false
      this.#options.log.info('The API server does not stream lists; they are read in pages', this.#fields(error))
    }
    if (error.code === 'malformed-event') this.#reportMalformed(error)
    return isRefused || listableCodes.has(error.code)
  }

  // ---- Watch. ----

  /** Reads a watch until the server ends it. With `isInitial`, the watch begins with a snapshot. */
  async #watch(isInitial: boolean, signal: AbortSignal): Promise<void> {
    const { client, clock, resource } = this.#options
    const timeoutSeconds = 300 + Math.floor(this.#random() * 300)
    const limit = new SilenceLimit(clock, signal, timeoutSeconds)
    if (isInitial) this.#filter.beginSnapshot()
    const start = isInitial
      ? {
          sendInitialEvents: 'true',
          resourceVersionMatch: 'NotOlderThan',
          resourceVersion: this.#leastVersion || undefined,
        }
      : { resourceVersion: this.#version }
    const bounds = { allowWatchBookmarks: 'true', timeoutSeconds: String(timeoutSeconds) }
    const query = { ...this.#selectors(), watch: 'true', ...bounds, ...start }
    try {
      const messages = await client.stream({ path: resource, query, signal: limit.signal, readsProtobuf: true })
      this.#connected = true
      await this.#readMessages(messages, limit, isInitial)
    } finally {
      limit.close()
      // The next watch starts after them.
      await this.#applyDeferred(signal)
    }
  }

  async #readMessages(messages: MessageBatches, limit: SilenceLimit, isInitial: boolean): Promise<void> {
    this.#inSnapshot = isInitial
    if (isInitial) limit.expectSnapshot()
    else limit.expectChanges()
    for await (const batch of readInTurns(messages, this.#deferred)) {
      const wasInSnapshot = this.#inSnapshot
      this.#timeSlice.restart()
      if (batch === undefined) await this.#applySomeDeferred()
      else await this.#readBatch(batch, limit.signal)
      if (this.#inSnapshot) limit.expectSnapshot()
      else if (wasInSnapshot) limit.expectChanges()
    }
    if (this.#inSnapshot) throw new ProxyError('connection', 'the connection ended before the snapshot did')
  }

  async #readBatch(batch: readonly WatchMessage[], signal: AbortSignal): Promise<void> {
    for (const message of batch) {
      const reading = this.#defer(message) ? undefined : this.#reader.read(message)
      const event = reading instanceof Promise ? await reading : reading
      if (reading !== event) signal.throwIfAborted()
      if (event === undefined || this.#defer(message, event)) {
        if (this.#deferred.isFull) await this.#applyDeferred(signal)
      } else {
        const snapshotVersion = this.#applyEvent(event, message)
        if (snapshotVersion !== undefined) {
          await this.#completeSnapshot(snapshotVersion)
          this.#hasStreamed = true
        }
      }
      if (this.#timeSlice.over) await this.#yieldLoop(signal)
    }
    this.#lastMessageAt = this.#options.clock.now()
  }

  /** Returns true if the message is held back. It counts as read: it is applied before the next watch starts. */
  #defer(message: WatchMessage, event?: WatchEvent): boolean {
    if (this.#inSnapshot) return false
    const version = event === undefined ? this.#deferred.takeUnread(message) : this.#deferred.takeRead(message, event)
    if (version === undefined) return false
    if (version !== '') this.#noteProgress(version)
    return true
  }

  /** Applies events that were held back until none is left or the time slice is used up. Only a bad message can end it: none is lost. */
  async #applySomeDeferred(): Promise<void> {
    do {
      const message = this.#deferred.shift()
      if (message === undefined) return
      try {
        const reading = this.#reader.read(message)
        const { type, object } = reading instanceof Promise ? await reading : reading
        if (type === 'DELETED') this.#filter.drop(object)
        else this.#filter.put(object)
      } catch (error) {
        // The watch has gone on. What the message says is only in a snapshot.
        this.#version = ''
        throw error
      }
    } while (!this.#timeSlice.over)
  }

  async #applyDeferred(signal: AbortSignal): Promise<void> {
    while (!this.#deferred.isEmpty && !signal.aborted) {
      await this.#applySomeDeferred()
      await this.#timeSlice.yieldLoop()
    }
  }

  /** Returns the version of the snapshot if the event ends it. */
  #applyEvent({ type, object, version }: WatchEvent, message: WatchMessage): string | undefined {
    switch (type) {
      case 'ADDED':
      case 'MODIFIED':
        this.#filter.put(object)
        break
      case 'DELETED':
        this.#filter.drop(object)
        break
      case 'BOOKMARK':
        if (this.#inSnapshot && version !== '' && isSnapshotEnd(object)) return version
        break
      case 'ERROR': {
        const error = makeStatusError({ status: 0, body: object, what: `watching ${this.#options.resource}` })
        // When etcd has forgotten just the next version, the server cannot build the event and answers 500 instead of 410, again and again:
        // only a snapshot helps.
        if (error.code === 'server-error') this.#version = ''
        throw error
      }
      default:
        throw makeMalformedError(message)
    }
    // The objects of a snapshot come in the order of their names, so that a watch can only start at its end.
    if (!this.#inSnapshot && version !== '') this.#noteProgress(version)
    return undefined
  }

  // ---- List. ----

  async #list(signal: AbortSignal): Promise<void> {
    this.#filter.beginSnapshot()
    let page: ListPage | undefined
    do {
      page = await this.#pages.read(this.#selectors(), page?.next, signal)
      await this.#deliverAll(page.items, signal)
    } while (page.next !== undefined)
    if (page.version === '') throw makeMalformedError('a list without resourceVersion')
    await this.#completeSnapshot(page.version)
  }

  /** Yields first: reading the page has held the event loop long enough. */
  async #deliverAll(items: readonly unknown[], signal: AbortSignal): Promise<void> {
    await this.#yieldLoop(signal)
    for (const item of items) {
      this.#filter.put(item)
      if (this.#timeSlice.over) await this.#yieldLoop(signal)
    }
    this.#lastMessageAt = this.#options.clock.now()
  }

  // ---- Progress and failures. ----

  async #yieldLoop(signal: AbortSignal): Promise<void> {
    await this.#timeSlice.yieldLoop()
    signal.throwIfAborted()
  }

  async #completeSnapshot(version: string): Promise<void> {
    const { log, kind, sink } = this.#options
    await runSliced(this.#filter.commitSnapshot(), this.#timeSlice)
    this.#inSnapshot = false
    this.#noteProgress(version)
    log.v(2, 'Snapshot complete', { kind, objects: this.#filter.size, version })
    if (this.#synced) return
    this.#synced = true
    sink.synced()
  }

  #noteProgress(version: string): void {
    this.#version = version
    this.#failures = 0
    this.#error = ''
  }

  /** Decides where the next read starts, and returns how long to wait before it. */
  #planRetry(error: ProxyError): number {
    if (this.#isSelectorUnknown(error)) {
      this.#fieldSelector = undefined
      const message = 'The API server does not support the field selector; objects are filtered here'
      this.#options.log.info(message, this.#fields(error))
      return 0
    }
    if (error.code === 'malformed-event') this.#reportMalformed(error)
    const failures = this.#failures++
    // A server that has forgotten the version has a newer one in its cache. It need not ask etcd for the newest, once for every node.
    this.#leastVersion = error.code === 'expired' ? this.#version : ''
    if (!canResume(error.code, failures)) this.#version = ''
    this.#report(error)
    const isSnapshotRecent = this.#options.clock.monotonic() - this.#snapshotAt < recentSnapshotMs
    return computeRetryDelay(error, { failures, isSnapshotRecent, random: this.#random })
  }

  /** Warns once about the same error; repetitions are logged only at a higher verbosity. */
  #report(error: ProxyError): void {
    const text = describeError(error)
    if (text === this.#error || error.code === 'expired') this.#options.log.v(2, 'Reading again', this.#fields(error))
    else this.#options.log.warn('Cannot read from the API server; will retry', this.#fields(error))
    this.#error = text
  }

  #reportMalformed(error: ProxyError): void {
    const { kind, sink, log } = this.#options
    try {
      sink.problem({ kind, object: '', uid: '', field: '', message: error.message })
    } catch (bug) {
      log.error('Cannot report an invalid watch event', { kind, error: describeError(bug) })
    }
  }

  #isSelectorUnknown(error: ProxyError): boolean {
    if (error.code !== 'bad-request' || this.#fieldSelector === undefined) return false
    if (this.#options.fieldSelectorOptional !== true) return false
    return !this.#usesWatchList || /field (label|selector)/i.test(error.message)
  }

  #selectors(): Record<string, string | undefined> {
    return { labelSelector: this.#options.labelSelector, fieldSelector: this.#fieldSelector }
  }

  #fields(error: ProxyError): Record<string, unknown> {
    const { kind, effect } = this.#options
    return { kind, error: describeError(error), ...(effect === undefined ? {} : { effect }) }
  }
}

/** Anything else than a ProxyError comes from a bug, or from a runtime that is out of stack or memory. */
const asProxyError = (error: unknown): ProxyError =>
  error instanceof ProxyError ? error : new ProxyError('unexpected', 'reading failed unexpectedly', { cause: error })
