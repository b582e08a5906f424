// Decides when a lane syncs: at once after a quiet time or when urgent, else a minimum distance apart; again after a failure, and at least every so often.

import { ProxyError } from '../lib/errors.ts'
import type { Clock, Timer } from '../lib/time.ts'

export interface PacerOptions {
  /** Distance between the end of a run and the start of the next. */
  readonly minMs: number
  /** Distance between a failed run and the next, if that is not below `minMs`. */
  readonly retryMs: number
  /** Longest time without a run. */
  readonly maxMs: number
  readonly clock: Clock
  /** True if it worked. A rejection is a bug and is left to end the process. */
  readonly run: () => Promise<boolean>
}

export class Pacer {
  readonly #options: PacerOptions
  #state: 'idle' | 'running' | 'stopped' = 'stopped'
  #requested = false
  /** Something is broken: the next run does not keep its distance. */
  #urgent = false
  /** When a run last began that did not. */
  #rushed = Number.NEGATIVE_INFINITY
  /** Monotonic times; runs start at the later of the two, or of now and `#earliest` when requested. */
  #earliest = Number.NEGATIVE_INFINITY
  #latest = Number.POSITIVE_INFINITY
  #timer: Timer | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(options: PacerOptions) {
    if (options.maxMs < options.minMs) {
      const { minMs, maxMs } = options
      throw new ProxyError('config', `the maximum sync interval (${maxMs} ms) is below the minimum (${minMs} ms)`)
    }
    this.#options = options
  }

  /** From now on: on request, and without requests after the maximum interval. */
  start(): void {
    if (this.#state !== 'stopped') return
    this.#state = 'idle'
    this.#latest = this.#options.clock.monotonic() + this.#options.maxMs
    this.#arm()
  }

  /**
   * Asks for a run. Any number of requests before it starts make one run; one during a run makes one more. An urgent one starts as
   * soon as it can; but where something breaks again and again, one such run must do for each minimum distance.
   */
  request(urgent = false): void {
    if (this.#state === 'stopped' || (this.#requested && !urgent)) return
    this.#requested = true
    this.#urgent ||= urgent && this.#options.clock.monotonic() - this.#rushed >= this.#options.minMs
    if (this.#state === 'idle') this.#arm()
  }

  /** No further run; resolves when the one under way has ended. */
  async stop(): Promise<void> {
    this.#state = 'stopped'
    this.#timer?.cancel()
    await this.#running
  }

  #arm(): void {
    this.#timer?.cancel()
    const now = this.#options.clock.monotonic()
    const at = this.#urgent ? now : Math.max(this.#requested ? now : this.#latest, this.#earliest)
    // A timer also when it is due: a run never starts inside the event that asked for it, so what one read brought goes in one run.
    this.#timer = this.#options.clock.after(Math.max(0, at - now), () => {
      this.#running = this.#run()
    })
  }

  async #run(): Promise<void> {
    const { run, clock, minMs, maxMs, retryMs } = this.#options
    this.#state = 'running'
    if (this.#urgent) this.#rushed = clock.monotonic()
    this.#requested = false
    this.#urgent = false
    const ok = await run()
    if ((this.#state as string) === 'stopped') return
    const now = clock.monotonic()
    this.#state = 'idle'
    this.#earliest = now + minMs
    this.#latest = now + (ok ? maxMs : Math.min(retryMs, maxMs))
    this.#arm()
  }
}
