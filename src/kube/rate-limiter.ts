// A token bucket: so many requests a second on average, so many at once.

import { type Clock, sleep } from '../lib/time.ts'

export class TokenBucket {
  readonly #qps: number
  readonly #burst: number
  readonly #clock: Clock
  #tokens: number
  #at: number

  /** Negative `qps`: no limit; 0 means the default (5, burst 10), as in client-go. */
  constructor(qps: number, burst: number, clock: Clock) {
    this.#qps = qps === 0 ? 5 : qps
    this.#burst = burst > 0 ? burst : 10
    this.#clock = clock
    this.#tokens = this.#burst
    this.#at = clock.monotonic()
  }

  /** Resolves, with the ms it took, when a request may go out. First come, first served: each waits for its own token. */
  async acquire(signal?: AbortSignal): Promise<number> {
    if (this.#qps < 0) return 0
    const now = this.#clock.monotonic()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#at) / 1000) * this.#qps)
    this.#at = now
    this.#tokens--
    if (this.#tokens >= 0) return 0
    const waitMs = (-this.#tokens / this.#qps) * 1000
    try {
      await sleep(this.#clock, waitMs, signal)
    } catch (error) {
      this.#tokens++
      throw error
    }
    return waitMs
  }
}
