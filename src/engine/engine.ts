// Store, one lane with its own pace per family, and the questions others ask. Nothing is programmed before services and slices have synced.

import type { Backend, Held } from '../backend/backend.ts'
import { deepEqual } from '../lib/equal.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, nextTurn } from '../lib/time.ts'
import { resolve } from '../model/resolve.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import type { Conflict, SyncJournal } from './journal.ts'
import { type FamilyStatus, Lane } from './lane.ts'
import { Pacer } from './pacer.ts'
import type { Health, Resolve } from './planner.ts'
import type { Quarantined } from './quarantine.ts'
import { stateHash } from './state-hash.ts'
import { Store } from './store.ts'

export interface EngineOptions {
  readonly backend: Backend<Held>
  readonly families: readonly Family[]
  readonly views: (family: Family) => NodeView
  readonly settings: {
    /** Least distance between two syncs. */
    readonly minSyncMs: number
    /** After a failed sync; also the longest time between two if the backend is periodic. */
    readonly syncMs: number
    /** Longest time between two syncs otherwise; an hour if not given. */
    readonly maxSyncMs?: number
  }
  readonly clock: Clock
  readonly log: Logger
  readonly journal: SyncJournal
  readonly resolve?: Resolve
  readonly breathe?: () => Promise<void>
}

export interface ServiceStatus {
  readonly service: string
  /** There is such a service. */
  readonly known: boolean
  readonly families: readonly FamilyStatus[]
}

const hourMs = 3_600_000

interface Track {
  readonly lane: Lane
  readonly pacer: Pacer
}

export class Engine {
  readonly store: Store
  readonly #options: EngineOptions
  readonly #log: Logger
  readonly #tracks = new Map<Family, Track>()
  readonly #abort = new AbortController()

  constructor(options: EngineOptions) {
    this.#options = options
    this.#log = options.log.named('engine')
    this.store = new Store(options)
    for (const family of options.families) this.#tracks.set(family, this.#track(family))
    this.store.watch({
      dirty: (family) => this.#request(family),
      ready: () => {
        for (const family of this.#tracks.keys()) this.#request(family)
      },
    })
  }

  /** Opens the data plane and begins to follow the store. Rejects if it cannot be opened. */
  async start(): Promise<void> {
    const { journal, clock, breathe = nextTurn } = this.#options
    for (const { lane } of this.#tracks.values()) {
      await lane.open()
      await breathe()
    }
    for (const [family, { pacer }] of this.#tracks) {
      pacer.start()
      journal.started(family, clock.now())
      this.#request(family)
    }
  }

  /** One abort; everything programmed stays as it is. */
  async stop(): Promise<void> {
    this.#abort.abort()
    for (const { pacer } of this.#tracks.values()) await pacer.stop()
    for (const { lane } of this.#tracks.values()) await lane.close()
  }

  setView(family: Family, view: NodeView): void {
    const { lane } = this.#of(family)
    if (deepEqual(lane.planner.view, view)) return
    lane.setView(view)
    this.#request(family)
  }

  /** Syncs as soon as the pace allows; with `full` the data plane is observed first. */
  requestSync(family: Family, { full = false } = {}): void {
    if (full) this.#of(family).lane.distrust()
    this.#request(family)
  }

  /** Computed while it is read: dear for many services. */
  ports(family: Family): Iterable<ServicePort> {
    return this.#of(family).lane.planner.ports()
  }

  /** As of the last plan; kept ready. */
  udpPorts(family: Family): Iterable<ServicePort> {
    return this.#of(family).lane.planner.udpPorts()
  }

  /** Services with a health check node port, as of the last plan. */
  health(family: Family): ReadonlyMap<string, Health> {
    return this.#of(family).lane.planner.health()
  }

  portsOf(service: string, family: Family): readonly ServicePort[] {
    return this.#of(family).lane.planner.portsOf(service)
  }

  status(service: string): ServiceStatus {
    const families = [...this.#tracks.values()].map(({ lane }) => lane.status(service))
    return { service, known: this.store.service(service) !== undefined, families }
  }

  conflicts(): readonly Conflict[] {
    return [...this.#tracks.values()].flatMap(({ lane }) => lane.planner.contest.conflicts())
  }

  quarantined(): readonly (Quarantined & { readonly family: Family })[] {
    return [...this.#tracks].flatMap(([family, { lane }]) => lane.quarantine.list().map((one) => ({ ...one, family })))
  }

  /** Equal on two nodes if both are meant to do the same for every service; the base, which is the node's own, is left out. */
  stateHash(family: Family): string {
    return stateHash(this.#of(family).lane.ledger.winners())
  }

  #track(family: Family): Track {
    const { backend, settings, clock, log, journal, views } = this.#options
    const lane = new Lane({
      backend,
      family,
      view: views(family),
      store: this.store,
      journal,
      resolve: this.#options.resolve ?? resolve,
      clock,
      log,
      breathe: this.#options.breathe ?? nextTurn,
      onDue: (urgent) => this.#request(family, urgent),
    })
    const maxMs = backend.periodic ? settings.syncMs : (settings.maxSyncMs ?? hourMs)
    const pacer = new Pacer({
      minMs: settings.minSyncMs,
      retryMs: settings.syncMs,
      // A configured minimum may exceed the hour; it is the user's word against our default.
      maxMs: Math.max(maxMs, settings.minSyncMs),
      clock,
      run: () => this.#sync(family, lane),
    })
    return { lane, pacer }
  }

  async #sync(family: Family, lane: Lane): Promise<boolean> {
    if (!this.store.ready) return true
    const report = await lane.sync(this.#abort.signal)
    if (this.#abort.signal.aborted) return report.ok
    if (!report.ok) this.#log.error('sync failed', { family: familyName(family), error: report.error })
    else {
      const { full, put, dropped, durationMs } = report
      this.#log.v(2, 'synced', { family: familyName(family), full, put, dropped, ms: Math.round(durationMs) })
    }
    this.#options.journal.report(report)
    return report.ok
  }

  #request(family: Family, urgent = false): void {
    if (!this.store.ready || this.#abort.signal.aborted) return
    this.#options.journal.queued(family, this.#options.clock.now())
    this.#of(family).pacer.request(urgent)
  }

  #of(family: Family): Track {
    const track = this.#tracks.get(family)
    if (track === undefined) throw new Error(`no lane for ${familyName(family)}`)
    return track
  }
}
