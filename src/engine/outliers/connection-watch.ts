// Turns notifications about tracked connections into answers and failures of endpoints. No I/O, and no clock: the caller passes the time.

import type { Failure } from './failing-nodes.ts'

export interface ConnectionEvent {
  /** Distinguishes connections. */
  readonly id: number
  readonly kind: 'new' | 'update' | 'destroy'
  /** True if a reply was seen. */
  readonly replied: boolean
  /** `ip:port` of who answers, or should. */
  readonly endpoint: string
  /** True if the client dialled another address than that of the endpoint. */
  readonly translated?: boolean
}

export interface EndpointWatcher {
  has(endpoint: string): boolean
  /** Called for a new connection that came by a service. */
  used?(endpoint: string, now: number): void
  answered(endpoint: string, now: number): void
  failed(endpoint: string, failure: Failure, now: number): void
}

/** A SYN that is not answered after this time was lost, or nobody is there: the client sends it again. */
export const answerMs = 1_000
/** Connections that wait for an answer and are remembered. More of them are not needed to judge endpoints. */
const maxPending = 20_000

export class ConnectionWatch {
  readonly #watcher: EndpointWatcher
  /** Connections without a reply, in the order of their start. */
  readonly #pending = new Map<number, { readonly endpoint: string; readonly at: number }>()

  constructor(watcher: EndpointWatcher) {
    this.#watcher = watcher
  }

  note({ id, kind, replied, endpoint, translated }: ConnectionEvent, now: number): void {
    if (kind === 'new' && translated === true) this.#watcher.used?.(endpoint, now)
    if (replied) {
      this.#pending.delete(id)
      if (kind !== 'destroy') this.#watcher.answered(endpoint, now)
    } else if (kind === 'destroy') {
      // The kernel forgets a connection at once when its first reply is a reset.
      if (this.#pending.delete(id)) this.#watcher.failed(endpoint, 'refused', now)
    } else if (kind === 'new' && this.#pending.size < maxPending && this.#watcher.has(endpoint)) {
      this.#pending.set(id, { endpoint, at: now })
    }
  }

  /** Counts the connections that have waited too long. A later answer still counts as one. */
  expire(now: number): void {
    for (const [id, { endpoint, at }] of this.#pending) {
      if (now - at < answerMs) return
      this.#pending.delete(id)
      this.#watcher.failed(endpoint, 'unanswered', now)
    }
  }

  /** Notifications were lost: what seems to wait may have been answered. */
  forget(): void {
    this.#pending.clear()
  }
}
