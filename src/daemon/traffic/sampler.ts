// Takes a sample of the proxy every ten seconds and keeps those of the last hour, for the plots of the dashboard. A sample costs the same
// whatever number of services there is.

import type { Engine } from '../../engine/engine.ts'
import type { SyncJournal, SyncReport } from '../../engine/journal.ts'
import type { Sample, SampleAnswer, SampleSource } from '../../http/admin-samples.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { readTrackedConnections } from '../connection-counts.ts'

const everyMs = 10_000
/** The samples of an hour. */
const capacity = 360
/** Counters rest for this many times the duration that it took to read them. */
const restFactor = 1_000
/** Someone looks at the samples if they were asked for within this time. */
const watchedMs = 600_000
/** While nobody looks, counters of more services than this are not read: with 10,000 services a reading takes half a second of CPU. */
const maxUnwatched = 1_000
/** The rest of counters while nobody looks. A timer may be early by a part of a millisecond. */
const unwatchedMs = 60_000 - 100

export interface SamplerOptions {
  readonly engine: Pick<Engine, 'store' | 'conflicts' | 'quarantined'>
  readonly journal: Pick<SyncJournal, 'subscribe'>
  readonly clock: Clock
  /** The number of connections to services since the start; undefined if they are not counted. */
  readonly countConnections?: () => Promise<number | undefined>
}

/** What happened since the last sample. */
class Interval {
  syncs = 0
  drifts = 0
  syncMs: number | null = null
  programmingMs: number | null = null

  addReport({ durationMs, startedAt, triggers, ok, idle }: SyncReport): void {
    if (idle) return
    this.syncs++
    this.syncMs = Math.max(this.syncMs ?? 0, durationMs)
    if (!ok) return
    for (const trigger of triggers) {
      // Clocks of the control plane may be ahead of this node's.
      this.programmingMs = Math.max(this.programmingMs ?? 0, startedAt + durationMs - trigger)
    }
  }
}

export class Sampler implements SampleSource {
  readonly #options: SamplerOptions
  readonly #samples: Sample[] = []
  readonly #unsubscribe: () => void
  #interval = new Interval()
  #utilization = performance.eventLoopUtilization()
  #counted: { readonly total: number; readonly at: number } | undefined
  #dueAt = 0
  /** When samples were last asked for. */
  #askedAt = Number.NEGATIVE_INFINITY
  #timer: Timer | undefined

  constructor(options: SamplerOptions) {
    this.#options = options
    this.#unsubscribe = options.journal.subscribe({
      report: (report) => this.#interval.addReport(report),
      drift: () => {
        this.#interval.drifts++
      },
    })
    this.#schedule()
  }

  samples(after: number): SampleAnswer {
    this.#askedAt = this.#options.clock.monotonic()
    return { everyMs, samples: this.#samples.filter(({ at }) => at > after) }
  }

  close(): void {
    this.#timer?.cancel()
    this.#unsubscribe()
  }

  #schedule(): void {
    const { clock } = this.#options
    const due = clock.monotonic() + everyMs
    this.#timer = clock.after(everyMs, () => {
      const delayMs = Math.max(0, clock.monotonic() - due)
      this.#schedule()
      void this.#take(delayMs)
    })
  }

  async #take(loopDelayMs: number): Promise<void> {
    const { engine, clock } = this.#options
    const { syncs, syncMs, programmingMs, drifts } = this.#interval
    this.#interval = new Interval()
    const utilization = performance.eventLoopUtilization()
    const loopBusy = performance.eventLoopUtilization(utilization, this.#utilization).utilization
    this.#utilization = utilization
    const at = clock.now()
    const connectionsPerSecond = await this.#readRate(clock.monotonic())
    this.#samples.push({
      at,
      services: engine.store.size,
      endpoints: engine.store.endpointCount,
      tracked: readTrackedConnections()?.tracked ?? null,
      connectionsPerSecond,
      syncs,
      syncMs,
      programmingMs,
      loopDelayMs,
      loopBusy,
      rssBytes: readResidentBytes(),
      drifts,
      quarantined: engine.quarantined().length,
      conflicts: engine.conflicts().length,
    })
    if (this.#samples.length > capacity) this.#samples.shift()
  }

  /**
   * Counters are read at each sample, or less often if there are very many: at most 0.1 % of the time goes into reading them. While
   * nobody asks for samples, they are read once per minute, or not at all, since the kernel lists every endpoint for it.
   */
  async #readRate(at: number): Promise<number | null> {
    const { clock, countConnections, engine } = this.#options
    const isWatched = at - this.#askedAt < watchedMs
    if (countConnections === undefined || at < this.#dueAt || !(isWatched || engine.store.size <= maxUnwatched))
      return null
    const total = await countConnections().catch(() => undefined)
    const before = this.#counted
    const restMs = (clock.monotonic() - at) * restFactor
    this.#dueAt = at + (isWatched ? restMs : Math.max(restMs, unwatchedMs))
    this.#counted = total === undefined ? undefined : { total, at }
    if (total === undefined || before === undefined) return null
    return (Math.max(0, total - before.total) * 1000) / Math.max(1, at - before.at)
  }
}

/** Node reads a file for it, which fails while the process has as many open files as it may have. */
function readResidentBytes(): number | null {
  try {
    return process.memoryUsage.rss()
  } catch {
    return null
  }
}
