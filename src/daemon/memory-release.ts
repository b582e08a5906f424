// Returns memory to the system after the start, and after later work that left some behind.

import type { SyncJournal } from '../engine/journal.ts'
import { describeError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'
import type { HeapCollection } from '../sys/release-memory.ts'

interface ReleaseStep {
  /** The time since the step before. */
  readonly waitMs: number
  readonly collection: HeapCollection
  /** True if the step is taken even if memory has hardly grown. */
  readonly always?: true
}

/** Growth below this is not worth the milliseconds that a release takes. */
const minGrowthBytes = 6 << 20
/** Less is not worth the compiled code that V8 forgets when it compacts its heap, nor the milliseconds that it stops everything else. */
const minScatteredBytes = 16 << 20
/** A collection takes less than a second. It shows how scattered the rest is, and leaves memory behind, too. */
const afterCollection: readonly ReleaseStep[] = [
  { waitMs: 3_000, collection: 'compacting' },
  { waitMs: 7_000, collection: 'none' },
]
/** After the first syncs. The first collection waits until what else begins at the start of a node had its time. */
const afterStart: readonly ReleaseStep[] = [
  { waitMs: 500, collection: 'none' },
  { waitMs: 5_000, collection: 'ordinary', always: true },
  ...afterCollection,
]
/** After first syncs that left much behind, which need not stay for seconds. */
const afterLargeStart: readonly ReleaseStep[] = [
  { waitMs: 500, collection: 'ordinary', always: true },
  { waitMs: 5_000, collection: 'ordinary' },
  ...afterCollection,
]
/** About what the executable has after a start with 15,000 services. */
const largeStartBytes = 128 << 20
const afterWork: readonly ReleaseStep[] = [{ waitMs: 0, collection: 'ordinary' }, ...afterCollection]
/** The time without a sync after which memory is looked at, if there were many. */
const quietMs = 10_000
/** Fewer leave little behind, and a collection costs more than they did. */
const manySyncs = 100
/** Where syncs are few, or never pause for that long, memory is looked at this long after the first one. */
const maxBusyMs = 600_000

export interface MemoryReleaseOptions {
  readonly journal: Pick<SyncJournal, 'subscribe'>
  readonly families: readonly Family[]
  readonly clock: Clock
  readonly log: Logger
  /** Returns memory to the system, and begins a collection of garbage. */
  readonly release: (how: { readonly collection: HeapCollection }) => void
  /** The resident memory of this process. */
  readonly readResidentBytes: () => number
  /** Bytes of the heap that hold nothing, but are too scattered to be returned. */
  readonly readScatteredBytes: () => number
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
    if (isFirst) this.#releaseInSteps(this.#isLarge() ? afterLargeStart : afterStart)
    else this.#releaseWhenQuiet(this.#syncedAt + maxBusyMs)
  }

  #releaseInSteps([step, ...later]: readonly ReleaseStep[], began = this.#options.clock.monotonic()): void {
    if (step === undefined) return
    this.#wait(step.waitMs, () => {
      this.#take(step)
      if (later.length > 0) this.#releaseInSteps(later, began)
      // What syncs left behind in the meantime is not collected yet.
      else if (this.#syncedAt > began) this.#releaseWhenQuiet(this.#syncedAt + maxBusyMs)
    })
  }

  #releaseWhenQuiet(latest: number): void {
    const due = this.#syncs >= manySyncs ? Math.min(this.#syncedAt + quietMs, latest) : latest
    const waitMs = due - this.#options.clock.monotonic()
    this.#latest = waitMs > 0 ? latest : undefined
    if (waitMs > 0) this.#wait(waitMs, () => this.#releaseWhenQuiet(latest))
    else this.#releaseInSteps(afterWork)
  }

  #wait(ms: number, then: () => void): void {
    this.#timer = this.#options.clock.after(ms, () => {
      this.#timer = undefined
      then()
    })
  }

  #isLarge(): boolean {
    try {
      return this.#options.readResidentBytes() >= largeStartBytes
    } catch {
      // `#take` reports that it cannot be read.
      return false
    }
  }

  #isWorthIt({ collection, always }: ReleaseStep, resident: number): boolean {
    if (collection === 'compacting') return this.#options.readScatteredBytes() >= minScatteredBytes
    return always === true || resident - this.#least >= minGrowthBytes
  }

  #take(step: ReleaseStep): void {
    this.#syncs = 0
    const { release, readResidentBytes, log } = this.#options
    try {
      const before = readResidentBytes()
      if (!this.#isWorthIt(step, before)) return
      release({ collection: step.collection })
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
