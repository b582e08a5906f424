// What the page knows about the proxy, kept up to date by server-sent events while the page is visible.

import type { AdminEvent } from '../src/http/admin.ts'
import type { Overview, PageAbout, PageMessage } from '../src/http/admin-page.ts'
import type { Sample } from '../src/http/admin-samples.ts'
import { ask, parseAnswer } from './ask.ts'

export type Link =
  | { readonly kind: 'connecting' }
  | { readonly kind: 'live' }
  /** The dashboard answers, and its proxy does not. */
  | { readonly kind: 'gone'; readonly message: string }
  /** The dashboard does not answer. */
  | { readonly kind: 'lost' }

export interface SeenEvent {
  readonly at: number
  readonly event: AdminEvent
}

export interface LiveState {
  readonly about: PageAbout | undefined
  readonly link: Link
  readonly overview: Overview | undefined
  readonly samples: readonly Sample[]
  /** Newest first, since this page was opened. */
  readonly events: readonly SeenEvent[]
}

const maxEvents = 200

export class Live {
  state: LiveState = { about: undefined, link: { kind: 'connecting' }, overview: undefined, samples: [], events: [] }
  readonly #listeners = new Set<() => void>()
  #source: EventSource | undefined

  start(): void {
    void this.#readAbout()
    // A hidden page costs nothing, and a browser keeps only six connections to one server.
    document.addEventListener('visibilitychange', () => this.#follow())
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  async #readAbout(): Promise<void> {
    try {
      this.#change({ about: await ask<PageAbout>('about') })
      this.#follow()
    } catch {
      this.#change({ link: { kind: 'lost' } })
      setTimeout(() => void this.#readAbout(), 2_000)
    }
  }

  #follow(): void {
    if (document.hidden) {
      this.#source?.close()
      this.#source = undefined
    } else if (this.#source === undefined && this.state.about?.hasProxy === true) this.#open()
  }

  #open(): void {
    const source = new EventSource('/api/events')
    this.#source = source
    source.onmessage = ({ data }) => this.#take(parseAnswer<PageMessage>(String(data)))
    source.onerror = () => {
      this.#change({ link: { kind: 'lost' } })
      if (source.readyState !== EventSource.CLOSED) return
      // The browser gives up after an answer such as 401; the dashboard may be started again.
      this.#source = undefined
      setTimeout(() => this.#follow(), 2_000)
    }
  }

  #take(message: PageMessage): void {
    if (message.kind === 'overview') this.#change({ overview: message.overview, link: { kind: 'live' } })
    if (message.kind === 'samples') this.#change({ samples: message.samples })
    if (message.kind === 'gone') this.#change({ link: { kind: 'gone', message: message.message } })
    if (message.kind === 'event') {
      const { at, event } = message
      this.#change({ events: [{ at, event }, ...this.state.events].slice(0, maxEvents) })
    }
  }

  #change(change: Partial<LiveState>): void {
    this.state = { ...this.state, ...change }
    for (const listener of this.#listeners) listener()
  }
}
