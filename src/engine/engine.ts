// Puts the store and one lane with its own pace per family together, and answers questions about them. Nothing is programmed before
// services and slices are complete.

import type { Backend, Held } from '../backend/backend.ts'
import { deepEqual } from '../lib/equal.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, nextTurn } from '../lib/time.ts'
import type { Steps } from '../lib/yielding.ts'
import type { Precedence } from '../model/conflicts.ts'
import type { ServiceLimits } from '../model/limits.ts'
import { resolvePorts } from '../model/resolve.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import type { Conflict, SyncCause, SyncJournal, SyncReport } from './journal.ts'
import { type FamilyStatus, Lane } from './lane.ts'
import { Pacer, type RunResult } from './pacer.ts'
import type { Health, Resolve } from './planner.ts'
import type { Quarantined } from './quarantine.ts'
import { hashInSteps, stateHash } from './state-hash.ts'
import { Store } from './store.ts'

export interface EngineOptions {
  readonly backend: Backend<Held>
  readonly families: readonly Family[]
  readonly views: (family: Family) => NodeView
  readonly settings: {
    /** Minimum distance between two syncs. */
    readonly minSyncMs: number
    /** Distance after a failed sync; also the longest time between two syncs if the backend is periodic. */
    readonly syncMs: number
    /** Longest time between two syncs otherwise; an hour if absent. */
    readonly maxSyncMs?: number
  }
  readonly clock: Clock
  readonly log: Logger
  readonly journal: SyncJournal
  readonly resolve?: Resolve
  /** Which service holds an address that several claim; by kind if absent. */
  readonly precedence?: Precedence
  /** The size that a service may have; any size if absent. */
  readonly limits?: ServiceLimits
  readonly waitForTurn?: () => Promise<void>
  /** The CPU time that this process and its programs have used; the time counts if absent. */
  readonly spentMs?: () => number
}

export interface ServiceStatus {
  readonly service: string
  /** True if there is a service of this name. */
  readonly known: boolean
  readonly families: readonly FamilyStatus[]
}

const hourMs = 3_600_000
/** A change of a service is seldom spread over more syncs than the first one and these. */
const quickRuns = 2
/** About what a sync of kube-proxy takes with few services, so that our cheap syncs together cost no more than its one per minimum period. */
const wholeRunMs = 50

/** A lane and the pacer that decides when it syncs. */
interface PacedLane {
  readonly lane: Lane
  readonly pacer: Pacer
  /** Why the next sync was asked for. */
  readonly causes: Set<SyncCause>
}

export class Engine {
  readonly store: Store
  readonly #options: EngineOptions
  readonly #log: Logger
  readonly #lanes = new Map<Family, PacedLane>()
  readonly #abort = new AbortController()

  constructor(options: EngineOptions) {
    this.#options = options
    this.#log = options.log.named('engine')
    this.store = new Store(options)
    for (const family of options.families) this.#lanes.set(family, this.#makeLane(family))
    this.store.watch({
      onPending: (family) => this.#schedule(family, 'change'),
      onReady: () => {
        for (const family of this.#lanes.keys()) this.#schedule(family, 'start')
      },
    })
  }

  /** Opens the data plane and begins to follow the store. Rejects if the data plane cannot be opened. */
  async start(): Promise<void> {
    const { journal, clock, waitForTurn = nextTurn } = this.#options
    for (const { lane } of this.#lanes.values()) {
      await lane.open()
      await waitForTurn()
    }
    for (const [family, { pacer }] of this.#lanes) {
      pacer.start()
      journal.started(family, clock.now())
      this.#schedule(family, 'start')
    }
  }

  /** Ends syncs that run. Everything that is programmed stays as it is. */
  async stop(): Promise<void> {
    this.#abort.abort()
    for (const { pacer } of this.#lanes.values()) await pacer.stop()
    for (const { lane } of this.#lanes.values()) await lane.close()
  }

  setView(family: Family, view: NodeView): void {
    const lane = this.#lane(family)
    const before = lane.planner.view
    if (deepEqual(before, view)) return
    lane.setView(view)
    if (this.store.ready) this.#options.journal.view(family, before, view)
    this.#schedule(family, 'node')
  }

  /** Asks for a sync as soon as the pace allows. With `full`, the sync observes the data plane first. */
  requestSync(family: Family, { full = false } = {}): void {
    if (full) this.#lane(family).distrust()
    this.#schedule(family, 'retry')
  }

  /** All service ports, computed while the caller iterates: expensive if there are many services. */
  ports(family: Family): Iterable<ServicePort> {
    return this.#lane(family).planner.ports()
  }

  /** The UDP service ports as of the last plan. Cheap. */
  udpPorts(family: Family): Iterable<ServicePort> {
    return this.#lane(family).planner.udpPorts()
  }

  /** The services with a health check node port, as of the last plan. */
  health(family: Family): ReadonlyMap<string, Health> {
    return this.#lane(family).planner.health()
  }

  /** The services whose frontends go live by the sync that runs. */
  listLive(family: Family): readonly string[] {
    return this.#lane(family).planner.live.list()
  }

  /** The services that got live frontends by the syncs up to this one, each once. */
  takeLive({ family, services, unfinished }: SyncReport): readonly string[] {
    return this.#lane(family).planner.live.take(unfinished ? services : undefined)
  }

  portsOf(service: string, family: Family): readonly ServicePort[] {
    return this.#lane(family).planner.portsOf(service)
  }

  status(service: string): ServiceStatus {
    const families = [...this.#lanes.values()].map(({ lane }) => lane.status(service))
    return { service, known: this.store.service(service) !== undefined, families }
  }

  conflicts(): readonly Conflict[] {
    return [...this.#lanes.values()].flatMap(({ lane }) => lane.planner.conflicts.list())
  }

  quarantined(): readonly (Quarantined & { readonly family: Family })[] {
    return [...this.#lanes].flatMap(([family, { lane }]) => lane.quarantine.list().map((one) => ({ ...one, family })))
  }

  /** Equal on two nodes if both should do the same for every service. The base, which differs between nodes, is not part of it. */
  stateHash(family: Family): string {
    return stateHash(this.#lane(family).ledger.winners())
  }

  /** As `stateHash`, in steps: there may be many entries. */
  hashState(family: Family): Steps<string> {
    return hashInSteps(this.#lane(family).ledger.winners())
  }

  #makeLane(family: Family): PacedLane {
    const { backend, settings, clock, log, journal, views } = this.#options
    const lane = new Lane({
      backend,
      family,
      view: views(family),
      store: this.store,
      journal,
      resolve: this.#options.resolve ?? resolvePorts,
      precedence: this.#options.precedence ?? 'kind',
      limits: this.#options.limits,
      clock,
      log,
      waitForTurn: this.#options.waitForTurn ?? nextTurn,
      onDue: (cause) => this.#schedule(family, cause),
    })
    const causes = new Set<SyncCause>()
    const maxMs = backend.periodic ? settings.syncMs : (settings.maxSyncMs ?? hourMs)
    const pacer = new Pacer({
      minMs: settings.minSyncMs,
      quickRuns,
      wholeRunMs,
      retryMs: settings.syncMs,
      // A configured minimum may exceed our default of an hour: the configuration counts.
      maxMs: Math.max(maxMs, settings.minSyncMs),
      clock,
      ...(this.#options.spentMs === undefined ? {} : { spentMs: this.#options.spentMs }),
      run: () => this.#syncAndReport(family, lane, causes),
    })
    return { lane, pacer, causes }
  }

  async #syncAndReport(family: Family, lane: Lane, causes: Set<SyncCause>): Promise<RunResult> {
    if (!this.store.ready) return 'ok'
    const asked: readonly SyncCause[] = causes.size === 0 ? ['period'] : [...causes]
    causes.clear()
    const report = await lane.sync(this.#abort.signal, asked)
    const result = report.ok ? 'ok' : 'failed'
    if (this.#abort.signal.aborted) return result
    if (!report.ok) causes.add('retry')
    if (!report.ok) this.#log.error('Sync failed', { family: familyName(family), error: report.error })
    else {
      const { full, put, dropped, durationMs } = report
      this.#log.v(report.idle ? 4 : 2, 'Synced', {
        family: familyName(family),
        full,
        put,
        dropped,
        ms: Math.round(durationMs),
      })
    }
    const { journal, clock } = this.#options
    journal.report(report)
    if (!report.unfinished) return result
    causes.add('rest')
    journal.queued(family, clock.now())
    return 'unfinished'
  }

  #schedule(family: Family, cause: SyncCause): void {
    if (!this.store.ready || this.#abort.signal.aborted) return
    this.#options.journal.queued(family, this.#options.clock.now())
    const { causes, pacer } = this.#pacedLane(family)
    causes.add(cause)
    pacer.requestRun(cause === 'drift')
  }

  #lane(family: Family): Lane {
    return this.#pacedLane(family).lane
  }

  #pacedLane(family: Family): PacedLane {
    const paced = this.#lanes.get(family)
    if (paced === undefined) throw new Error(`the engine has no lane for ${familyName(family)}`)
    return paced
  }
}
