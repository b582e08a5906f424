// Keeps the records by key, which services have changes that wait for a sync in each family, and which kinds are complete. No decisions.

import { deepEqual } from '../lib/equal.ts'
import { type Family, familyOf } from '../lib/ip.ts'
import type { Clock } from '../lib/time.ts'
import type { Problem, ServiceRecord, SliceRecord } from '../model/types.ts'
import type { ChangeKind, SyncJournal } from './journal.ts'
import { PackedEndpoints, TraitsTable } from './packed-endpoints.ts'
import { SlicesByService } from './slices-by-service.ts'

/** Where a reflector delivers records of one kind. */
export interface StoreSink<R> {
  put(key: string, record: R): void
  drop(key: string): void
  /** Called when the first complete set has been delivered. */
  synced(): void
  problem(problem: Problem): void
}

/** What changed in one family since the last drain. */
export class PendingChanges {
  readonly #withChangedSlices: ReadonlySet<string>
  readonly #changed: ReadonlyMap<string, unknown>
  /** Unix ms of the trigger times of slice changes. */
  readonly triggers: readonly number[]
  readonly udpChanged: boolean

  constructor({ withChangedSlices, services, triggers, udpChanged }: FamilyState) {
    this.#withChangedSlices = withChangedSlices
    this.#changed = services
    this.triggers = triggers.size === 0 ? none : listAll(triggers.values())
    this.udpChanged = udpChanged
  }

  /** The changed services, each at least once. */
  *services(): Iterable<string> {
    yield* this.#withChangedSlices
    yield* this.#changed.keys()
  }

  has(service: string): boolean {
    return this.#withChangedSlices.has(service) || this.#changed.has(service)
  }
}

export interface StoreOptions {
  /** Slices of other families are not stored. */
  readonly families: readonly Family[]
  readonly clock: Clock
  readonly journal: SyncJournal
}

interface StoredSlice extends SliceRecord {
  readonly endpoints: PackedEndpoints
}

/** Stands for the record before pending changes if a planner has read the service since then. */
const unknown = Symbol('unknown')

class FamilyState {
  readonly slices = new SlicesByService()
  /** Changed services with their records before the change: a change back leaves nothing to do. */
  services = new Map<string, ServiceRecord | undefined | typeof unknown>()
  /** Services of changed slices. */
  withChangedSlices = new Set<string>()
  triggers = new Map<string, number[]>()
  udpChanged = false
}

export class Store {
  readonly services: StoreSink<ServiceRecord>
  readonly slices: StoreSink<SliceRecord>
  readonly #journal: SyncJournal
  readonly #created: number
  readonly #services = new Map<string, ServiceRecord>()
  readonly #slices = new Map<string, StoredSlice>()
  readonly #traits = new TraitsTable()
  readonly #families = new Map<Family, FamilyState>()
  readonly #complete = new Set<ChangeKind>()
  #pendingSlices = 0
  #onPending: (family: Family) => void = () => {}
  #onReady: () => void = () => {}

  constructor({ families, clock, journal }: StoreOptions) {
    this.#journal = journal
    this.#created = clock.now()
    for (const family of families) this.#families.set(family, new FamilyState())
    const problem = (p: Problem) => journal.problem(p)
    this.services = {
      put: (key, record) => this.#putService(key, record),
      drop: (key) => this.#putService(key, undefined),
      synced: () => this.#markComplete('service'),
      problem,
    }
    this.slices = {
      put: (key, record) => this.#putSlice(key, record),
      drop: (key) => this.#putSlice(key, undefined),
      synced: () => this.#markComplete('slice'),
      problem,
    }
  }

  /** `onPending` is called for every change that waits for a sync, `onReady` once, when the first state is complete. */
  watch(listener: { onPending(family: Family): void; onReady(): void }): void {
    this.#onPending = listener.onPending
    this.#onReady = listener.onReady
  }

  /** True if services and slices have both been delivered completely. */
  get ready(): boolean {
    return this.#complete.size === 2
  }

  service(key: string): ServiceRecord | undefined {
    return this.#services.get(key)
  }

  /** The slices of a service, sorted by key, so that results do not depend on the order of events. */
  slicesOf(service: string, family: Family): readonly SliceRecord[] {
    return this.#families.get(family)?.slices.of(service) ?? none
  }

  /** The slices of all services, by service. */
  allSlices(family: Family): Iterable<readonly SliceRecord[]> {
    return this.#families.get(family)?.slices.all() ?? none
  }

  /** The number of services. */
  get size(): number {
    return this.#services.size
  }

  /** The number of endpoints in the slices of all families. */
  get endpointCount(): number {
    let count = 0
    for (const { slices } of this.#families.values()) count += slices.endpointCount
    return count
  }

  records(): Iterable<ServiceRecord> {
    return this.#services.values()
  }

  /** True if the service has changes that no sync has drained. */
  isPending(service: string, family: Family): boolean {
    const state = this.#families.get(family)
    return state !== undefined && (state.services.has(service) || state.withChangedSlices.has(service))
  }

  /** True if another service than these has changes that no sync has drained. */
  hasPendingBesides(family: Family, services: { has(service: string): boolean }): boolean {
    const state = this.#families.get(family)
    if (state === undefined) return false
    for (const key of state.services.keys()) if (!services.has(key)) return true
    for (const key of state.withChangedSlices) if (!services.has(key)) return true
    return false
  }

  /** As `service`, for a caller that acts on the record: from now on a change back to the old record counts as a change. */
  readForPlan(key: string, family: Family): ServiceRecord | undefined {
    const pending = this.#families.get(family)?.services
    if (pending?.has(key)) pending.set(key, unknown)
    return this.#services.get(key)
  }

  /** Has the service planned again, although none of its records changed. */
  touch(service: string, family: Family): void {
    const state = this.#families.get(family)
    if (state === undefined || !this.#services.has(service)) return
    state.withChangedSlices.add(service)
    this.#onPending(family)
  }

  /** Returns the pending changes of a family, and starts with none. */
  drainPending(family: Family): PendingChanges {
    const state = this.#families.get(family) as FamilyState
    // The collections are handed out as they are: only the caller can go through thousands of them in time slices.
    const pending = new PendingChanges(state)
    state.services = new Map()
    state.withChangedSlices = new Set()
    if (state.triggers.size > 0) state.triggers = new Map()
    state.udpChanged = false
    this.#pendingSlices = 0
    this.#journal.pending('service', 0)
    this.#journal.pending('slice', 0)
    this.#journal.drained(family)
    return pending
  }

  #putService(key: string, record: ServiceRecord | undefined): void {
    const before = this.#services.get(key)
    const changed = !deepEqual(before, record)
    if (changed) {
      if (record === undefined) this.#services.delete(key)
      else this.#services.set(key, record)
      if (this.ready) this.#journal.object({ kind: 'Service', key, before, after: record })
    }
    for (const [family, state] of this.#families) {
      // A service without a cluster IP of the family does not exist in it: a sync would find nothing to do.
      if (changed && (hasFamily(before, family) || hasFamily(record, family))) {
        replacePending(state, key, before, record)
      }
      this.#journal.change('service', state.services.size)
      if (state.services.size > 0) this.#onPending(family)
    }
  }

  #putSlice(key: string, record: SliceRecord | undefined): void {
    const before = this.#slices.get(key)
    const wanted = record !== undefined && this.#families.has(record.family) ? record : undefined
    const after = wanted === undefined ? undefined : this.#pack(wanted, before)
    const changed = after !== before
    if (changed) this.#pendingSlices++
    if (before !== undefined || after !== undefined) this.#journal.change('slice', this.#pendingSlices)
    if (!changed) return
    if (after === undefined) this.#slices.delete(key)
    else this.#slices.set(key, after)
    if (this.ready) this.#journal.object({ kind: 'EndpointSlice', key, before, after })
    const moved = before?.service !== after?.service || before?.family !== after?.family
    if (before !== undefined && (after === undefined || moved)) this.#replaceSlice(before, undefined)
    if (after !== undefined) this.#replaceSlice(moved ? undefined : before, after)
  }

  /**
   * Returns the slice as it is kept, with the unchanged parts of the old one, or the old slice itself if nothing changed. Old objects are
   * tenured, and replacing them costs a collection of the whole heap; their new copies are collected young at no cost.
   */
  #pack(record: SliceRecord, before: StoredSlice | undefined): StoredSlice {
    const endpoints = PackedEndpoints.pack(record.endpoints, this.#traits, before?.endpoints)
    const after = { ...record, endpoints }
    if (before === undefined) return after
    return endpoints === before.endpoints && deepEqual(before, after) ? before : { ...after, key: before.key }
  }

  /** Replaces a slice by another one of the same service and family. Either may be absent. */
  #replaceSlice(before: SliceRecord | undefined, record: SliceRecord | undefined): void {
    const { family, service } = (record ?? before) as SliceRecord
    const state = this.#families.get(family) as FamilyState
    const wasUdp = state.slices.servesUdp(service)
    state.slices.replace(before, record)
    if (wasUdp || state.slices.servesUdp(service)) state.udpChanged = true
    state.withChangedSlices.add(service)
    this.#recordTrigger(state, service, record)
    this.#onPending(family)
  }

  /** Stores the trigger time of a slice, but only of changes that were made after this process started. */
  #recordTrigger(state: FamilyState, service: string, record: SliceRecord | undefined): void {
    if (record === undefined) {
      state.triggers.delete(service)
    } else if (record.triggered > this.#created) {
      const times = state.triggers.get(service)
      if (times === undefined) state.triggers.set(service, [record.triggered])
      else times.push(record.triggered)
    }
  }

  #markComplete(kind: ChangeKind): void {
    if (this.#complete.has(kind)) return
    this.#complete.add(kind)
    if (this.ready) this.#onReady()
  }
}

function replacePending(
  state: FamilyState,
  key: string,
  before: ServiceRecord | undefined,
  after: ServiceRecord | undefined,
): void {
  const { services } = state
  if (!services.has(key)) services.set(key, before)
  else if (deepEqual(services.get(key), after)) services.delete(key)
  // Clients may have sent to a new address before anyone answered there, and a relay may answer from a new socket.
  if (offersUdp(before) || offersUdp(after)) state.udpChanged = true
}

const none: readonly never[] = []

function listAll(lists: Iterable<readonly number[]>): readonly number[] {
  const all: number[] = []
  for (const list of lists) for (const one of list) all.push(one)
  return all
}

const hasFamily = (service: ServiceRecord | undefined, family: Family): boolean =>
  service?.clusterIps.some((ip) => familyOf(ip) === family) === true

const offersUdp = (service: ServiceRecord | undefined): boolean =>
  service?.ports.some((port) => port.protocol === 'udp') === true
