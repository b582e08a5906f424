// Records by key, which services are dirty in which family, and what has synced. Decides nothing.

import { deepEqual } from '../lib/equal.ts'
import type { Family } from '../lib/ip.ts'
import type { Clock } from '../lib/time.ts'
import type { EndpointRecord, Problem, ServiceRecord, SliceRecord } from '../model/types.ts'
import type { ChangeKind, SyncJournal } from './journal.ts'

/** Where a reflector delivers one kind of record. */
export interface StoreSink<R> {
  put(key: string, record: R): void
  drop(key: string): void
  /** The first complete set has been delivered. */
  synced(): void
  problem(problem: Problem): void
}

/** What changed in one family since the last time it was asked. */
export interface PendingChanges {
  /** Each at least once. */
  services(): Iterable<string>
  has(service: string): boolean
  /** Unix ms of the trigger times of slice changes. */
  readonly triggers: readonly number[]
  readonly udpChanged: boolean
}

export interface StoreOptions {
  /** Slices of other families are not kept. */
  readonly families: readonly Family[]
  readonly clock: Clock
  readonly journal: SyncJournal
}

/** A service's state before its pending changes, when somebody has read it in between. */
const unknown = Symbol('unknown')

class FamilyState {
  readonly slices = new Map<string, readonly SliceRecord[]>()
  /** Changed services, with what they were: a change back leaves nothing to do. */
  services = new Map<string, ServiceRecord | undefined | typeof unknown>()
  /** Services of changed slices. */
  touched = new Set<string>()
  triggers = new Map<string, number[]>()
  udpChanged = false
}

export class Store {
  readonly services: StoreSink<ServiceRecord>
  readonly slices: StoreSink<SliceRecord>
  readonly #journal: SyncJournal
  readonly #created: number
  readonly #services = new Map<string, ServiceRecord>()
  readonly #slices = new Map<string, SliceRecord>()
  readonly #families = new Map<Family, FamilyState>()
  readonly #synced = new Set<ChangeKind>()
  #pendingSlices = 0
  #onDirty: (family: Family) => void = () => {}
  #onReady: () => void = () => {}

  constructor({ families, clock, journal }: StoreOptions) {
    this.#journal = journal
    this.#created = clock.now()
    for (const family of families) this.#families.set(family, new FamilyState())
    const problem = (p: Problem) => journal.problem(p)
    this.services = {
      put: (key, record) => this.#putService(key, record),
      drop: (key) => this.#putService(key, undefined),
      synced: () => this.#sync('service'),
      problem,
    }
    this.slices = {
      put: (key, record) => this.#putSlice(key, record),
      drop: (key) => this.#putSlice(key, undefined),
      synced: () => this.#sync('slice'),
      problem,
    }
  }

  /** `dirty` hears of every change that waits for a sync, `ready` once of the first complete state. */
  watch(listener: { dirty(family: Family): void; ready(): void }): void {
    this.#onDirty = listener.dirty
    this.#onReady = listener.ready
  }

  /** Services and slices have both been delivered completely. */
  get ready(): boolean {
    return this.#synced.size === 2
  }

  service(key: string): ServiceRecord | undefined {
    return this.#services.get(key)
  }

  /** Sorted by key, so that what comes of them does not depend on the order of events. */
  slicesOf(service: string, family: Family): readonly SliceRecord[] {
    return this.#families.get(family)?.slices.get(service) ?? []
  }

  records(): Iterable<ServiceRecord> {
    return this.#services.values()
  }

  /** Services with changes that no sync has taken up. */
  dirty(service: string, family: Family): boolean {
    const state = this.#families.get(family)
    return state !== undefined && (state.services.has(service) || state.touched.has(service))
  }

  /** As `service`, for somebody who will act on it: from now on a change back is a change, too. */
  read(key: string, family: Family): ServiceRecord | undefined {
    const pending = this.#families.get(family)?.services
    if (pending?.has(key)) pending.set(key, unknown)
    return this.#services.get(key)
  }

  /** Hands out what is dirty, and starts anew. */
  drainPending(family: Family): PendingChanges {
    const state = this.#families.get(family) as FamilyState
    const { services, touched, udpChanged } = state
    const triggers = state.triggers.size === 0 ? none : [...state.triggers.values()].flat()
    // Handed out as they are: going through thousands is for those who can take a rest.
    state.services = new Map()
    state.touched = new Set()
    if (triggers.length > 0) state.triggers = new Map()
    state.udpChanged = false
    this.#pendingSlices = 0
    this.#journal.pending('service', 0)
    this.#journal.pending('slice', 0)
    return {
      *services() {
        yield* touched
        yield* services.keys()
      },
      has: (service) => touched.has(service) || services.has(service),
      triggers,
      udpChanged,
    }
  }

  #putService(key: string, record: ServiceRecord | undefined): void {
    const before = this.#services.get(key)
    const changed = !deepEqual(before, record)
    if (changed) {
      if (record === undefined) this.#services.delete(key)
      else this.#services.set(key, record)
    }
    const udp = changed && (offersUdp(before) || offersUdp(record))
    for (const [family, state] of this.#families) {
      const { services } = state
      if (changed) {
        if (!services.has(key)) services.set(key, before)
        else if (deepEqual(services.get(key), record)) services.delete(key)
      }
      // A new address may have been asked before anybody answered there, and in userspace mode the socket behind it is a new one.
      if (udp) state.udpChanged = true
      this.#journal.change('service', services.size)
      if (services.size > 0) this.#onDirty(family)
    }
  }

  #putSlice(key: string, record: SliceRecord | undefined): void {
    const before = this.#slices.get(key)
    const wanted = record !== undefined && this.#families.has(record.family) ? record : undefined
    const served = before !== undefined && wanted !== undefined ? sharing(before, wanted) : wanted
    const changed = served !== before
    if (changed) this.#pendingSlices++
    if (before !== undefined || served !== undefined) this.#journal.change('slice', this.#pendingSlices)
    if (!changed) return
    if (served === undefined) this.#slices.delete(key)
    else this.#slices.set(key, served)
    const moved = before?.service !== served?.service || before?.family !== served?.family
    if (before !== undefined && (served === undefined || moved)) this.#replaceSlice(before, undefined)
    if (served !== undefined) this.#replaceSlice(served, served)
  }

  /** `at` says whose slice it is; `record` is what it is now. */
  #replaceSlice(at: SliceRecord, record: SliceRecord | undefined): void {
    const state = this.#families.get(at.family) as FamilyState
    const before = state.slices.get(at.service) ?? []
    const after = replaced(before, at.key, record)
    if (after.length === 0) state.slices.delete(at.service)
    else state.slices.set(at.service, after)
    state.touched.add(at.service)
    if (before.some(servesUdp) || after.some(servesUdp)) state.udpChanged = true
    this.#trigger(state, at.service, record)
    this.#onDirty(at.family)
  }

  /** When the change behind a slice was made: only of changes that this process could have been in time for. */
  #trigger(state: FamilyState, service: string, record: SliceRecord | undefined): void {
    if (record === undefined) {
      state.triggers.delete(service)
    } else if (record.triggered > this.#created) {
      const times = state.triggers.get(service)
      if (times === undefined) state.triggers.set(service, [record.triggered])
      else times.push(record.triggered)
    }
  }

  #sync(kind: ChangeKind): void {
    if (this.#synced.has(kind)) return
    this.#synced.add(kind)
    if (this.ready) this.#onReady()
  }
}

/** Sorted by key, with no room to spare: there is one such list per service. */
function replaced(
  slices: readonly SliceRecord[],
  key: string,
  record: SliceRecord | undefined,
): readonly SliceRecord[] {
  const others = slices.filter((slice) => slice.key !== key)
  if (record === undefined) return others
  if (others.length === 0) return [record]
  return [...others, record].sort((a, b) => (a.key < b.key ? -1 : 1))
}

/**
 * The new slice, made of the parts of the old one that are still so; the old one itself if nothing has changed. They have grown old in
 * memory already; their equals are forgotten at once, for nothing, while old ones cost a collection of the whole heap.
 */
function sharing(before: SliceRecord, after: SliceRecord): SliceRecord {
  const endpoints = sharedEndpoints(before.endpoints, after.endpoints)
  const rest = { endpoints: none }
  if (endpoints === before.endpoints && deepEqual({ ...before, ...rest }, { ...after, ...rest })) return before
  return { ...after, key: before.key, endpoints }
}

function sharedEndpoints(
  before: readonly EndpointRecord[],
  after: readonly EndpointRecord[],
): readonly EndpointRecord[] {
  let known: Map<string, EndpointRecord> | undefined
  const shared = after.map((endpoint, i) => {
    // Nearly always where it was.
    const there = before[i]
    if (there !== undefined && sameEndpoint(there, endpoint)) return there
    known ??= new Map(before.map((one) => [one.ip, one]))
    const old = known.get(endpoint.ip)
    return old !== undefined && sameEndpoint(old, endpoint) ? old : endpoint
  })
  return known === undefined && shared.length === before.length ? before : shared
}

const none: readonly never[] = []

/** As `same` would find, without asking for the names of the fields: most of what comes is this. */
function sameEndpoint(a: EndpointRecord, b: EndpointRecord): boolean {
  return (
    a.ip === b.ip &&
    a.node === b.node &&
    a.ready === b.ready &&
    a.serving === b.serving &&
    a.terminating === b.terminating &&
    deepEqual(a.zoneHints, b.zoneHints) &&
    deepEqual(a.nodeHints, b.nodeHints)
  )
}

const offersUdp = (service: ServiceRecord | undefined): boolean =>
  service?.ports.some((port) => port.protocol === 'udp') === true

const servesUdp = (slice: SliceRecord): boolean =>
  slice.endpoints.length > 0 && slice.ports.some((port) => port.protocol === 'udp')
