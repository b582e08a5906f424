// Turns the records of one service in one family into entries, and keeps what other parts ask about all services. No I/O.

import type { Backend, Held } from '../backend/backend.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import { type Steps, stride } from '../lib/yielding.ts'
import type { Precedence } from '../model/conflicts.ts'
import { isCritical } from '../model/critical.ts'
import { countEndpoints, describeExceeded, findExceeded, measureService, type ServiceLimits } from '../model/limits.ts'
import { reservedHolder, reservedPorts } from '../model/reserved-addresses.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../model/types.ts'
import { AddressConflicts, type Refuse } from './address-conflicts.ts'
import { EndpointAddresses } from './endpoint-addresses.ts'
import { LiveFrontends } from './flows/live-frontends.ts'
import type { Store } from './store.ts'

export type Resolve = (service: ServiceRecord, slices: readonly SliceRecord[], node: NodeView) => Iterable<ServicePort>

export interface Health {
  readonly port: number
  readonly localEndpoints: number
}

export interface Plan {
  /** Undefined if the service keeps what it has. */
  readonly entries: readonly Held[] | undefined
  /** Other services that won or lost an address because of this plan. */
  readonly affected: readonly string[]
  /** Why there are no new entries: the service exceeds a limit, or triggers a bug. */
  readonly error?: ProxyError
}

export interface PlannerOptions {
  readonly backend: Backend<Held>
  readonly family: Family
  readonly view: NodeView
  readonly store: Store
  readonly resolve: Resolve
  /** Which service holds an address that several claim; by kind if absent. */
  readonly precedence?: Precedence
  /** The size that a service may have; any size if absent. */
  readonly limits?: ServiceLimits | undefined
}

/** Entries that are planned before a pause: an entry may be a chain of a hundred rules, which takes a tenth of a millisecond. */
const entryStride = 10
/** Ports that are handled before a pause. Most services have fewer, and are planned without one: a pause reads the clock. */
const portStride = 4

/** A service with this many entries or endpoints takes some milliseconds to plan and to write. */
const largeSize = 2_000

interface NoLocal {
  readonly internal: number
  readonly external: number
}

export class Planner {
  readonly conflicts: AddressConflicts
  readonly live = new LiveFrontends()
  readonly #options: PlannerOptions
  readonly #endpointAddresses: EndpointAddresses | undefined
  #view: NodeView
  #isClaiming = false
  #reservedPorts: ReadonlySet<number>
  // Service ports are cheap to compute and expensive to keep, so only those are kept that are read as a whole after syncs.
  readonly #udp = new Map<string, readonly ServicePort[]>()
  readonly #health = new Map<string, Health>()
  readonly #noLocal = new Map<string, NoLocal>()
  readonly #totals = { internal: 0, external: 0, internalServices: 0, externalServices: 0 }

  constructor(options: PlannerOptions) {
    this.#options = options
    this.#view = options.view
    this.#reservedPorts = reservedPorts(options.view.reserved)
    const precedence = options.precedence ?? 'kind'
    this.conflicts = new AddressConflicts(options.family, precedence)
    this.#endpointAddresses = precedence === 'kind' ? new EndpointAddresses() : undefined
    this.#endpointAddresses?.setPodNetwork(options.view.local)
  }

  get view(): NodeView {
    return this.#view
  }

  set view(view: NodeView) {
    this.#view = view
    this.#reservedPorts = reservedPorts(view.reserved)
    this.#endpointAddresses?.setPodNetwork(view.local)
  }

  /**
   * Plans one service in steps. A service that exceeds a limit keeps what it has, addresses included, until it fits or is deleted: a
   * change that goes too far must not take down what worked before.
   */
  *plan(service: string): Steps<Plan> {
    const { store, family, resolve } = this.#options
    const { view } = this
    const record = store.readForPlan(service, family)
    if (record === undefined) return yield* this.#exclusively(this.#planNothing(service))
    const slices = store.slicesOf(service, family)
    const exceeded = this.#findExceeded(record, slices)
    if (exceeded !== undefined) return { entries: undefined, affected: [], error: exceeded }
    let affected: readonly string[] = []
    try {
      const ports: ServicePort[] = []
      for (const port of resolve(record, slices, view)) {
        ports.push(port)
        if (isLong(port) || ports.length % portStride === 0) yield
      }
      affected = yield* this.#exclusively(this.#claim(record, ports, slices))
      if (ports.length >= portStride) yield
      const won = this.conflicts.withoutLost(service, ports)
      const entries: Held[] = []
      for (let i = 0; i < won.length; i++) {
        const port = won[i] as ServicePort
        yield* this.#planPort(port, view, entries)
        if (isLong(port) || i % portStride === portStride - 1) yield
      }
      yield* this.#index(service, won)
      return { entries, affected }
    } catch (cause) {
      const plan = yield* this.#exclusively(this.#planNothing(service, planError(service, cause)))
      return { ...plan, affected: [...new Set([...affected, ...plan.affected])] }
    }
  }

  *#exclusively<T>(steps: Steps<T>): Steps<T> {
    this.#isClaiming = true
    try {
      return yield* steps
    } finally {
      this.#isClaiming = false
    }
  }

  *#planPort(port: ServicePort, view: NodeView, entries: Held[]): Steps<void> {
    const { backend } = this.#options
    for (const entry of (isLong(port) && backend.planLazily?.(port, view)) || backend.plan(port, view)) {
      entries.push(entry)
      if (entries.length % entryStride === 0) yield
    }
  }

  /** Returns the services whose new addresses are endpoints of other services. They must be planned again. */
  *findDisplaced(): Steps<readonly string[]> {
    const { store, family } = this.#options
    if (this.#endpointAddresses === undefined) return none
    const keys = yield* this.#endpointAddresses.findNew(this.#withinLimits(store.allSlices(family)))
    return this.#claimantsOf(keys)
  }

  /**
   * True while a plan changes which service has which address. No other service can be planned meanwhile: it might lose an address before
   * the winner has entries for it, or miss an endpoint at an address that is about to be claimed.
   */
  get isClaiming(): boolean {
    return this.#isClaiming
  }

  /** True if planning and writing the service takes so long that other services should not wait for it. */
  isLarge(service: string): boolean {
    const { store, family } = this.#options
    const record = store.service(service)
    if (record === undefined) return false
    const size = measureService(record, store.slicesOf(service, family), family)
    // A source range takes the kernel as long as five other entries.
    return size.entriesPerService + 5 * size.sourceRangesPerService > largeSize
  }

  listCritical(): readonly string[] {
    const found: string[] = []
    for (const record of this.#options.store.records()) if (isCritical(record)) found.push(record.key)
    return found
  }

  /** The ports that a service has now, without the frontends that it lost; none if it cannot be resolved. */
  portsOf(service: string): readonly ServicePort[] {
    const { store, family, resolve } = this.#options
    const record = store.service(service)
    if (record === undefined) return []
    const slices = store.slicesOf(service, family)
    if (this.#findExceeded(record, slices) !== undefined) return []
    try {
      return this.conflicts.withoutLost(service, [...resolve(record, slices, this.view)])
    } catch {
      // The plan failed for the same reason, and the quarantine names it.
      return []
    }
  }

  #findExceeded(record: ServiceRecord, slices: readonly SliceRecord[]): ProxyError | undefined {
    const { limits, family } = this.#options
    if (limits === undefined) return undefined
    const exceeded = findExceeded(measureService(record, slices, family), limits)
    if (exceeded === undefined) return undefined
    const message = `service ${record.key} has ${describeExceeded(exceeded)}`
    return new ProxyError('limit', message, { fields: { ...exceeded } })
  }

  *ports(): Iterable<ServicePort> {
    for (const { key } of this.#options.store.records()) yield* this.portsOf(key)
  }

  *udpPorts(): Iterable<ServicePort> {
    for (const ports of this.#udp.values()) yield* ports
  }

  health(): ReadonlyMap<string, Health> {
    return this.#health
  }

  /** How many service ports, and services, a Local policy leaves without endpoints here while there are endpoints elsewhere. */
  noLocal(): { readonly ports: NoLocal; readonly services: NoLocal } {
    const { internal, external, internalServices, externalServices } = this.#totals
    return { ports: { internal, external }, services: { internal: internalServices, external: externalServices } }
  }

  readonly #refuse: Refuse = (port, address, key) => {
    const { kind } = address
    const isExternal = kind === 'external-ip' || kind === 'load-balancer'
    if (isExternal || this.#reservedPorts.has(address.port)) {
      const holder = reservedHolder(port, address, key, this.view)
      if (holder !== undefined) return { holder, reason: 'reserved' }
    }
    const holder = isExternal ? this.#endpointAddresses?.holderOf(key, port.service) : undefined
    return holder === undefined ? undefined : { holder, reason: 'endpoint' }
  };

  /** Claims the addresses of a service. Returns the other services that won or lost one because of it. */
  *#claim(
    record: ServiceRecord,
    ports: readonly ServicePort[],
    slices: readonly SliceRecord[],
  ): Steps<readonly string[]> {
    this.#endpointAddresses?.claim(record.key, ports)
    const displaced = this.#replaceEndpoints(record.key, slices)
    const affected = yield* this.conflicts.claim(record, ports, this.#refuse)
    return displaced.length === 0 ? affected : [...affected, ...displaced]
  }

  /** Returns the other services that claim an address which became, or no longer is, an endpoint of this one. */
  #replaceEndpoints(service: string, slices: readonly SliceRecord[]): readonly string[] {
    const addresses = this.#endpointAddresses
    if (addresses === undefined || addresses.isIdle) return none
    const [own = none] = this.#withinLimits([slices])
    const keys = addresses.replace(service, own)
    return this.#claimantsOf(keys).filter((one) => one !== service)
  }

  /** Leaves out the slices of services with too many endpoints, which are not programmed. */
  *#withinLimits(slices: Iterable<readonly SliceRecord[]>): Iterable<readonly SliceRecord[]> {
    const most = this.#options.limits?.endpointsPerService ?? Number.POSITIVE_INFINITY
    for (const own of slices) if (countEndpoints(own) <= most) yield own
  }

  #claimantsOf(keys: readonly string[]): readonly string[] {
    return keys.length === 0 ? none : [...new Set(keys.flatMap((key) => [...this.conflicts.claimantsOf(key)]))]
  }

  *#planNothing(service: string, error?: ProxyError): Steps<Plan> {
    const { store, family } = this.#options
    yield* this.#index(service, [])
    this.#endpointAddresses?.claim(service, none)
    // Slices may be there without their service, or of one that has no rules: their pods have addresses all the same.
    const displaced = this.#replaceEndpoints(service, store.slicesOf(service, family))
    const affected = [...(yield* this.conflicts.release(service)), ...displaced]
    return error === undefined ? { entries: [], affected } : { entries: [], affected, error }
  }

  *#index(service: string, ports: readonly ServicePort[]): Steps<void> {
    yield* this.live.note(service, ports)
    const udp = ports.filter((port) => port.protocol === 'udp')
    setOrDelete(this.#udp, service, udp.length > 0 ? udp : undefined)
    setOrDelete(this.#health, service, ports.find((port) => port.health !== undefined)?.health)
    this.#addToTotals(this.#noLocal.get(service), -1)
    const internal = count(ports, (port) => port.internal === 'drop')
    const external = count(ports, (port) => port.external === 'drop')
    const noLocal = internal + external > 0 ? { internal, external } : undefined
    setOrDelete(this.#noLocal, service, noLocal)
    this.#addToTotals(noLocal, 1)
  }

  #addToTotals(noLocal: NoLocal | undefined, sign: 1 | -1): void {
    if (noLocal === undefined) return
    this.#totals.internal += sign * noLocal.internal
    this.#totals.external += sign * noLocal.external
    if (noLocal.internal > 0) this.#totals.internalServices += sign
    if (noLocal.external > 0) this.#totals.externalServices += sign
  }
}

const none: readonly never[] = []

/** True if working on the port takes so long that other tasks may need a turn after it. */
const isLong = (port: ServicePort): boolean => port.frontends.length + port.cluster.length > stride

function setOrDelete<T>(map: Map<string, T>, key: string, value: T | undefined): void {
  if (value !== undefined) map.set(key, value)
  else if (map.size > 0) map.delete(key)
}

function count(ports: readonly ServicePort[], test: (port: ServicePort) => boolean): number {
  let total = 0
  for (const port of ports) if (test(port)) total++
  return total
}

const planError = (service: string, cause: unknown): ProxyError =>
  cause instanceof ProxyError
    ? cause
    : new ProxyError('plan', `service ${service} cannot be planned: ${describeError(cause)}`, { cause })
