// Records what happened (the last sync reports, and counters) and passes events on to listeners: metrics, health, the admin socket.

import type { DriftReason } from '../backend/backend.ts'
import type { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { ConflictReason } from '../model/conflicts.ts'
import type { NodeView, Problem, ServiceRecord, SliceRecord } from '../model/types.ts'
import type { EntryWrite } from './history/history-record.ts'

/** An entry that could not be programmed, or a whole service if `id` is ''. */
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
  /** True if the data plane was observed and everything was compared. */
  readonly full: boolean
  readonly ok: boolean
  readonly error?: ProxyError
  /** Why there was a sync. */
  readonly causes: readonly SyncCause[]
  /** Present if a part of a large service is not written yet, so that others need not wait for it. The next sync follows at once. */
  readonly unfinished?: true
  /** Present if the changes made no difference to the data plane: nothing was written, and this does not count as a sync. */
  readonly idle?: true
  readonly put: number
  readonly dropped: number
  /** The first of the entries that were put or dropped. Reports that the journal keeps go without them. */
  readonly entries?: readonly EntryWrite[]
  /** How many entries the data plane should hold. */
  readonly held: number
  /** The services that changed since the last successful sync. */
  readonly services: readonly string[]
  readonly refused: readonly RefusedService[]
  /** Unix ms of the changes that this sync programmed. */
  readonly triggers: readonly number[]
  /** How many service ports have a Local policy, endpoints on other nodes, and none here. */
  readonly noLocal: { readonly internal: number; readonly external: number }
  /** How many services have such ports. */
  readonly noLocalServices: { readonly internal: number; readonly external: number }
  /** True if endpoints of a UDP port changed, so that flows may be stale. */
  readonly udpChanged: boolean
  readonly figures: Readonly<Record<string, number>>
}

/**
 * `start`: the first sync; `change`: Services or EndpointSlices changed; `node`: the Node, an interface address or a ServiceCIDR changed;
 * `drift`: another program changed our rules; `retry`: a failed sync or a quarantined service is tried again; `rest`: the rest of a large
 * service; `period`: the longest time without a sync is over.
 */
export type SyncCause = 'start' | 'change' | 'node' | 'drift' | 'retry' | 'rest' | 'period'

/** A change of our rules by another program. */
export interface DriftRecord {
  readonly family: Family
  /** The program if the kernel names it, and what it changed if that is known. For people. */
  readonly culprit: string
  readonly reason: DriftReason
  /** Unix ms. */
  readonly at: number
}

/** A service claims a frontend that it must not have. */
export interface Conflict {
  readonly family: Family
  readonly frontend: string
  /** The service that holds the frontend or has it as an endpoint; words for the holder if the reason is `reserved`. */
  readonly winner: string
  readonly loser: string
  /** Why the winner has the better right. */
  readonly reason: ConflictReason
}

export type ChangeKind = 'service' | 'slice'

/** A record that differs from the one before. Undefined stands for an object that does not exist. */
export type RecordChange = RecordPair<'Service', ServiceRecord> | RecordPair<'EndpointSlice', SliceRecord>

interface RecordPair<K, R> {
  readonly kind: K
  readonly key: string
  readonly before: R | undefined
  readonly after: R | undefined
}

/**
 * `retry`: a quarantined service is tried again; `ejection`: the endpoints that are left out, because connections to them fail, changed;
 * `drain`: local endpoints are drained; `settings`: settings changed while the proxy runs; `capacity`: weights by node capacity changed.
 */
export type OtherCause = 'retry' | 'ejection' | 'drain' | 'settings' | 'capacity'

export interface JournalListener {
  report?(report: SyncReport): void
  /** A sync was requested. */
  queued?(family: Family, at: number): void
  /** A lane was opened and waits for its first sync. */
  started?(family: Family, at: number): void
  /** An event was read, whether it changed anything or not. `pending` is the number of changes that wait for a sync. */
  change?(kind: ChangeKind, pending: number): void
  /** A sync drained the changes. `pending` is the number of changes that still wait. */
  pending?(kind: ChangeKind, pending: number): void
  /** A record changed after the first state was complete. */
  object?(change: RecordChange): void
  /** A sync took over the changes of the family that waited. */
  drained?(family: Family): void
  /** The view of the node changed. */
  view?(family: Family, before: NodeView, after: NodeView): void
  /** A service is planned again although no object changed. The text is for people. */
  cause?(family: Family, kind: OtherCause, service: string, text: string): void
  conflict?(conflict: Conflict): void
  /** The conflict ended, or has another winner. */
  resolved?(conflict: Conflict): void
  drift?(drift: DriftRecord): void
  /** An object has an invalid field. */
  problem?(problem: Problem): void
}

const eventNames = [
  'report',
  'queued',
  'started',
  'change',
  'pending',
  'object',
  'drained',
  'view',
  'cause',
  'conflict',
  'resolved',
  'drift',
  'problem',
] as const satisfies readonly (keyof JournalListener)[]

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

/** The most services that a stored report names, so that a hundred reports of full syncs stay small. */
const maxServices = 1000
const maxDrifts = 20

export class SyncJournal {
  readonly #log: Logger
  readonly #capacity: number
  readonly #recent: SyncReport[] = []
  readonly #drifts: DriftRecord[] = []
  /** Those who listen to each kind of event: every object that is read causes several events, and most listen to few kinds. */
  readonly #listeners = new Map<keyof JournalListener, Set<JournalListener>>()
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
    if (!report.idle) this.#count(report)
    this.#notify('report', (listener) => listener.report?.(report))
  }

  #count(report: SyncReport): void {
    this.#recent.push({ ...report, services: report.services.slice(0, maxServices), entries: [] })
    if (this.#recent.length > this.#capacity) this.#recent.shift()
    this.#counters.syncs++
    if (!report.ok) this.#counters.failures++
    this.#counters.puts += report.put
    this.#counters.drops += report.dropped
    this.#counters.refusals += report.refused.length
  }

  queued(family: Family, at: number): void {
    this.#notify('queued', (listener) => listener.queued?.(family, at))
  }

  started(family: Family, at: number): void {
    this.#notify('started', (listener) => listener.started?.(family, at))
  }

  change(kind: ChangeKind, pending: number): void {
    this.#counters[kind === 'service' ? 'serviceChanges' : 'sliceChanges']++
    this.#notify('change', (listener) => listener.change?.(kind, pending))
  }

  pending(kind: ChangeKind, pending: number): void {
    this.#notify('pending', (listener) => listener.pending?.(kind, pending))
  }

  object(change: RecordChange): void {
    this.#notify('object', (listener) => listener.object?.(change))
  }

  drained(family: Family): void {
    this.#notify('drained', (listener) => listener.drained?.(family))
  }

  view(family: Family, before: NodeView, after: NodeView): void {
    this.#notify('view', (listener) => listener.view?.(family, before, after))
  }

  cause(...about: Parameters<NonNullable<JournalListener['cause']>>): void {
    this.#notify('cause', (listener) => listener.cause?.(...about))
  }

  conflict(conflict: Conflict): void {
    this.#counters.conflicts++
    this.#notify('conflict', (listener) => listener.conflict?.(conflict))
  }

  resolved(conflict: Conflict): void {
    this.#notify('resolved', (listener) => listener.resolved?.(conflict))
  }

  drift(drift: DriftRecord): void {
    this.#counters.drifts++
    this.#drifts.push(drift)
    if (this.#drifts.length > maxDrifts) this.#drifts.shift()
    this.#notify('drift', (listener) => listener.drift?.(drift))
  }

  problem(problem: Problem): void {
    this.#counters.problems++
    this.#notify('problem', (listener) => listener.problem?.(problem))
  }

  /** The last reports, oldest first. */
  recent(): readonly SyncReport[] {
    return this.#recent
  }

  /** The last changes of our rules by other programs, oldest first. */
  drifts(): readonly DriftRecord[] {
    return this.#drifts
  }

  counters(): Readonly<Counters> {
    return this.#counters
  }

  subscribe(listener: JournalListener): () => void {
    const names = eventNames.filter((name) => listener[name] !== undefined)
    for (const name of names) {
      const listeners = this.#listeners.get(name)
      if (listeners === undefined) this.#listeners.set(name, new Set([listener]))
      else listeners.add(listener)
    }
    return () => {
      for (const name of names) this.#listeners.get(name)?.delete(listener)
    }
  }

  /** An error of a listener must never keep rules from being programmed. */
  #notify(name: keyof JournalListener, call: (listener: JournalListener) => void): void {
    const listeners = this.#listeners.get(name)
    if (listeners === undefined) return
    for (const listener of listeners) {
      try {
        call(listener)
      } catch (error) {
        this.#log.error('A listener of the journal failed', { error })
      }
    }
  }
}
