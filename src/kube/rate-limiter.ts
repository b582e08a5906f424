// Limits the rate of requests with a token bucket: `qps` on average, `burst` at once.

import { type Clock, sleep } from '../lib/time.ts'

export class TokenBucket {
  readonly #qps: number
  readonly #burst: number
  readonly #clock: Clock
  #tokens: number
  /** When the tokens were last counted. */
  #countedAt: number

  /** As in client-go, a negative `qps` means no limit, and 0 means the default (5, burst 10). */
  constructor(qps: number, burst: number, clock: Clock) {
    this.#qps = qps === 0 ? 5 : qps
    this.#burst = burst > 0 ? burst : 10
    this.#clock = clock
    this.#tokens = this.#burst
    this.#countedAt = clock.monotonic()
  }

  /** Resolves when a request may go out, with the ms it waited. First come, first served: each request waits for its own token. */
  async acquire(signal?: AbortSignal): Promise<number> {
    if (this.#qps < 0) return 0
    const now = this.#clock.monotonic()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#countedAt) / 1000) * this.#qps)
    this.#countedAt = now
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
