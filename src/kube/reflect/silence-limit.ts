// Limits how long a watch may be silent: a snapshot must keep coming, a watch may be silent only as long as it was requested for.

import { ProxyError } from '../../lib/errors.ts'
import type { Clock } from '../../lib/time.ts'
import { Deadline } from '../deadline.ts'

/**
 * A server that accepts sendInitialEvents without supporting it would never send the end of the snapshot. A server that sends snapshots to
 * all nodes at once may be silent for many seconds, and giving up on it makes it send everything again.
 */
const snapshotSilenceMs = 30_000
/** How much later than requested a server may end a watch. */
const endToleranceMs = 30_000

const makeSnapshotError = () => new ProxyError('watch-list-ignored', 'the snapshot stopped before its end')

export class SilenceLimit {
  readonly #clock: Clock
  readonly #deadline: Deadline
  readonly #timeoutSeconds: number
  readonly #end: number

  /** `timeoutSeconds` is what the server is asked to keep the watch open for. */
  constructor(clock: Clock, signal: AbortSignal, timeoutSeconds: number) {
    this.#clock = clock
    this.#deadline = new Deadline(clock, signal)
    this.#timeoutSeconds = timeoutSeconds
    this.#end = clock.monotonic() + timeoutSeconds * 1000
  }

  /** Aborts with code 'watch-list-ignored' or 'stalled', or with the caller's signal. */
  get signal(): AbortSignal {
    return this.#deadline.signal
  }

  /** Called after each part of a snapshot. */
  expectSnapshot(): void {
    this.#deadline.start(snapshotSilenceMs, makeSnapshotError)
  }

  /** Called once, when the watch starts to follow changes. */
  expectChanges(): void {
    const remainingMs = Math.max(0, this.#end - this.#clock.monotonic())
    this.#deadline.start(
      remainingMs + endToleranceMs,
      () => new ProxyError('stalled', `nothing came for longer than the requested ${this.#timeoutSeconds} s`),
    )
  }

  close(): void {
    this.#deadline.end()
  }
}
