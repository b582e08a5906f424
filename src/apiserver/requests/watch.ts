// One watch: the state or the missed changes first, then every change as it becomes durable, with bookmarks between.

import { type Clock, nextTurn, sleep } from '../../lib/time.ts'
import type { Rendering } from '../http/render.ts'
import { type StatusError, statusObject } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { metaOf } from '../schema/served-resources.ts'
import type { Change, Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { Matches } from './reads.ts'

/** Where a watch writes to. */
export interface WatchSink {
  /** False if it had better wait for `drained`. */
  write(text: string): boolean
  drained(): Promise<void>
  /** Characters or bytes that were written and have not left yet. */
  readonly waiting: number
}

export interface WatchRequestOptions {
  readonly registry: Registry
  readonly clock: Clock
  readonly resource: string
  readonly namespace: string | undefined
  readonly matches: Matches
  readonly rendering: Rendering
  readonly bookmarks: boolean
  /** Mark the end of the state by a bookmark (WatchList). */
  readonly markEnd: boolean
  readonly timeoutMs: number
}

/** A client that reads so slowly is better off with a new watch. */
const maxWaiting = 64 << 20
const bookmarkMs = 60_000
const chunk = 200
const initialEventsEnd = 'k8s.io/initial-events-end'

export type Start = { readonly state: readonly Entry[] } | { readonly missed: readonly Change[] }

/**
 * Resolves when the time is over, the signal aborts, or the client is too slow. What it starts from is decided by the caller
 * in the same turn in which this is called, so that no change can come between.
 */
export async function runWatch(
  options: WatchRequestOptions,
  start: Start,
  sink: WatchSink,
  signal: AbortSignal,
): Promise<void> {
  const { registry, clock, resource } = options
  const from = 'state' in start ? registry.head : registry.version
  const queue: Change[] = []
  let live = false
  let sent = from
  let slow = (): void => {}
  const tooSlow = new Promise<void>((resolve) => {
    slow = resolve
  })
  const send = (changes: readonly Change[]) => {
    const text = changes.map((change) => lineOf(options, change)).join('')
    if (text !== '') sink.write(text)
    sent = Math.max(sent, changes.at(-1)?.version ?? 0)
    if (sink.waiting > maxWaiting) slow()
  }
  const unsubscribe = registry.subscribe(resource, (changes) => {
    const news = changes.filter((change) => change.version > from)
    if (live) send(news)
    else queue.push(...news)
  })
  try {
    await registry.settled()
    if ('state' in start) await sendState(options, start.state, sink, signal)
    else
      for (let i = 0; i < start.missed.length && !signal.aborted; i += chunk) {
        const text = start.missed
          .slice(i, i + chunk)
          .map((change) => lineOf(options, change))
          .join('')
        if (text !== '' && !sink.write(text)) await sink.drained()
      }
    if (signal.aborted) return
    if (options.markEnd && options.bookmarks) {
      sink.write(bookmark(options, from, { [initialEventsEnd]: 'true' }))
    }
    live = true
    send(queue.splice(0))
    const ends = clock.monotonic() + options.timeoutMs
    while (!signal.aborted && sink.waiting <= maxWaiting) {
      const left = ends - clock.monotonic()
      // Timers may run a fraction of a millisecond early.
      if (left < 1) break
      const pause = new AbortController()
      const over = AbortSignal.any([signal, pause.signal])
      await Promise.race([sleep(clock, Math.min(left, bookmarkMs), over).catch(() => {}), tooSlow])
      pause.abort()
      if (options.bookmarks && !signal.aborted && sink.waiting <= maxWaiting) {
        sink.write(bookmark(options, Math.max(sent, registry.version), undefined))
      }
    }
  } finally {
    unsubscribe()
  }
}

async function sendState(
  options: WatchRequestOptions,
  state: readonly Entry[],
  sink: WatchSink,
  signal: AbortSignal,
): Promise<void> {
  const chosen = state.filter((entry) => options.matches(entry.object))
  for (let i = 0; i < chosen.length && !signal.aborted; i += chunk) {
    const text = chosen
      .slice(i, i + chunk)
      .map((entry) => `{"type":"ADDED","object":${options.rendering.event(entry.object, entry.json)}}\n`)
      .join('')
    if (!sink.write(text)) await sink.drained()
    // Others wait too.
    else await nextTurn()
  }
}

/** What the change means to somebody who sees only what matches; '' if nothing. */
function lineOf(options: WatchRequestOptions, change: Change): string {
  if (options.namespace !== undefined && change.namespace !== options.namespace) return ''
  const { previous, next } = change
  const was = previous !== undefined && options.matches(previous.object)
  const is = next !== undefined && options.matches(next.object)
  if (!was && !is) return ''
  const type = is ? (was ? 'MODIFIED' : 'ADDED') : 'DELETED'
  const key = `${options.rendering.id} ${type}`
  const kept = options.rendering.id === '' ? undefined : change.rendered.get(key)
  if (kept !== undefined) return kept
  const text = is
    ? options.rendering.event((next as Entry).object, (next as Entry).json)
    : options.rendering.event(lastState(previous as Entry, change.version), undefined)
  const line = `{"type":"${type}","object":${text}}\n`
  if (options.rendering.id !== '') change.rendered.set(key, line)
  return line
}

/** What is deleted is told as it was, at the version of its end. */
function lastState(entry: Entry, version: number): Json {
  return { ...entry.object, metadata: { ...metaOf(entry.object), resourceVersion: String(version) } }
}

function bookmark({ rendering }: WatchRequestOptions, version: number, annotations: Json | undefined): string {
  const metadata = {
    resourceVersion: String(version),
    creationTimestamp: null,
    ...(annotations === undefined ? {} : { annotations }),
  }
  return `{"type":"BOOKMARK","object":${rendering.bookmark(metadata)}}\n`
}

export const errorLine = (error: StatusError): string =>
  `${JSON.stringify({ type: 'ERROR', object: statusObject(error.refusal) })}\n`
