// Returns memory to the system after the start, and after later work that left some behind.

import type { SyncJournal } from '../engine/journal.ts'
import { describeError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'
import type { CollectionTime } from '../sys/release-memory.ts'

/** V8 collects garbage some seconds after the work that made it, and a collection leaves memory behind, too. */
const collectedMs = 15_000
/** When memory is looked at after the first syncs. */
const afterStartMs = [500, collectedMs] as const
/** The time without a sync after which memory is looked at, if there were many. */
const quietMs = 10_000
/** Fewer leave little behind, and a collection costs more than they did. */
const manySyncs = 100
/** Where syncs are few, or never pause for that long, memory is looked at this long after the first one. */
const maxBusyMs = 600_000
/** Growth below this is not worth the milliseconds that a release takes. */
const minGrowthBytes = 6 << 20

export interface MemoryReleaseOptions {
  readonly journal: Pick<SyncJournal, 'subscribe'>
  readonly families: readonly Family[]
  readonly clock: Clock
  readonly log: Logger
  /** Returns memory to the system. `collection` says which collection of garbage follows some seconds later. */
  readonly release: (how: { readonly collection: CollectionTime }) => void
  /** The resident memory of this process. */
  readonly readResidentBytes: () => number
}

export class MemoryRelease {
  readonly #options: MemoryReleaseOptions
  readonly #unsubscribe: () => void
  readonly #unsynced: Set<Family>
  /** When the last sync was. */
  #syncedAt = 0
  /** The syncs since memory was looked at. */
  #syncs = 0
  /** When memory is looked at after syncs at the latest; undefined if the timer waits for something else. */
  #latest: number | undefined
  /** The least resident memory after a release. One in the middle of work leaves more behind than one afterwards. */
  #least = 0
  #timer: Timer | undefined

  constructor(options: MemoryReleaseOptions) {
    this.#options = options
    this.#unsynced = new Set(options.families)
    this.#unsubscribe = options.journal.subscribe({
      report: ({ family, ok, idle }) => {
        if (ok && !idle) this.#noteSync(family)
      },
    })
  }

  close(): void {
    this.#unsubscribe()
    this.#timer?.cancel()
  }

  #noteSync(family: Family): void {
    this.#syncedAt = this.#options.clock.monotonic()
    this.#syncs++
    const isFirst = this.#unsynced.delete(family)
    if (this.#syncs === manySyncs && this.#latest !== undefined) {
      this.#timer?.cancel()
      this.#releaseWhenQuiet(this.#latest)
    }
    if (this.#unsynced.size > 0 || this.#timer !== undefined) return
    if (isFirst) this.#releaseAfter(afterStartMs, 'idle')
    else this.#releaseWhenQuiet(this.#syncedAt + maxBusyMs)
  }

  /** V8 collects once, after the first release: the others return what that has left behind. */
  #releaseAfter([waitMs, ...later]: readonly number[], collection: CollectionTime): void {
    if (waitMs === undefined) return
    const began = this.#options.clock.monotonic()
    this.#wait(waitMs, () => {
      this.#releaseIfGrown(collection)
      if (later.length > 0) this.#releaseAfter(later, 'none')
      // What syncs left behind in the meantime is not collected yet.
      else if (this.#syncedAt > began) this.#releaseWhenQuiet(this.#syncedAt + maxBusyMs)
    })
  }

  #releaseWhenQuiet(latest: number): void {
    const due = this.#syncs >= manySyncs ? Math.min(this.#syncedAt + quietMs, latest) : latest
    const waitMs = due - this.#options.clock.monotonic()
    this.#latest = waitMs > 0 ? latest : undefined
    if (waitMs > 0) this.#wait(waitMs, () => this.#releaseWhenQuiet(latest))
    else this.#releaseAfter([0, collectedMs], 'now')
  }

  #wait(ms: number, then: () => void): void {
    this.#timer = this.#options.clock.after(ms, () => {
      this.#timer = undefined
      then()
    })
  }

  #releaseIfGrown(collection: CollectionTime): void {
    this.#syncs = 0
    const { release, readResidentBytes, log } = this.#options
    try {
      const before = readResidentBytes()
      if (before - this.#least < minGrowthBytes) return
      release({ collection })
      const after = readResidentBytes()
      // Where a release is of no use, the process has more to keep now.
      this.#least = this.#least === 0 || before - after < minGrowthBytes / 2 ? after : Math.min(this.#least, after)
      log.v(4, 'Returned memory to the system', { from: before, to: after })
    } catch (error) {
      // The files that say what is resident cannot be read while the process has as many open files as it may have.
      log.v(2, 'Cannot return memory to the system', { error: describeError(error) })
    }
  }
}
