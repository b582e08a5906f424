// A signal that aborts with the caller's signal or at a time limit, which each step of a request sets again.

import type { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'

export class Deadline {
  readonly #controller = new AbortController()
  readonly #clock: Clock
  readonly #outer: AbortSignal | undefined
  readonly #onAbort = () => this.#controller.abort(this.#outer?.reason)
  #timer: { cancel(): void } | undefined

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

  /** Sets the limit, and replaces an earlier one. The error, whose stack trace is expensive, is made only if the limit is reached. */
  start(ms: number, makeError: () => ProxyError): void {
    this.stop()
    this.#timer = this.#clock.after(ms, () => this.#controller.abort(makeError()))
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

  /** Also stops listening to the caller's signal. */
  end(): void {
    this.stop()
    this.#outer?.removeEventListener('abort', this.#onAbort)
  }
}
