// Tells users through events.k8s.io/v1 what happens on this node; repeats become a series, and nobody ever waits for it.

import { randomUUID } from 'node:crypto'
import { ApiError, describeError, ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, sleep } from '../lib/time.ts'
import type { Client } from './client.ts'

interface Reference {
  readonly apiVersion: string
  readonly kind: string
  /** '' if the kind has none. */
  readonly namespace: string
  readonly name: string
  readonly uid?: string
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
  /** The operating system's, not the override. */
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
/** Bytes; the API server refuses longer notes. */
const noteLimit = 1024

/** An event and, once it has repeated, its series. */
interface Story {
  readonly path: string
  readonly event: { readonly metadata: { readonly name: string } }
  count: number
  observed: number
  /** What the API server has been told. */
  told: number
  toldAt: number
  created: boolean
}

export class EventRecorder {
  readonly #options: EventRecorderOptions
  readonly #instance: string
  readonly #stories = new Map<string, Story>()
  readonly #queue: Story[] = []
  #dropped = 0
  #busy = false
  #wake: (() => void) | undefined

  constructor(options: EventRecorderOptions) {
    this.#options = options
    this.#instance = `${controller}-${options.hostname}`.slice(0, 128)
  }

  /** Never throws, never waits. What is recorded before `run` is sent by it. */
  record(occurrence: Occurrence): void {
    const { type, reason, action, regarding } = occurrence
    const key = JSON.stringify([type, action, reason, regarding])
    const now = this.#options.clock.now()
    const known = this.#stories.get(key)
    if (known !== undefined && now - known.observed < seriesEndMs) {
      known.count++
      known.observed = now
      // The first repeat is told at once; further ones when the series is refreshed or ends.
      if (known.count === 2) this.#enqueue(known)
      return
    }
    const story = this.#begin(occurrence, now)
    if (this.#enqueue(story)) this.#stories.set(key, story)
  }

  /** Sends until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const stop = () => this.#wake?.()
    signal.addEventListener('abort', stop, { once: true })
    while (!signal.aborted) {
      const story = this.#queue.shift()
      this.#busy = story !== undefined
      if (story !== undefined) await this.#deliver(story, signal)
      else await this.#idle()
      this.#review()
    }
    signal.removeEventListener('abort', stop)
  }

  /** For a process that is about to end: until everything is sent, but no longer than that. */
  async drain(limitMs: number): Promise<void> {
    const { clock } = this.#options
    const end = clock.monotonic() + limitMs
    while ((this.#busy || this.#queue.length > 0) && clock.monotonic() < end) await sleep(clock, 20)
  }

  #begin({ type, reason, action, note, regarding }: Occurrence, now: number): Story {
    const namespace = regarding.namespace || 'default'
    const name = `${regarding.name}.${(BigInt(Math.round(now)) * 1_000_000n + this.#nanoseconds()).toString(16)}`
    const valid = name.length <= 253 && /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/.test(name)
    const event = {
      apiVersion: 'events.k8s.io/v1',
      kind: 'Event',
      metadata: { name: valid ? name : randomUUID(), namespace },
      eventTime: microTime(now),
      reportingController: controller,
      reportingInstance: this.#instance,
      type,
      reason,
      action,
      note: clip(note),
      regarding: { ...regarding, namespace: regarding.namespace === '' ? undefined : regarding.namespace },
    }
    const path = `/apis/events.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/events`
    return { path, event, count: 1, observed: now, told: 0, toldAt: now, created: false }
  }

  /** Our clock ticks in milliseconds; two events in one must still have two names. */
  #nanoseconds(): bigint {
    return BigInt(Math.floor((this.#options.random ?? Math.random)() * 1_000_000))
  }

  #enqueue(story: Story): boolean {
    if (this.#queue.includes(story)) return true
    if (this.#queue.length >= queueLimit) {
      if (this.#dropped++ === 0) this.#options.log.warn('Too many events wait to be sent; new ones are dropped')
      return false
    }
    this.#dropped = 0
    this.#queue.push(story)
    this.#wake?.()
    return true
  }

  /** Until something is recorded, or it is time to look after the series. */
  #idle(): Promise<void> {
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

  #review(): void {
    const now = this.#options.clock.now()
    for (const [key, story] of this.#stories) {
      const ended = now - story.observed >= seriesEndMs
      if (story.count > story.told && story.told > 0 && (ended || now - story.toldAt >= refreshMs)) this.#enqueue(story)
      if (ended) this.#stories.delete(key)
    }
  }

  async #deliver(story: Story, signal: AbortSignal): Promise<void> {
    const { clock, log } = this.#options
    for (let attempt = 1; !signal.aborted; attempt++) {
      try {
        await this.#send(story, signal)
        return
      } catch (error) {
        if (signal.aborted) return
        if (!(error instanceof ProxyError)) throw error
        // A refusal stays a refusal; only what did not get through is worth another try.
        const refused = error instanceof ApiError && error.status < 500 && error.code !== 'too-many-requests'
        if (refused || attempt >= maxAttempts) {
          log.warn('An event could not be written', {
            event: story.event.metadata.name,
            attempt,
            error: describeError(error),
          })
          return
        }
        const jitter = 1 + 0.25 * (this.#options.random ?? Math.random)()
        await sleep(clock, retryMs * jitter, signal).catch(() => {})
      }
    }
  }

  async #send(story: Story, signal: AbortSignal): Promise<void> {
    const { client, clock } = this.#options
    const { count, observed } = story
    const series = count > 1 ? { series: { count, lastObservedTime: microTime(observed) } } : {}
    try {
      if (story.created) {
        await client.request({
          method: 'PATCH',
          path: `${story.path}/${story.event.metadata.name}`,
          contentType: 'application/merge-patch+json',
          body: series,
          signal,
        })
      } else await client.request({ method: 'POST', path: story.path, body: { ...story.event, ...series }, signal })
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      if (story.created && error.code === 'not-found') {
        // It lived for an hour and is gone; the series goes on in a new event of the same name.
        story.created = false
        return this.#send(story, signal)
      }
      // The answer to our first try was lost, but the event was not.
      if (error.code !== 'already-exists') throw error
    }
    story.created = true
    story.told = count
    story.toldAt = clock.now()
  }
}

/** RFC 3339 with six digits, which is what the API's MicroTime reads. */
const microTime = (unixMs: number): string => new Date(unixMs).toISOString().replace('Z', '000Z')

function clip(note: string): string {
  const bytes = Buffer.from(note)
  if (bytes.length <= noteLimit) return note
  return `${bytes
    .subarray(0, noteLimit - 6)
    .toString('utf8')
    .replace(/\uFFFD+$/, '')}...`
}
