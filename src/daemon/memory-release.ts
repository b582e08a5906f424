// Returns memory to the system after the start, and after later work that left some behind.

import type { SyncJournal } from '../engine/journal.ts'
import { describeError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'

/** The start has two ends: the first syncs, and the collection that V8 makes when it has been idle for eight seconds. */
const afterStartMs = [500, 15_000] as const
/** How long after a sync memory is looked at. Many syncs in this time lead to one look. */
const afterSyncMs = 15_000
/** Growth below this is not worth the milliseconds that a release takes. */
const minGrowthBytes = 6 << 20

export interface MemoryReleaseOptions {
  readonly journal: Pick<SyncJournal, 'subscribe'>
  readonly families: readonly Family[]
  readonly clock: Clock
  readonly log: Logger
  /** Returns memory to the system. */
  readonly release: () => void
  /** The resident memory of this process. */
  readonly readResidentBytes: () => number
}

export class MemoryRelease {
  readonly #options: MemoryReleaseOptions
  readonly #unsubscribe: () => void
  readonly #unsynced: Set<Family>
  /** The resident memory after the last release. */
  #released = 0
  #timer: Timer | undefined

  constructor(options: MemoryReleaseOptions) {
    this.#options = options
    this.#unsynced = new Set(options.families)
    this.#unsubscribe = options.journal.subscribe({
      report: ({ family, ok, idle }) => {
        if (!ok || idle) return
        const isFirst = this.#unsynced.delete(family)
        if (this.#unsynced.size === 0) this.#schedule(isFirst ? afterStartMs : [afterSyncMs])
      },
    })
  }

  close(): void {
    this.#unsubscribe()
    this.#timer?.cancel()
  }

  #schedule([waitMs, ...later]: readonly number[]): void {
    if (waitMs === undefined || this.#timer !== undefined) return
    this.#timer = this.#options.clock.after(waitMs, () => {
      this.#timer = undefined
      this.#releaseIfGrown()
      this.#schedule(later)
    })
  }

  #releaseIfGrown(): void {
    const { release, readResidentBytes, log } = this.#options
    try {
      const before = readResidentBytes()
      if (before - this.#released < minGrowthBytes) return
      release()
      this.#released = readResidentBytes()
      log.v(4, 'Returned memory to the system', { from: before, to: this.#released })
    } catch (error) {
      // The files that say what is resident cannot be read while the process has as many open files as it may have.
      log.v(2, 'Cannot return memory to the system', { error: describeError(error) })
    }
  }
}
