// Sweeps slots and chains a second after they fell out of use, in a steady rhythm, and notices when sweeps keep failing.

import type { Mutex } from '../../../lib/mutex.ts'
import type { Timer } from '../../../lib/time.ts'
import type { OpenContext } from '../../backend.ts'
import type { TableWriter } from './table-writer.ts'

/** A packet may be between two lookups, so objects stay for one to two periods. */
const periodMs = 1_100
/** After this many failed sweeps in a row the whole table is exchanged: something that we do not see refers to an object. */
const maxFailures = 3

export class Sweeper {
  readonly #context: Pick<OpenContext, 'clock' | 'log' | 'onDue'>
  readonly #writer: TableWriter
  readonly #mutex: Mutex
  #timer: Timer | undefined
  #failures = 0
  #isClosed = false

  constructor(context: Pick<OpenContext, 'clock' | 'log' | 'onDue'>, writer: TableWriter, mutex: Mutex) {
    this.#context = context
    this.#writer = writer
    this.#mutex = mutex
  }

  /** Sweeps kept failing: the table must be exchanged. */
  get isStuck(): boolean {
    return this.#failures >= maxFailures
  }

  /** Called when the table was exchanged. */
  resetFailures(): void {
    this.#failures = 0
  }

  /** Schedules a sweep if there is something to sweep and none is scheduled. What one sweep finds retired, the next one removes. */
  schedule(): void {
    if (this.#isClosed || this.#timer !== undefined || !this.#writer.needsSweep) return
    this.#timer = this.#context.clock.after(periodMs, () => {
      this.#timer = undefined
      this.#mutex
        .run(() => this.#sweep())
        .then(
          () => this.resetFailures(),
          (error) => this.#reportFailure(error),
        )
        .finally(() => this.schedule())
    })
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }

  async #sweep(): Promise<void> {
    // A sync must not wait for the removal of all that a large service had.
    if (!this.#isClosed) await this.#writer.sweep(() => this.#mutex.open > 1)
  }

  #reportFailure(error: unknown): void {
    this.#context.log.v(2, 'Sweeping unused slots and chains failed; trying again', { error })
    if (++this.#failures === maxFailures) this.#context.onDue?.()
  }
}
