// Turns what is seen of connections into answers and failures of endpoints. No I/O, and no clock: the caller passes the time.

import type { Failure } from './failing-nodes.ts'

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

interface Pending {
  readonly endpoint: string
  readonly at: number
}

/** An endpoint is `ip:port`. An id distinguishes connections. */
export class ConnectionWatch {
  readonly #watcher: EndpointWatcher
  /** Connections without a reply, in the order of their start. */
  readonly #pending = new Map<number, Pending>()

  constructor(watcher: EndpointWatcher) {
    this.#watcher = watcher
  }

  /** `isTranslated`: the client dialled another address than that of the endpoint. */
  opened(id: number, endpoint: string, isTranslated: boolean, now: number): void {
    if (isTranslated) this.#watcher.used?.(endpoint, now)
    if (this.#pending.size < maxPending && this.#watcher.has(endpoint)) this.#pending.set(id, { endpoint, at: now })
  }

  answered(id: number, endpoint: string, now: number): void {
    this.#pending.delete(id)
    this.#watcher.answered(endpoint, now)
  }

  /** A connection ended without a reply: the kernel forgets it at once when its first reply is a reset. */
  ended(id: number, endpoint: string, now: number): void {
    if (this.#pending.delete(id)) this.#watcher.failed(endpoint, 'refused', now)
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
