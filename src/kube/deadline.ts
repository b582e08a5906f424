// A signal that the caller's signal or a time limit aborts; the limit is set anew for each step of a request.

import type { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'

/** The caller's signal, plus a limit that can be set anew for each step. */
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

  /** Replaces the limit that was set before. */
  start(ms: number, error: ProxyError): void {
    this.stop()
    this.#timer = this.#clock.after(ms, () => this.#controller.abort(error))
  }

  /** For what cannot be aborted itself: the promise goes on, but nobody waits for it. */
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

  end(): void {
    this.stop()
    this.#outer?.removeEventListener('abort', this.#onAbort)
  }
}
