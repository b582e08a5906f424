// Keeps one kind of object in step with the API server: a snapshot by WatchList or by paged list, then a watch, for ever.
//
// Goals, in this order:
//  1. No change is lost. The watch goes on exactly where it stopped (#version); when that is not possible, a new
//     snapshot is taken. Half a line at the end of a connection is dropped, since the next watch repeats its event.
//  2. No change is told twice. Deliveries knows each object's version, so a snapshot tells only the difference.
//  3. Nothing is held that is not needed: objects become records one by one, and neither JSON nor lists are kept.
//  4. The event loop is never held for long: WatchList comes line by line, lists come in pages.
//  5. The server is spared: jittered back-off, Retry-After, bookmarks, long watches with random ends.
//  6. A silent connection is not trusted longer than the server was asked to keep it open.
//  7. Older servers work: without WatchList, and without the field selector if the decoder filters as well.
//
// configSyncPeriod has nothing to do here. In client-go a resync hands every cached object to its handlers again, to
// make up for handlers that failed; our engine keeps what it could not apply and retries by itself.

import { ApiError, describeError, ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'
import { statusError } from '../api-errors.ts'
import type { Client } from '../client.ts'
import { Deadline } from '../deadline.ts'
import { ChangeFilter, type RecordSink } from './change-filter.ts'
import { asObject, type JsonObject } from './fields.ts'
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
  /** Unix ms of the last line; 0: none yet. */
  readonly heard: number
  /** Why there is no connection; '' while there is one. */
  readonly error: string
}

/** A page is parsed in one go: some milliseconds. */
const pageSize = '250'
/** A server that accepts sendInitialEvents but does not know it would leave us waiting for the end of the snapshot. */
const initialSilenceMs = 10_000
const stallSlackMs = 30_000
const firstBackoffMs = 800
const maxBackoffMs = 30_000
/** A version that the server keeps refusing (an etcd restored from a backup) is given up for a new snapshot. */
const maxResumes = 5
const initialEventsEnd = 'k8s.io/initial-events-end'

export class Reflector<R> {
  readonly #options: ReflectorOptions<R>
  readonly #deliveries: ChangeFilter<R>
  readonly #random: () => number
  readonly #stint: TimeSlice
  /** Where the watch goes on; '': a snapshot is needed. */
  #version = ''
  #watchList = true
  #fieldSelector: string | undefined
  #synced = false
  #connected = false
  #heard = 0
  #error = ''
  #failures = 0
  #snapshotAt = Number.NEGATIVE_INFINITY

  constructor(options: ReflectorOptions<R>) {
    this.#options = options
    this.#deliveries = new ChangeFilter(options.decode, options.sink)
    this.#random = options.random ?? Math.random
    this.#stint = new TimeSlice(options.clock)
    this.#fieldSelector = options.fieldSelector
  }

  status(): ReflectorStatus {
    return {
      kind: this.#options.kind,
      synced: this.#synced,
      connected: this.#connected,
      objects: this.#deliveries.size,
      resourceVersion: this.#version,
      heard: this.#heard,
      error: this.#error,
    }
  }

  /** Resolves when the signal aborts. Rejects only if there is a bug: every trouble with the server is retried. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const started = this.#options.clock.monotonic()
      let delay = 0
      try {
        await this.#cycle(signal)
        // The server ends a watch after minutes. If it does at once, something is wrong with one of us.
        if (this.#options.clock.monotonic() - started < 1_000)
          throw new ProxyError('connection', 'the watch ended at once')
      } catch (error) {
        if (signal.aborted) break
        // A kind that never changes shows no progress, but a connection that lasted is as good.
        if (this.#options.clock.monotonic() - started >= maxBackoffMs) this.#failures = 0
        delay = this.#judge(error)
      }
      this.#connected = false
      await sleep(this.#options.clock, delay, signal).catch(() => {})
    }
    this.#connected = false
  }

  /** One connection, or a list and a connection; returns when the server ends the watch in good order. */
  async #cycle(signal: AbortSignal): Promise<void> {
    if (this.#version === '') {
      this.#snapshotAt = this.#options.clock.monotonic()
      if (this.#watchList) {
        try {
          return await this.#stream(true, signal)
        } catch (error) {
          if (signal.aborted || this.#version !== '' || !this.#mayList(error)) throw error
        }
      }
      await this.#list(signal)
    }
    await this.#stream(false, signal)
  }

  /** Whether a snapshot that WatchList did not give may be had by a list. */
  #mayList(error: unknown): boolean {
    if (!(error instanceof ProxyError) || this.#selectorUnknown(error)) return false
    const refused =
      ['bad-request', 'invalid', 'method-not-allowed', 'ignored'].includes(error.code) ||
      (error instanceof ApiError && error.status === 501)
    if (refused) {
      this.#watchList = false
      this.#options.log.info('The API server does not stream lists; they are read in pages', this.#fields(error))
    }
    if (error.code === 'garbage') this.#reportGarbage(error)
    return refused || error.code === 'garbage' || error.code === 'forbidden'
  }

  /** A watch; with `initial`, one that begins with a snapshot. */
  async #stream(initial: boolean, signal: AbortSignal): Promise<void> {
    const { client, clock, resource } = this.#options
    const timeoutSeconds = 300 + Math.floor(this.#random() * 300)
    const ends = clock.monotonic() + timeoutSeconds * 1000
    const limit = new Deadline(clock, signal)
    const stopped = new ProxyError('ignored', 'the snapshot stopped before its end')
    const stalled = new ProxyError('stalled', `nothing came for longer than the ${timeoutSeconds} s we asked for`)
    // A snapshot must keep coming; a watch may be silent, but only as long as it was asked for.
    const arm = (streaming: boolean) => {
      if (streaming) limit.start(initialSilenceMs, stopped)
      else limit.start(Math.max(0, ends - clock.monotonic()) + stallSlackMs, stalled)
    }
    let streaming = initial
    if (initial) this.#deliveries.begin()
    try {
      const lines = await client.stream({
        path: resource,
        query: {
          ...this.#selectors(),
          watch: 'true',
          allowWatchBookmarks: 'true',
          timeoutSeconds: String(timeoutSeconds),
          ...(initial
            ? { sendInitialEvents: 'true', resourceVersionMatch: 'NotOlderThan' }
            : { resourceVersion: this.#version }),
        },
        signal: limit.signal,
      })
      this.#connected = true
      arm(streaming)
      for await (const batch of lines) {
        const snapshot = streaming
        this.#stint.restart()
        for (const line of batch) {
          const version = this.#event(line, streaming)
          if (version !== undefined) {
            await this.#settle(version)
            streaming = false
          }
          if (this.#stint.over) await this.#rest(limit.signal)
        }
        if (snapshot) arm(streaming)
        this.#heard = clock.now()
      }
      if (streaming) throw new ProxyError('connection', 'the connection ended before the snapshot did')
    } finally {
      limit.end()
    }
  }

  /** The snapshot's version at its end. */
  #event(line: string, streaming: boolean): string | undefined {
    const event = parseLine(line)
    const object = asObject(event?.object)
    if (event === undefined || object === undefined) throw garbage(line)
    const version = versionOf(object)
    switch (event.type) {
      case 'ADDED':
      case 'MODIFIED':
        this.#deliveries.put(object)
        break
      case 'DELETED':
        this.#deliveries.drop(object)
        break
      case 'BOOKMARK':
        if (streaming && isInitialEnd(object) && version !== '') return version
        break
      case 'ERROR': {
        const error = statusError({ status: 0, body: object, what: `watching ${this.#options.resource}` })
        // When etcd has forgotten just the next version, the server cannot build the event and says 500 instead of 410,
        // again and again: only a snapshot helps.
        if (error.code === 'server-error') this.#version = ''
        throw error
      }
      default:
        throw garbage(line)
    }
    // The objects of a snapshot come in the order of their names: only its end is a place to go on from.
    if (!streaming && version !== '') this.#progress(version)
    return undefined
  }

  async #list(signal: AbortSignal): Promise<void> {
    const { client, resource } = this.#options
    this.#deliveries.begin()
    let limit: string | undefined = pageSize
    let next: string | undefined
    for (;;) {
      let json: unknown
      try {
        const query: Record<string, string | undefined> = { ...this.#selectors(), limit, continue: next }
        json = (await client.request({ path: resource, query, signal })).json
      } catch (error) {
        if (!(error instanceof ProxyError) || error.code !== 'expired' || next === undefined) throw error
        // The snapshot that the pages are taken from is gone: all at once cannot expire.
        this.#options.log.info('A paged list expired; it is read at once', this.#fields(error))
        this.#deliveries.begin()
        limit = undefined
        next = undefined
        continue
      }
      const list = asObject(json)
      const metadata = asObject(list?.metadata)
      if (!Array.isArray(list?.items) || metadata === undefined) throw garbage(JSON.stringify(json) ?? '')
      await this.#deliverAll(list.items, signal)
      next = typeof metadata.continue === 'string' && metadata.continue !== '' ? metadata.continue : undefined
      if (next !== undefined) continue
      if (versionOf(list) === '') throw garbage('a list without resourceVersion')
      return this.#settle(versionOf(list))
    }
  }

  /** Lets others run first: reading the page has taken long enough already. */
  async #deliverAll(items: readonly unknown[], signal: AbortSignal): Promise<void> {
    await this.#rest(signal)
    for (const item of items) {
      this.#deliveries.put(item)
      if (this.#stint.over) await this.#rest(signal)
    }
    this.#heard = this.#options.clock.now()
  }

  async #rest(signal: AbortSignal): Promise<void> {
    await this.#stint.yieldLoop()
    signal.throwIfAborted()
  }

  async #settle(version: string): Promise<void> {
    await runSliced(this.#deliveries.committing(), this.#stint)
    this.#progress(version)
    this.#options.log.v(2, 'Snapshot complete', { kind: this.#options.kind, objects: this.#deliveries.size, version })
    if (this.#synced) return
    this.#synced = true
    this.#options.sink.synced()
  }

  #progress(version: string): void {
    this.#version = version
    this.#failures = 0
    this.#error = ''
  }

  /** Decides what the next cycle starts from, and how long to wait before it. */
  #judge(error: unknown): number {
    if (!(error instanceof ProxyError)) throw error
    if (this.#selectorUnknown(error)) {
      this.#fieldSelector = undefined
      this.#options.log.info(
        'The API server does not know the field selector; objects are filtered here',
        this.#fields(error),
      )
      return 0
    }
    if (error.code === 'garbage') this.#reportGarbage(error)
    const failures = this.#failures++
    const resumable = resumableCodes.has(error.code) && (failures < maxResumes || neverPoisoned.has(error.code))
    if (!resumable) this.#version = ''
    this.#report(error)
    // Nothing is wrong with a server that forgets; but after its restart it has forgotten for all nodes at once.
    const fresh = this.#options.clock.monotonic() - this.#snapshotAt < 10_000
    if (error.code === 'expired' && !fresh) return this.#random() * firstBackoffMs
    const asked = error instanceof ApiError ? (error.retryAfterMs ?? 0) : 0
    const ceiling = Math.min(maxBackoffMs, firstBackoffMs * 2 ** (failures + 1))
    return Math.max(Math.min(asked, 2 * maxBackoffMs), ceiling / 2) + this.#random() * (ceiling / 2)
  }

  /** Says the same thing once, and again only to those who want to hear more. */
  #report(error: ProxyError): void {
    const text = describeError(error)
    if (text === this.#error || error.code === 'expired') this.#options.log.v(2, 'Reading again', this.#fields(error))
    else this.#options.log.warn('Cannot read from the API server; will retry', this.#fields(error))
    this.#error = text
  }

  #reportGarbage(error: ProxyError): void {
    this.#options.sink.problem({ kind: this.#options.kind, object: '', uid: '', field: '', message: error.message })
  }

  #selectorUnknown(error: ProxyError): boolean {
    if (error.code !== 'bad-request' || this.#fieldSelector === undefined) return false
    if (this.#options.fieldSelectorOptional !== true) return false
    return !this.#watchList || /field (label|selector)/i.test(error.message)
  }

  #selectors(): Record<string, string | undefined> {
    return { labelSelector: this.#options.labelSelector, fieldSelector: this.#fieldSelector }
  }

  #fields(error: ProxyError): Record<string, unknown> {
    return { kind: this.#options.kind, error: describeError(error) }
  }
}

/** Errors that say nothing about the version we have; anything else leads to a new snapshot. */
const resumableCodes = new Set([
  'connection',
  'tls',
  'credentials',
  'unauthorized',
  'too-many-requests',
  'unavailable',
  'timeout',
  'server-error',
  'stalled',
  'resource-version-too-large',
])
/** Errors that come before the server has looked at the version. */
const neverPoisoned = new Set(['connection', 'tls', 'credentials', 'unauthorized', 'too-many-requests'])

function garbage(line: string): ProxyError {
  const shown = line.length <= 120 ? line : `${line.slice(0, 117)}...`
  return new ProxyError('garbage', `the API server sent what is no watch event: ${JSON.stringify(shown)}`)
}

function parseLine(line: string): JsonObject | undefined {
  try {
    return asObject(JSON.parse(line))
  } catch {
    return undefined
  }
}

function versionOf(object: JsonObject): string {
  const version = asObject(object.metadata)?.resourceVersion
  return typeof version === 'string' ? version : ''
}

const isInitialEnd = (object: JsonObject): boolean =>
  asObject(asObject(object.metadata)?.annotations)?.[initialEventsEnd] === 'true'
