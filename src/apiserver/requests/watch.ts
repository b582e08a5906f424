// Runs one watch: first the current objects or the missed changes, then every change when it is on disk, with bookmarks in between.

import { type Clock, nextTurn, sleep } from '../../lib/time.ts'
import { type StatusError, statusObject, versionExpired, versionTooLarge } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { metadataOf } from '../schema/object-metadata.ts'
import { type Change, type Entry, sizeOfChange } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { WatchQuery } from './list-options.ts'
import type { BudgetedWatch, WatchBudget } from './watch-budget.ts'
import type { WatchSink } from './watch-queue.ts'

export interface WatchRenderer {
  /** Renderers with equal ids render equally, so that watches can share the text; '' if the text may not be shared. */
  readonly id: string
  /** One event as it goes to the client, with what separates it from the next. `json` is the object's text, if it is known. */
  formatEvent(type: EventType, object: Json, json: string | undefined): string
  formatBookmark(metadata: Json): string
  formatError(status: Json): string
}

export interface WatchRequestOptions {
  readonly registry: Registry
  readonly clock: Clock
  readonly resource: string
  readonly namespace: string | undefined
  readonly query: WatchQuery
  readonly renderer: WatchRenderer
  readonly timeoutMs: number
  readonly budget: WatchBudget
}

/** A client that leaves more than this unread is too slow: it must start a new watch. */
const maxBuffered = 64 << 20
const bookmarkMs = 60_000
/** The most lines and characters to collect for one write. */
const linesPerWrite = 200
const charactersPerWrite = 256 << 10
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
  const sendError = (error: StatusError) => sink.write(options.renderer.formatError(statusObject(error.refusal)))
  if (after > version) sendError(versionTooLarge(after, version))
  else if (missed === undefined) sendError(versionExpired(after, registry.horizon(resource)))
  else await runFrom(new ChangeFeed(options, sink, version), renderChanges(options, missed), signal)
}

/** The lines and the feed's version belong to the same turn of the event loop, so that no change can come between them. */
async function runFrom(feed: ChangeFeed, initialLines: Iterable<string>, signal: AbortSignal): Promise<void> {
  const unsubscribe = feed.subscribe()
  try {
    await feed.sendInitial(initialLines, signal)
    if (signal.aborted || feed.isTooSlow) return
    feed.goLive()
    await feed.sendBookmarks(signal)
  } finally {
    unsubscribe()
  }
}

/** Sends changes to a sink. It holds them back until the initial lines are sent, and then passes them on when they are published. */
class ChangeFeed implements BudgetedWatch {
  readonly #options: WatchRequestOptions
  readonly #sink: WatchSink
  /** The version of the initial lines; only newer changes are sent. */
  readonly #from: number
  readonly #tooSlow: Promise<void>
  #reportTooSlow: () => void = () => {}
  #held: Change[] = []
  #heldSize = 0
  #isLive = false
  #isTooSlow = false
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

  /** Held changes count, too: they would otherwise grow without limit while a client does not read the initial lines. */
  get buffered(): number {
    return this.#sink.buffered + this.#heldSize
  }

  get isTooSlow(): boolean {
    return this.#isTooSlow
  }

  endAsTooSlow(): void {
    this.#isTooSlow = true
    this.#dropHeld()
    this.#reportTooSlow()
  }

  subscribe(): () => void {
    const { registry, resource, budget } = this.#options
    const leaveBudget = budget.add(this)
    const unsubscribe = registry.subscribe(resource, (changes) => {
      if (this.#isTooSlow) return
      const newer = changes.filter((change) => change.version > this.#from)
      if (this.#isLive) this.#send(newer)
      else this.#hold(newer)
    })
    return () => {
      unsubscribe()
      leaveBudget()
    }
  }

  /** Resolves when the client has room for more, or is too slow. */
  async sendInitial(lines: Iterable<string>, signal: AbortSignal): Promise<void> {
    await this.#options.registry.settled()
    for (const text of joinLines(lines)) {
      if (signal.aborted || this.#isTooSlow) return
      if (this.#write(text)) await nextTurn()
      else await Promise.race([this.#sink.drained(), this.#tooSlow])
    }
  }

  /** Sends the changes that were held back, and from now on each change at once. */
  goLive(): void {
    const { query } = this.#options
    if (query.marksEnd && query.bookmarks) this.#sendBookmark(this.#from, { [initialEventsEnd]: 'true' })
    this.#isLive = true
    this.#send(this.#dropHeld())
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

  #hold(changes: readonly Change[]): void {
    for (const change of changes) {
      const size = sizeOfChange(change)
      if (!this.#options.budget.hasRoomFor(size)) this.endAsTooSlow()
      if (this.#isTooSlow) return
      this.#held.push(change)
      this.#heldSize += size
    }
    if (this.buffered > maxBuffered) this.endAsTooSlow()
  }

  #dropHeld(): readonly Change[] {
    this.#heldSize = 0
    return this.#held.splice(0)
  }

  #send(changes: readonly Change[]): void {
    for (const text of joinLines(renderChanges(this.#options, changes))) {
      if (this.#isTooSlow) return
      this.#write(text)
    }
    this.#sent = Math.max(this.#sent, changes.at(-1)?.version ?? 0)
  }

  /** Returns false if the writer should wait. A watch that is too slow writes no more. */
  #write(text: string): boolean {
    if (!this.#options.budget.hasRoomFor(text.length)) this.endAsTooSlow()
    if (this.#isTooSlow) return false
    const isDrained = this.#sink.write(text)
    if (this.buffered > maxBuffered) this.endAsTooSlow()
    return isDrained
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
    this.#write(this.#options.renderer.formatBookmark(metadata))
  }
}

/** Joins lines to texts that are worth a write of their own and not too large for the memory. */
function* joinLines(lines: Iterable<string>): Generator<string> {
  let text: string[] = []
  let size = 0
  for (const line of lines) {
    text.push(line)
    size += line.length
    if (text.length < linesPerWrite && size < charactersPerWrite) continue
    yield text.join('')
    text = []
    size = 0
  }
  if (text.length > 0) yield text.join('')
}

function* renderState({ query, renderer }: WatchRequestOptions, state: readonly Entry[]): Generator<string> {
  for (const { object, json } of state) {
    if (query.matches(object)) yield renderer.formatEvent('ADDED', object, json)
  }
}

function* renderChanges(options: WatchRequestOptions, changes: readonly Change[]): Generator<string> {
  for (const change of changes) {
    const line = renderChange(options, change)
    if (line !== undefined) yield line
  }
}

export type EventType = 'ADDED' | 'MODIFIED' | 'DELETED'

/** The event that a change is for a client that sees only matching objects; undefined if it sees none. */
function renderChange({ namespace, query, renderer }: WatchRequestOptions, change: Change): string | undefined {
  if (namespace !== undefined && change.namespace !== namespace) return undefined
  const previous = matchingEntry(change.previous, query)
  const next = matchingEntry(change.next, query)
  if (next !== undefined) {
    const type = previous === undefined ? 'ADDED' : 'MODIFIED'
    return shareLine(renderer, change, type, () => renderer.formatEvent(type, next.object, next.json))
  }
  if (previous === undefined) return undefined
  return shareLine(renderer, change, 'DELETED', () =>
    renderer.formatEvent('DELETED', lastState(previous, change.version), undefined),
  )
}

const matchingEntry = (entry: Entry | undefined, query: WatchQuery): Entry | undefined =>
  entry !== undefined && query.matches(entry.object) ? entry : undefined

/** Renders the line, unless another watch with an equal renderer did so before. */
function shareLine({ id }: WatchRenderer, change: Change, type: EventType, render: () => string): string {
  const key = `${id} ${type}`
  const known = id === '' ? undefined : change.rendered.get(key)
  if (known !== undefined) return known
  const line = render()
  if (id !== '') change.rendered.set(key, line)
  return line
}

/** A deleted object is reported in its last state, with the version of its deletion. */
const lastState = ({ object }: Entry, version: number): Json => ({
  ...object,
  metadata: { ...metadataOf(object), resourceVersion: String(version) },
})
