// What happened, for metrics, health, the dashboard and people: the last sync reports, counters, and whoever listens.

import type { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Problem } from '../model/types.ts'

/** One entry, or with `id` '' one whole service, that could not be programmed. */
export interface RefusedService {
  /** '' for a leftover that no service claims. */
  readonly service: string
  readonly id: string
  readonly error: ProxyError
}

export interface SyncReport {
  readonly backend: string
  readonly family: Family
  /** Unix ms. */
  readonly startedAt: number
  readonly durationMs: number
  /** The data plane was observed and everything compared. */
  readonly full: boolean
  readonly ok: boolean
  readonly error?: ProxyError
  readonly put: number
  readonly dropped: number
  /** Entries the data plane is meant to hold. */
  readonly held: number
  /** Changed since the last sync that worked. */
  readonly services: readonly string[]
  readonly refused: readonly RefusedService[]
  /** Unix ms of the changes that this sync brought into force. */
  readonly triggers: readonly number[]
  /** Service ports with a Local policy, some endpoint somewhere, and none here. */
  readonly noLocal: { readonly internal: number; readonly external: number }
  /** The same, counted in services. */
  readonly noLocalServices: { readonly internal: number; readonly external: number }
  /** Endpoints of a UDP port changed: flows may be stale. */
  readonly udpChanged: boolean
  readonly figures: Readonly<Record<string, number>>
}

/** Two services claim one frontend; the older one holds it. */
export interface Conflict {
  readonly family: Family
  readonly frontend: string
  readonly winner: string
  readonly loser: string
}

export type ChangeKind = 'service' | 'slice'

export interface JournalListener {
  report?(report: SyncReport): void
  /** A sync was asked for. */
  queued?(family: Family, at: number): void
  /** A lane is open and waits for its first sync. */
  started?(family: Family, at: number): void
  /** One event was read, changed or not; so many changes now wait for a sync. */
  change?(kind: ChangeKind, pending: number): void
  /** A sync took the changes up; so many wait now. */
  pending?(kind: ChangeKind, pending: number): void
  conflict?(conflict: Conflict): void
  /** The conflict is over, or has another winner. */
  resolved?(conflict: Conflict): void
  drift?(family: Family, culprit: string): void
  /** Something is wrong with one object. */
  problem?(problem: Problem): void
}

export interface Counters {
  syncs: number
  failures: number
  puts: number
  drops: number
  refusals: number
  conflicts: number
  drifts: number
  problems: number
  serviceChanges: number
  sliceChanges: number
}

/** A remembered report names at most so many services, so that a hundred syncs of everything stay small. */
const namesKept = 1000

export class SyncJournal {
  readonly #log: Logger
  readonly #capacity: number
  readonly #recent: SyncReport[] = []
  readonly #listeners = new Set<JournalListener>()
  readonly #counters: Counters = {
    syncs: 0,
    failures: 0,
    puts: 0,
    drops: 0,
    refusals: 0,
    conflicts: 0,
    drifts: 0,
    problems: 0,
    serviceChanges: 0,
    sliceChanges: 0,
  }

  constructor(options: { readonly log: Logger; readonly capacity?: number }) {
    this.#log = options.log.named('journal')
    this.#capacity = options.capacity ?? 100
  }

  report(report: SyncReport): void {
    const { services } = report
    this.#recent.push(services.length > namesKept ? { ...report, services: services.slice(0, namesKept) } : report)
    if (this.#recent.length > this.#capacity) this.#recent.shift()
    this.#counters.syncs++
    if (!report.ok) this.#counters.failures++
    this.#counters.puts += report.put
    this.#counters.drops += report.dropped
    this.#counters.refusals += report.refused.length
    this.#tell((listener) => listener.report?.(report))
  }

  queued(family: Family, at: number): void {
    this.#tell((listener) => listener.queued?.(family, at))
  }

  started(family: Family, at: number): void {
    this.#tell((listener) => listener.started?.(family, at))
  }

  change(kind: ChangeKind, pending: number): void {
    this.#counters[kind === 'service' ? 'serviceChanges' : 'sliceChanges']++
    this.#tell((listener) => listener.change?.(kind, pending))
  }

  pending(kind: ChangeKind, pending: number): void {
    this.#tell((listener) => listener.pending?.(kind, pending))
  }

  conflict(conflict: Conflict): void {
    this.#counters.conflicts++
    this.#tell((listener) => listener.conflict?.(conflict))
  }

  resolved(conflict: Conflict): void {
    this.#tell((listener) => listener.resolved?.(conflict))
  }

  drift(family: Family, culprit: string): void {
    this.#counters.drifts++
    this.#tell((listener) => listener.drift?.(family, culprit))
  }

  problem(problem: Problem): void {
    this.#counters.problems++
    this.#tell((listener) => listener.problem?.(problem))
  }

  /** Oldest first. */
  recent(): readonly SyncReport[] {
    return this.#recent
  }

  counters(): Readonly<Counters> {
    return this.#counters
  }

  subscribe(listener: JournalListener): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  /** A listener's mistake must never stop rules from being programmed. */
  #tell(tell: (listener: JournalListener) => void): void {
    for (const listener of this.#listeners) {
      try {
        tell(listener)
      } catch (error) {
        this.#log.error('a listener failed', { error })
      }
    }
  }
}
