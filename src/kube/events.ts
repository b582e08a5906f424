// Records Events (events.k8s.io/v1) about this node and the objects it reads. Repeated events become a series. Callers never wait.

import { randomUUID } from 'node:crypto'
import { ApiError, describeError, ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, sleep } from '../lib/time.ts'
import type { Client } from './client.ts'

interface Reference {
  readonly apiVersion: string
  readonly kind: string
  /** '' if the kind has no namespace. */
  readonly namespace: string
  readonly name: string
  readonly uid?: string
  /** The part of the object that the event is about. */
  readonly fieldPath?: string
}

export interface Occurrence {
  readonly type: 'Normal' | 'Warning'
  readonly reason: string
  readonly action: string
  readonly note: string
  readonly regarding: Reference
}

export interface EventRecorderOptions {
  readonly client: Pick<Client, 'request'>
  readonly clock: Clock
  /** The name of the operating system, not the override. */
  readonly hostname: string
  readonly log: Logger
  readonly random?: () => number
}

const controller = 'kube-proxy'
const queueLimit = 1000
const maxAttempts = 12
const retryMs = 10_000
const refreshMs = 30 * 60_000
const seriesEndMs = 6 * 60_000
/** Length in bytes. The API server refuses longer notes. */
const noteLimit = 1024

/** An event with its repetitions. */
interface EventSeries {
  readonly path: string
  readonly event: { readonly metadata: { readonly name: string } }
  count: number
  observedAt: number
  /** The count that the API server has. */
  sentCount: number
  sentAt: number
  /** True once the API server has the event. */
  isCreated: boolean
}

export class EventRecorder {
  readonly #options: EventRecorderOptions
  readonly #instance: string
  readonly #series = new Map<string, EventSeries>()
  readonly #queue: EventSeries[] = []
  #dropped = 0
  #isSending = false
  #wake: (() => void) | undefined

  constructor(options: EventRecorderOptions) {
    this.#options = options
    this.#instance = `${controller}-${options.hostname}`.slice(0, 128)
  }

  /** Never throws, never waits. Events that are recorded before `run` are sent by `run`. */
  record(occurrence: Occurrence): void {
    const { type, reason, action, regarding } = occurrence
    const key = JSON.stringify([type, action, reason, regarding])
    const now = this.#options.clock.now()
    const known = this.#series.get(key)
    if (known !== undefined && now - known.observedAt < seriesEndMs) {
      known.count++
      known.observedAt = now
      // The first repetition is sent at once; further ones when the series is refreshed or ends.
      if (known.count === 2) this.#enqueue(known)
      return
    }
    const series = this.#beginSeries(occurrence, now)
    if (this.#enqueue(series)) this.#series.set(key, series)
  }

  /** Sends until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const stop = () => this.#wake?.()
    signal.addEventListener('abort', stop, { once: true })
    while (!signal.aborted) {
      const series = this.#queue.shift()
      this.#isSending = series !== undefined
      if (series !== undefined) await this.#deliver(series, signal)
      else await this.#waitForWork()
      this.#refreshSeries()
    }
    signal.removeEventListener('abort', stop)
  }

  /** Resolves when every event has been sent, or at the limit. For a process that is about to end. */
  async drain(limitMs: number): Promise<void> {
    const { clock } = this.#options
    const end = clock.monotonic() + limitMs
    while ((this.#isSending || this.#queue.length > 0) && clock.monotonic() < end) await sleep(clock, 20)
  }

  #beginSeries({ type, reason, action, note, regarding }: Occurrence, now: number): EventSeries {
    const namespace = regarding.namespace || 'default'
    const name = `${regarding.name}.${(BigInt(Math.round(now)) * 1_000_000n + this.#nanoseconds()).toString(16)}`
    const isValid = name.length <= 253 && /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/.test(name)
    const event = {
      apiVersion: 'events.k8s.io/v1',
      kind: 'Event',
      metadata: { name: isValid ? name : randomUUID(), namespace },
      eventTime: formatMicroTime(now),
      reportingController: controller,
      reportingInstance: this.#instance,
      type,
      reason,
      action,
      note: clip(note),
      regarding: { ...regarding, namespace: regarding.namespace === '' ? undefined : regarding.namespace },
    }
    // A name from JSON may have half a surrogate pair, for which encodeURIComponent throws.
    const path = `/apis/events.k8s.io/v1/namespaces/${encodeURIComponent(Buffer.from(namespace).toString())}/events`
    return { path, event, count: 1, observedAt: now, sentCount: 0, sentAt: now, isCreated: false }
  }

  /** The clock has only milliseconds, but two events within one millisecond need different names. */
  #nanoseconds(): bigint {
    return BigInt(Math.floor((this.#options.random ?? Math.random)() * 1_000_000))
  }

  #enqueue(series: EventSeries): boolean {
    if (this.#queue.includes(series)) return true
    if (this.#queue.length >= queueLimit) {
      if (this.#dropped++ === 0) this.#options.log.warn('Too many events wait to be sent; new events are dropped')
      return false
    }
    this.#dropped = 0
    this.#queue.push(series)
    this.#wake?.()
    return true
  }

  /** Resolves when an event is recorded, or when a series may have ended. */
  #waitForWork(): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        timer.cancel()
        this.#wake = undefined
        resolve()
      }
      const timer = this.#options.clock.after(seriesEndMs, done)
      this.#wake = done
      if (this.#queue.length > 0) done()
    })
  }

  /** Sends the count of every series that has ended or was last sent long ago. Forgets the series that have ended. */
  #refreshSeries(): void {
    const now = this.#options.clock.now()
    for (const [key, series] of this.#series) {
      const { count, sentCount, sentAt, observedAt } = series
      // A wall clock that was set back must not keep a series for as long as it was set back.
      const hasEnded = Math.abs(now - observedAt) >= seriesEndMs
      if (count > sentCount && sentCount > 0 && (hasEnded || now - sentAt >= refreshMs)) this.#enqueue(series)
      if (hasEnded) this.#series.delete(key)
    }
  }

  async #deliver(series: EventSeries, signal: AbortSignal): Promise<void> {
    const { clock, log } = this.#options
    for (let attempt = 1; !signal.aborted; attempt++) {
      try {
        await this.#send(series, signal)
        return
      } catch (error) {
        if (signal.aborted) return
        // Another attempt does not change a refusal. Only an event that did not reach the API server is sent again.
        if (!isWorthRetrying(error) || attempt >= maxAttempts) {
          const { name } = series.event.metadata
          log.warn('Cannot write an event', { event: name, attempt, error: describeError(error) })
          return
        }
        const jitter = 1 + 0.25 * (this.#options.random ?? Math.random)()
        await sleep(clock, retryMs * jitter, signal).catch(() => {})
      }
    }
  }

  async #send(series: EventSeries, signal: AbortSignal): Promise<void> {
    const { count } = series
    try {
      await this.#request(series, signal)
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      if (series.isCreated && error.code === 'not-found') {
        // The API server deletes an event after an hour. The series continues in a new event of the same name.
        series.isCreated = false
        return this.#send(series, signal)
      }
      // Otherwise the answer to an earlier attempt was lost, but the event was written.
      if (error.code !== 'already-exists') throw error
    }
    series.isCreated = true
    series.sentCount = count
    series.sentAt = this.#options.clock.now()
  }

  async #request({ path, event, count, observedAt, isCreated }: EventSeries, signal: AbortSignal): Promise<void> {
    const { client } = this.#options
    const body = count > 1 ? { series: { count, lastObservedTime: formatMicroTime(observedAt) } } : {}
    if (!isCreated) {
      await client.request({ method: 'POST', path, body: { ...event, ...body }, signal })
      return
    }
    await client.request({
      method: 'PATCH',
      path: `${path}/${event.metadata.name}`,
      contentType: 'application/merge-patch+json',
      body,
      signal,
    })
  }
}

/** A bug, and not the API server, throws anything else than a ProxyError. */
function isWorthRetrying(error: unknown): boolean {
  if (!(error instanceof ApiError)) return error instanceof ProxyError
  return error.status >= 500 || error.code === 'too-many-requests'
}

/** Formats RFC 3339 with six digits, as the API's MicroTime requires. */
const formatMicroTime = (unixMs: number): string => new Date(unixMs).toISOString().replace('Z', '000Z')

function clip(note: string): string {
  const bytes = Buffer.from(note)
  if (bytes.length <= noteLimit) return note
  return `${bytes
    .subarray(0, noteLimit - 6)
    .toString('utf8')
    .replace(/\uFFFD+$/, '')}...`
}
