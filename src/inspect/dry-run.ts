// Runs the engine's store, lanes and plans over a data plane that only records the changes it is given.

import type { Backend, Changes, Held, Target } from '../backend/backend.ts'
import type { ServiceStatus } from '../engine/engine.ts'
import { type Conflict, SyncJournal, type SyncReport } from '../engine/journal.ts'
import { Lane } from '../engine/lane.ts'
import type { Quarantined } from '../engine/quarantine.ts'
import { stateHash } from '../engine/state-hash.ts'
import { Store } from '../engine/store.ts'
import type { Family } from '../lib/ip.ts'
import { silentLogger } from '../lib/log.ts'
import { nextTurn, systemClock } from '../lib/time.ts'
import type { ServiceLimits } from '../model/limits.ts'
import { resolvePorts } from '../model/resolve.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../model/types.ts'

/** What the commands read from an engine; a running engine and a dry run both provide it. */
export interface Desired {
  readonly store: Pick<Store, 'service' | 'slicesOf' | 'records'>
  ports(family: Family): Iterable<ServicePort>
  portsOf(service: string, family: Family): readonly ServicePort[]
  status(service: string): ServiceStatus
  conflicts(): readonly Conflict[]
  quarantined(): readonly (Quarantined & { readonly family: Family })[]
  stateHash(family: Family): string
}

export interface Objects {
  readonly services: readonly ServiceRecord[]
  readonly slices: readonly SliceRecord[]
}

/** The changes that one family's data plane was given, and the report of the sync. */
export interface RecordedChanges {
  readonly family: Family
  readonly changes: Changes<Held>
  readonly report: SyncReport
}

export interface DryRunOptions {
  readonly backend: Backend<Held>
  readonly views: readonly NodeView[]
  /** Those of the proxy that the dry run stands for. */
  readonly limits: ServiceLimits
  /** The changes also go to the backend's own target, in the network namespace of this process. */
  readonly appliesChanges?: boolean
  /** Entries are recorded as the parts that `plan` and `status` show. */
  readonly splitsEntries?: boolean
}

interface RecordedLane {
  readonly lane: Lane
  readonly changes: MutableChanges
}

interface MutableChanges {
  put: Held[]
  drop: Held[]
}

export class DryRun implements Desired {
  readonly store: Store
  readonly #lanes = new Map<Family, RecordedLane>()
  #objects: Objects = { services: [], slices: [] }

  private constructor(options: DryRunOptions) {
    const journal = new SyncJournal({ log: silentLogger })
    const families = options.views.map(({ family }) => family)
    this.store = new Store({ families, clock: systemClock, journal })
    for (const view of options.views) {
      const changes: MutableChanges = { put: [], drop: [] }
      const lane = new Lane({
        backend: recordChanges(options, changes),
        family: view.family,
        view,
        store: this.store,
        journal,
        resolve: resolvePorts,
        limits: options.limits,
        clock: systemClock,
        log: silentLogger,
        waitForTurn: nextTurn,
        onDue: () => {},
      })
      this.#lanes.set(view.family, { lane, changes })
    }
  }

  static async open(options: DryRunOptions): Promise<DryRun> {
    const dryRun = new DryRun(options)
    for (const { lane } of dryRun.#lanes.values()) await lane.open()
    dryRun.store.services.synced()
    dryRun.store.slices.synced()
    return dryRun
  }

  /** Replaces all objects of the store, syncs, and returns the changes that the data plane was given. */
  async replaceObjects(objects: Objects): Promise<readonly RecordedChanges[]> {
    const { services, slices } = this.store
    const keysOf = (list: readonly { key: string }[]) => new Set(list.map(({ key }) => key))
    const [keptServices, keptSlices] = [keysOf(objects.services), keysOf(objects.slices)]
    for (const { key } of this.#objects.services) if (!keptServices.has(key)) services.drop(key)
    for (const { key } of this.#objects.slices) if (!keptSlices.has(key)) slices.drop(key)
    for (const record of objects.services) services.put(record.key, record)
    for (const record of objects.slices) slices.put(record.key, record)
    this.#objects = objects
    const recorded: RecordedChanges[] = []
    for (const [family, { lane, changes }] of this.#lanes) {
      changes.put = []
      changes.drop = []
      const report = await lane.sync(new AbortController().signal)
      recorded.push({ family, changes: { put: changes.put, drop: changes.drop }, report })
    }
    return recorded
  }

  ports(family: Family): Iterable<ServicePort> {
    return this.#lane(family).planner.ports()
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

  stateHash(family: Family): string {
    return stateHash(this.#lane(family).ledger.winners())
  }

  /** Returns the service that an entry belongs to; '' for the base and for leftovers. */
  ownerOf(family: Family, id: string): string {
    return this.#lane(family).ledger.owners(id)[0] ?? ''
  }

  async close(): Promise<void> {
    for (const { lane } of this.#lanes.values()) await lane.close()
  }

  #lane(family: Family): Lane {
    const recorded = this.#lanes.get(family)
    if (recorded === undefined) throw new Error(`the dry run has no family ${family}`)
    return recorded.lane
  }
}

/** Returns the backend with a target that records into `recorded` what it is given. */
function recordChanges({ backend, ...options }: DryRunOptions, recorded: MutableChanges): Backend<Held> {
  const parts = backend.parts?.bind(backend)
  const split = options.splitsEntries ? parts : undefined
  const record = (changes: Changes<Held>) => {
    recorded.put.push(...changes.put)
    recorded.drop.push(...changes.drop)
  }
  return {
    name: backend.name,
    periodic: backend.periodic,
    families: () => backend.families(),
    prepare: (node, log) => backend.prepare(node, log),
    base: (node) => backend.base(node),
    plan: (port, node) => {
      const entries = backend.plan(port, node)
      return split === undefined ? entries : entries.flatMap((entry) => split(entry))
    },
    // Entries that are split already have no parts.
    ...(parts === undefined || split !== undefined ? {} : { parts }),
    open: async (context) => recordTarget(options.appliesChanges ? await backend.open(context) : emptyTarget, record),
  }
}

/** A data plane that holds nothing and accepts everything. */
const emptyTarget: Target<Held> = {
  observe: async () => [],
  apply: async () => ({ refused: [] }),
  drifted: () => false,
  close: async () => {},
}

const recordTarget = (target: Target<Held>, record: (changes: Changes<Held>) => void): Target<Held> => ({
  observe: (signal) => target.observe(signal),
  apply(changes, signal, wanted) {
    record(changes)
    return target.apply(changes, signal, wanted)
  },
  drifted: () => target.drifted(),
  close: () => target.close(),
})
