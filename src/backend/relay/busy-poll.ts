// Stays awake for a moment after something was relayed: the answer is often that quick, and sleeping costs more.
//
// A process that sleeps in the kernel must be woken, on a processor that has gone idle too, and finds its caches cold: on a quiet
// machine that is most of what a round trip through a relay takes. Looking again at once costs no more CPU than being woken.
// Where answers are slow it would cost, so that a vigil in vain is not repeated for a while.

/** About what sleeping and being woken costs. */
const momentMs = 0.1

/** Bytes; more is part of a stream, whose next part comes anyway. */
const mostOfMessage = 4096

/** Relayed without a vigil after one in vain: at worst one moment is lost for so many. */
const restAfterVain = 16

export interface BusyPollOptions {
  readonly nowMs: () => number
  /** Calls back after the event loop has looked for input, without waiting for any. */
  readonly nextTurn: (resume: () => void) => void
}

export class BusyPoll {
  readonly #options: BusyPollOptions
  #awake = false
  #untilMs = 0
  #rest = 0

  constructor(options: BusyPollOptions) {
    this.#options = options
  }

  /** So much went to one side; the other side's answer is awaited for a moment from now. */
  noteRelayed(bytes: number): void {
    if (bytes > mostOfMessage) return
    if (this.#rest > 0) {
      this.#rest--
      return
    }
    this.#untilMs = this.#options.nowMs() + momentMs
    if (this.#awake) return
    this.#awake = true
    this.#options.nextTurn(this.#look)
  }

  readonly #look = (): void => {
    this.#awake = this.#options.nowMs() < this.#untilMs
    if (this.#awake) this.#options.nextTurn(this.#look)
    else this.#rest = restAfterVain
  }
}

/** One for the process: there is one event loop to keep awake. */
export const busyPoll = new BusyPoll({ nowMs: () => performance.now(), nextTurn: setImmediate })
