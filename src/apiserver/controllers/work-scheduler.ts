// Schedules the work of a controller after the changes that cause it.

import type { Clock, Timer } from '../../lib/time.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'

/** Notes what a change makes necessary, and does it after the change. */
export interface DeferredController {
  readonly hasWork: boolean
  observe(change: Change): void
  run(): void
}

/** The pause between attempts while the registry cannot write. */
const retryMs = 1_000

export class WorkScheduler {
  readonly #registry: Registry
  readonly #clock: Clock
  readonly #work: () => void
  #retry: Timer | undefined
  #isScheduled = false
  #closed = false

  constructor(registry: Registry, clock: Clock, work: () => void) {
    this.#registry = registry
    this.#clock = clock
    this.#work = work
  }

  /** Runs the work once, after all changes of the current turn of the event loop. */
  request(): void {
    if (this.#isScheduled || this.#closed) return
    this.#isScheduled = true
    if (this.#registry.failing) this.#retry = this.#clock.after(retryMs, () => this.#run())
    else setImmediate(() => this.#run())
  }

  close(): void {
    this.#closed = true
    this.#retry?.cancel()
  }

  #run(): void {
    this.#isScheduled = false
    if (!this.#closed) this.#work()
  }
}
