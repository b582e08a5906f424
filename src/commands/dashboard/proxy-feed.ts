// Follows a proxy for all viewers together, as long as there is one: its events, its summary and its samples. If the proxy ends, the feed
// says so and tries again until the proxy answers.

import type { AdminEvent } from '../../http/admin.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import type { Overview, PageMessage } from '../../http/admin-page.ts'
import type { Sample } from '../../http/admin-samples.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { makeOverview } from './service-rows.ts'

/** A proxy without changes is asked this often. */
const idleMs = 5_000
/** After an event the proxy is asked soon, and then not again for this time. */
const busyMs = 1_000
const retryMs = 2_000
/** The samples of an hour. */
const keptSamples = 360

export type Viewer = (message: PageMessage) => void

export class ProxyFeed {
  readonly #reach: () => Promise<AdminClient>
  readonly #viewers = new Set<Viewer>()
  #client: Promise<AdminClient> | undefined
  #stop: AbortController | undefined
  #timer: NodeJS.Timeout | undefined
  #askedAt = 0
  #overview: Overview | undefined
  #samples: readonly Sample[] = []
  #gone = ''

  constructor(reach: () => Promise<AdminClient>) {
    this.#reach = reach
  }

  /** The client that was reached last. */
  client(): Promise<AdminClient> {
    this.#client ??= this.#reach()
    this.#client.catch(() => this.#forgetClient())
    return this.#client
  }

  /** '' before the first answer. */
  get revision(): string {
    return this.#overview?.revision ?? ''
  }

  get samples(): readonly Sample[] {
    return this.#samples
  }

  /** Sends what is known now, and everything that follows. */
  subscribe(viewer: Viewer): () => void {
    this.#viewers.add(viewer)
    if (this.#samples.length > 0) viewer({ kind: 'samples', samples: this.#samples })
    if (this.#overview !== undefined) viewer({ kind: 'overview', overview: this.#overview })
    if (this.#gone !== '') viewer({ kind: 'gone', message: this.#gone })
    if (this.#stop === undefined) this.#start()
    return () => {
      this.#viewers.delete(viewer)
      if (this.#viewers.size === 0) this.#end()
    }
  }

  close(): void {
    this.#viewers.clear()
    this.#end()
    void this.#client?.then((client) => client.close()).catch(() => {})
  }

  #start(): void {
    const stop = new AbortController()
    this.#stop = stop
    void this.#follow(stop.signal)
  }

  #end(): void {
    this.#stop?.abort()
    this.#stop = undefined
    clearTimeout(this.#timer)
  }

  async #follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        const client = await this.client()
        await this.#ask(signal)
        await client.events((event) => this.#pass(event, signal), signal)
        if (!signal.aborted) throw new ProxyError('no-proxy', 'the proxy has ended')
      } catch (error) {
        this.#report(error, signal)
      }
      await pause(retryMs, signal)
    }
  }

  #pass(event: AdminEvent, signal: AbortSignal): void {
    this.#publish({ kind: 'event', at: Date.now(), event })
    this.#schedule(Math.max(50, this.#askedAt + busyMs - Date.now()), signal)
  }

  #schedule(ms: number, signal: AbortSignal): void {
    clearTimeout(this.#timer)
    if (signal.aborted) return
    this.#timer = setTimeout(() => void this.#ask(signal).catch((error) => this.#report(error, signal)), ms)
  }

  async #ask(signal: AbortSignal): Promise<void> {
    this.#schedule(idleMs, signal)
    this.#askedAt = Date.now()
    const client = await this.client()
    await this.#readSamples(client)
    const overview = makeOverview(await client.summary(), Date.now())
    this.#gone = ''
    this.#overview = overview
    this.#publish({ kind: 'overview', overview })
  }

  async #readSamples(client: AdminClient): Promise<void> {
    const last = this.#samples.at(-1)?.at ?? 0
    const { samples, everyMs } = await client.samples(last)
    if (samples.length === 0) return
    // Another proxy may have taken over, whose samples begin again.
    const isGap = last > 0 && (samples[0] as Sample).at - last > 3 * everyMs
    this.#samples = [...(isGap ? [] : this.#samples), ...samples].slice(-keptSamples)
    this.#publish({ kind: 'samples', samples: this.#samples })
  }

  #report(error: unknown, signal: AbortSignal): void {
    if (signal.aborted) return
    if (!(error instanceof ProxyError)) throw error
    this.#forgetClient()
    this.#gone = describeError(error)
    this.#publish({ kind: 'gone', message: this.#gone })
  }

  #forgetClient(): void {
    void this.#client?.then((client) => client.close()).catch(() => {})
    this.#client = undefined
  }

  #publish(message: PageMessage): void {
    for (const viewer of this.#viewers) viewer(message)
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const timer = setTimeout(finish, ms)
    function finish() {
      clearTimeout(timer)
      signal.removeEventListener('abort', finish)
      resolve()
    }
    signal.addEventListener('abort', finish, { once: true })
  })
}
