// The proxy's thinking without its hands: the same store, lanes and plans, over a data plane that only takes notes.

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
import { resolve } from '../model/resolve.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../model/types.ts'

/** What commands ask of an engine; a running one and a twin answer alike. */
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

export interface EntryNotes {
  readonly family: Family
  readonly changes: Changes<Held>
  readonly report: SyncReport
}

export interface DryRunOptions {
  readonly backend: Backend<Held>
  readonly views: readonly NodeView[]
  /** The changes go to the backend's own target, in whatever network namespace this process is. */
  readonly real?: boolean
  /** Entries are noted in the parts that people tell apart. */
  readonly inParts?: boolean
}

interface Track {
  readonly lane: Lane
  readonly changes: { put: Held[]; drop: Held[] }
}

export class DryRun implements Desired {
  readonly store: Store
  readonly #tracks = new Map<Family, Track>()
  #objects: Objects = { services: [], slices: [] }

  private constructor(options: DryRunOptions) {
    const journal = new SyncJournal({ log: silentLogger })
    const families = options.views.map(({ family }) => family)
    this.store = new Store({ families, clock: systemClock, journal })
    for (const view of options.views) {
      const changes = { put: [] as Held[], drop: [] as Held[] }
      const lane = new Lane({
        backend: noting(options, changes),
        family: view.family,
        view,
        store: this.store,
        journal,
        resolve,
        clock: systemClock,
        log: silentLogger,
        breathe: nextTurn,
        onDue: () => {},
      })
      this.#tracks.set(view.family, { lane, changes })
    }
  }

  static async open(options: DryRunOptions): Promise<DryRun> {
    const twin = new DryRun(options)
    for (const { lane } of twin.#tracks.values()) await lane.open()
    twin.store.services.synced()
    twin.store.slices.synced()
    return twin
  }

  /** Makes these all the objects there are; returns what the data plane was told. */
  async replaceObjects(objects: Objects): Promise<readonly EntryNotes[]> {
    const { services, slices } = this.store
    const kept = (list: readonly { key: string }[]) => new Set(list.map(({ key }) => key))
    const [keptServices, keptSlices] = [kept(objects.services), kept(objects.slices)]
    for (const { key } of this.#objects.services) if (!keptServices.has(key)) services.drop(key)
    for (const { key } of this.#objects.slices) if (!keptSlices.has(key)) slices.drop(key)
    for (const record of objects.services) services.put(record.key, record)
    for (const record of objects.slices) slices.put(record.key, record)
    this.#objects = objects
    const noted: EntryNotes[] = []
    for (const [family, { lane, changes }] of this.#tracks) {
      changes.put = []
      changes.drop = []
      const report = await lane.sync(new AbortController().signal)
      noted.push({ family, changes: { put: changes.put, drop: changes.drop }, report })
    }
    return noted
  }

  ports(family: Family): Iterable<ServicePort> {
    return this.#lane(family).planner.ports()
  }

  portsOf(service: string, family: Family): readonly ServicePort[] {
    return this.#lane(family).planner.portsOf(service)
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

  stateHash(family: Family): string {
    return stateHash(this.#lane(family).ledger.winners())
  }

  /** Who an entry belongs to; '' for the base and for leftovers. */
  ownerOf(family: Family, id: string): string {
    return this.#lane(family).ledger.owners(id)[0] ?? ''
  }

  async close(): Promise<void> {
    for (const { lane } of this.#tracks.values()) await lane.close()
  }

  #lane(family: Family): Lane {
    const track = this.#tracks.get(family)
    if (track === undefined) throw new Error(`the twin has no family ${family}`)
    return track.lane
  }
}

function noting({ backend, real, inParts }: DryRunOptions, changes: Track['changes']): Backend<Held> {
  const note = (told: Changes<Held>) => {
    changes.put.push(...told.put)
    changes.drop.push(...told.drop)
  }
  return {
    name: backend.name,
    periodic: backend.periodic,
    families: () => backend.families(),
    prepare: (node, log) => backend.prepare(node, log),
    base: (node) => backend.base(node),
    plan: (port, node) => {
      const entries = backend.plan(port, node)
      return inParts && backend.parts !== undefined ? entries.flatMap((entry) => backend.parts?.(entry) ?? []) : entries
    },
    // Those that are parts already have none.
    ...(backend.parts === undefined || inParts ? {} : { parts: (entry: Held) => backend.parts?.(entry) ?? [] }),
    async open(context): Promise<Target<Held>> {
      if (!real) return { observe: async () => [], apply: notes(note), drifted: () => false, close: async () => {} }
      const target = await backend.open(context)
      return {
        observe: (signal) => target.observe(signal),
        apply(told, wanted, signal) {
          note(told)
          return target.apply(told, wanted, signal)
        },
        drifted: () => target.drifted(),
        close: () => target.close(),
      }
    },
  }
}

const notes = (note: (told: Changes<Held>) => void) => async (told: Changes<Held>) => {
  note(told)
  return { refused: [] }
}
