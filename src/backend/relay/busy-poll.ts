// Keeps the event loop polling for a moment after a message was relayed: the answer often comes within that time, and sleeping costs more.
//
// A process that sleeps in the kernel must be woken, often on a processor that has gone idle, and finds its caches cold: on a quiet
// machine that is most of what a round trip through a relay takes. Polling again at once costs no more CPU than being woken.
// Where answers are slow, polling would cost CPU, so after a poll that found nothing the next messages go without one.

/** About what sleeping and being woken costs. */
const pollMs = 0.1

/** A larger message is part of a stream, whose next part comes anyway. */
const maxMessageBytes = 4096

/** Messages to skip after a poll that found nothing: in the worst case one poll is wasted for this many messages. */
const skippedAfterMiss = 16

export interface BusyPollOptions {
  readonly nowMs: () => number
  /** Calls back after the event loop has polled for input, without waiting for any. */
  readonly nextTurn: (resume: () => void) => void
}

export class BusyPoll {
  readonly #options: BusyPollOptions
  #isPolling = false
  #untilMs = 0
  #skips = 0

  constructor(options: BusyPollOptions) {
    this.#options = options
  }

  /** Called when `bytes` went to one side: polls for the answer of the other side for a moment from now. */
  noteRelayed(bytes: number): void {
    if (bytes > maxMessageBytes) return
    if (this.#skips > 0) {
      this.#skips--
      return
    }
    this.#untilMs = this.#options.nowMs() + pollMs
    if (this.#isPolling) return
    this.#isPolling = true
    this.#options.nextTurn(this.#poll)
  }

  readonly #poll = (): void => {
    this.#isPolling = this.#options.nowMs() < this.#untilMs
    if (this.#isPolling) this.#options.nextTurn(this.#poll)
    else this.#skips = skippedAfterMiss
  }
}

/** The process has one event loop, so all relays share one instance. */
export const busyPoll = new BusyPoll({ nowMs: () => performance.now(), nextTurn: setImmediate })
