// Runs one watch: first the current objects or the missed changes, then every change when it is on disk, with bookmarks in between.

import { type Clock, nextTurn, sleep } from '../../lib/time.ts'
import { type StatusError, statusObject, versionExpired, versionTooLarge } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { metadataOf } from '../schema/object-metadata.ts'
import type { Change, Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { WatchQuery } from './list-options.ts'
import type { WatchSink } from './watch-queue.ts'

export interface WatchRenderer {
  /** Renderers with equal ids render equally, so that watches can share the text; '' if the text may not be shared. */
  readonly id: string
  renderEvent(object: Json, json: string | undefined): string
  renderBookmark(metadata: Json): string
}

export interface WatchRequestOptions {
  readonly registry: Registry
  readonly clock: Clock
  readonly resource: string
  readonly namespace: string | undefined
  readonly query: WatchQuery
  readonly renderer: WatchRenderer
  readonly timeoutMs: number
}

/** A client that leaves more than this unread is too slow: it must start a new watch. */
const maxBuffered = 64 << 20
const bookmarkMs = 60_000
/** The number of lines in one write. */
const linesPerWrite = 200
const initialEventsEnd = 'k8s.io/initial-events-end'

/**
 * Resolves when the time is over, the signal aborts, or the client is too slow. An expired version is reported as an event of the watch,
 * as the real server does.
 */
export async function runWatch(options: WatchRequestOptions, sink: WatchSink, signal: AbortSignal): Promise<void> {
  const { registry, resource, namespace, query } = options
  const { version } = registry
  if (query.fromState) {
    const state = [...registry.list(resource, namespace)]
    return runFrom(new ChangeFeed(options, sink, registry.head), renderState(options, state), signal)
  }
  const after = query.version ?? version
  const missed = registry.changesSince(resource, after)
  if (after > version) sink.write(errorLine(versionTooLarge(after, version)))
  else if (missed === undefined) sink.write(errorLine(versionExpired(after, registry.horizon(resource))))
  else await runFrom(new ChangeFeed(options, sink, version), renderChanges(options, missed), signal)
}

const errorLine = (error: StatusError): string =>
  `${JSON.stringify({ type: 'ERROR', object: statusObject(error.refusal) })}\n`

/** The lines and the feed's version belong to the same turn of the event loop, so that no change can come between them. */
async function runFrom(feed: ChangeFeed, initialLines: Iterable<string>, signal: AbortSignal): Promise<void> {
  const unsubscribe = feed.subscribe()
  try {
    await feed.sendInitial(initialLines, signal)
    if (signal.aborted) return
    feed.goLive()
    await feed.sendBookmarks(signal)
  } finally {
    unsubscribe()
  }
}

/** Sends changes to a sink. It holds them back until the initial lines are sent, and then passes them on when they are published. */
class ChangeFeed {
  readonly #options: WatchRequestOptions
  readonly #sink: WatchSink
  /** The version of the initial lines; only newer changes are sent. */
  readonly #from: number
  readonly #tooSlow: Promise<void>
  #reportTooSlow: () => void = () => {}
  #held: Change[] = []
  #isLive = false
  #sent: number

  constructor(options: WatchRequestOptions, sink: WatchSink, from: number) {
    this.#options = options
    this.#sink = sink
    this.#from = from
    this.#sent = from
    this.#tooSlow = new Promise((resolve) => {
      this.#reportTooSlow = resolve
    })
  }

  subscribe(): () => void {
    return this.#options.registry.subscribe(this.#options.resource, (changes) => {
      const newer = changes.filter((change) => change.version > this.#from)
      if (this.#isLive) this.#send(newer)
      else this.#held.push(...newer)
    })
  }

  async sendInitial(lines: Iterable<string>, signal: AbortSignal): Promise<void> {
    await this.#options.registry.settled()
    let chunk: string[] = []
    for (const line of lines) {
      if (signal.aborted) return
      chunk.push(line)
      if (chunk.length < linesPerWrite) continue
      const isDrained = this.#sink.write(chunk.join(''))
      chunk = []
      await (isDrained ? nextTurn() : this.#sink.drained())
    }
    if (chunk.length > 0 && !this.#sink.write(chunk.join(''))) await this.#sink.drained()
  }

  /** Sends the changes that were held back, and from now on each change at once. */
  goLive(): void {
    const { query } = this.#options
    if (query.marksEnd && query.bookmarks) this.#sendBookmark(this.#from, { [initialEventsEnd]: 'true' })
    this.#isLive = true
    this.#send(this.#held.splice(0))
  }

  /** Resolves when the watch is over. */
  async sendBookmarks(signal: AbortSignal): Promise<void> {
    const { clock, timeoutMs, query, registry } = this.#options
    const ends = clock.monotonic() + timeoutMs
    while (!signal.aborted && !this.#isTooSlow) {
      const left = ends - clock.monotonic()
      // Timers may run a fraction of a millisecond early.
      if (left < 1) return
      await this.#wait(Math.min(left, bookmarkMs), signal)
      if (query.bookmarks && !signal.aborted && !this.#isTooSlow)
        this.#sendBookmark(Math.max(this.#sent, registry.version))
    }
  }

  get #isTooSlow(): boolean {
    return this.#sink.buffered > maxBuffered
  }

  #send(changes: readonly Change[]): void {
    const text = [...renderChanges(this.#options, changes)].join('')
    if (text !== '') this.#sink.write(text)
    this.#sent = Math.max(this.#sent, changes.at(-1)?.version ?? 0)
    if (this.#isTooSlow) this.#reportTooSlow()
  }

  /** Resolves earlier if the signal aborts or the client becomes too slow. */
  async #wait(ms: number, signal: AbortSignal): Promise<void> {
    const done = new AbortController()
    const timer = sleep(this.#options.clock, ms, AbortSignal.any([signal, done.signal])).catch(() => {})
    await Promise.race([timer, this.#tooSlow])
    done.abort()
  }

  #sendBookmark(version: number, annotations?: Json): void {
    const metadata = {
      resourceVersion: String(version),
      creationTimestamp: null,
      ...(annotations === undefined ? {} : { annotations }),
    }
    this.#sink.write(`{"type":"BOOKMARK","object":${this.#options.renderer.renderBookmark(metadata)}}\n`)
  }
}

function* renderState({ query, renderer }: WatchRequestOptions, state: readonly Entry[]): Generator<string> {
  for (const { object, json } of state) {
    if (query.matches(object)) yield formatEvent('ADDED', renderer.renderEvent(object, json))
  }
}

function* renderChanges(options: WatchRequestOptions, changes: readonly Change[]): Generator<string> {
  for (const change of changes) {
    const line = renderChange(options, change)
    if (line !== undefined) yield line
  }
}

type EventType = 'ADDED' | 'MODIFIED' | 'DELETED'

const formatEvent = (type: EventType, object: string): string => `{"type":"${type}","object":${object}}\n`

/** The event that a change is for a client that sees only matching objects; undefined if it sees none. */
function renderChange({ namespace, query, renderer }: WatchRequestOptions, change: Change): string | undefined {
  if (namespace !== undefined && change.namespace !== namespace) return undefined
  const previous = matchingEntry(change.previous, query)
  const next = matchingEntry(change.next, query)
  if (next !== undefined) {
    const type = previous === undefined ? 'ADDED' : 'MODIFIED'
    return shareLine(renderer, change, type, () => renderer.renderEvent(next.object, next.json))
  }
  if (previous === undefined) return undefined
  return shareLine(renderer, change, 'DELETED', () =>
    renderer.renderEvent(lastState(previous, change.version), undefined),
  )
}

const matchingEntry = (entry: Entry | undefined, query: WatchQuery): Entry | undefined =>
  entry !== undefined && query.matches(entry.object) ? entry : undefined

/** Renders the line, unless another watch with an equal renderer did so before. */
function shareLine({ id }: WatchRenderer, change: Change, type: EventType, render: () => string): string {
  const key = `${id} ${type}`
  const known = id === '' ? undefined : change.rendered.get(key)
  if (known !== undefined) return known
  const line = formatEvent(type, render())
  if (id !== '') change.rendered.set(key, line)
  return line
}

/** A deleted object is reported in its last state, with the version of its deletion. */
const lastState = ({ object }: Entry, version: number): Json => ({
  ...object,
  metadata: { ...metadataOf(object), resourceVersion: String(version) },
})
