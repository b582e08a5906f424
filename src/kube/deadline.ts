// A signal that aborts with the caller's signal or at a time limit, which each step of a request sets again.

import type { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'

export class Deadline {
  readonly #controller = new AbortController()
  readonly #clock: Clock
  readonly #outer: AbortSignal | undefined
  readonly #onAbort = () => this.#controller.abort(this.#outer?.reason)
  #makeError: (() => ProxyError) | undefined
  #expiresAt = Number.POSITIVE_INFINITY
  #timer: { readonly firesAt: number; cancel(): void } | undefined

  constructor(clock: Clock, outer: AbortSignal | undefined) {
    this.#clock = clock
    this.#outer = outer
    if (outer?.aborted) this.#controller.abort(outer.reason)
    else outer?.addEventListener('abort', this.#onAbort, { once: true })
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get reason(): unknown {
    return this.#controller.signal.aborted ? this.#controller.signal.reason : undefined
  }

  /**
   * Sets the limit, and replaces an earlier one. A reader calls this for each part that it reads: the error is made only if the limit is
   * reached, and a timer that fires before the limit stays and is set again when it fires.
   */
  start(ms: number, makeError: () => ProxyError): void {
    this.#makeError = makeError
    this.#expiresAt = this.#clock.monotonic() + ms
    if (this.#timer !== undefined && this.#timer.firesAt <= this.#expiresAt) return
    this.#timer?.cancel()
    this.#arm(ms)
  }

  /** Waits for a promise that cannot be aborted: after an abort it goes on, but its result is ignored. */
  race<T>(promise: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const onAbort = () => reject(this.signal.reason)
      if (this.signal.aborted) onAbort()
      this.signal.addEventListener('abort', onAbort, { once: true })
      promise.then(resolve, reject).finally(() => this.signal.removeEventListener('abort', onAbort))
    })
  }

  stop(): void {
    this.#timer?.cancel()
    this.#timer = undefined
  }

  #arm(ms: number): void {
    const { cancel } = this.#clock.after(ms, () => this.#onTimer())
    this.#timer = { firesAt: this.#clock.monotonic() + ms, cancel }
  }

  #onTimer(): void {
    this.#timer = undefined
    const remainingMs = this.#expiresAt - this.#clock.monotonic()
    if (remainingMs <= 0) this.#controller.abort(this.#makeError?.())
    else this.#arm(remainingMs)
  }

  /** Also stops listening to the caller's signal. */
  end(): void {
    this.stop()
    this.#outer?.removeEventListener('abort', this.#onAbort)
  }
}
