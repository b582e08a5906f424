// One service in one family from records to entries, and what others want to know about all services on the way. No I/O.

import type { Backend, Held } from '../backend/backend.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../model/types.ts'
import { AddressConflicts } from './address-conflicts.ts'
import type { Store } from './store.ts'

export type Resolve = (service: ServiceRecord, slices: readonly SliceRecord[], node: NodeView) => readonly ServicePort[]

export interface Health {
  readonly port: number
  readonly localEndpoints: number
}

export interface Plan {
  readonly entries: readonly Held[]
  /** Other services that won or lost an address by this. */
  readonly affected: readonly string[]
  /** Why there are no entries: a bug that this object meets. */
  readonly error?: ProxyError
}

export interface PlannerOptions {
  readonly backend: Backend<Held>
  readonly family: Family
  readonly view: NodeView
  readonly store: Store
  readonly resolve: Resolve
}

interface NoLocal {
  readonly internal: number
  readonly external: number
}

export class Planner {
  view: NodeView
  readonly contest: AddressConflicts
  readonly #options: PlannerOptions
  // Service ports are cheap to compute and dear to keep, so only those are kept that are asked for as a whole after syncs.
  readonly #udp = new Map<string, readonly ServicePort[]>()
  readonly #health = new Map<string, Health>()
  readonly #noLocal = new Map<string, NoLocal>()
  readonly #totals = { internal: 0, external: 0, internalServices: 0, externalServices: 0 }

  constructor(options: PlannerOptions) {
    this.#options = options
    this.view = options.view
    this.contest = new AddressConflicts(options.family)
  }

  plan(service: string): Plan {
    const { store, family, backend } = this.#options
    const record = store.read(service, family)
    if (record === undefined) return this.#nothing(service)
    try {
      const ports = this.#options.resolve(record, store.slicesOf(service, family), this.view)
      const affected = this.contest.claim(record, ports)
      try {
        const won = this.contest.won(service, ports)
        const entries = won.flatMap((port) => backend.plan(port, this.view))
        this.#index(service, won)
        return { entries, affected }
      } catch (cause) {
        const plan = this.#nothing(service, failure(service, cause))
        return { ...plan, affected: [...new Set([...affected, ...plan.affected])] }
      }
    } catch (cause) {
      return this.#nothing(service, failure(service, cause))
    }
  }

  /** The ports a service has now, without what it lost; none if it cannot be resolved. */
  portsOf(service: string): readonly ServicePort[] {
    const { store, family, resolve } = this.#options
    const record = store.service(service)
    if (record === undefined) return []
    try {
      return this.contest.won(service, resolve(record, store.slicesOf(service, family), this.view))
    } catch {
      // The plan failed for the same reason and says so in the quarantine.
      return []
    }
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

  /** Service ports, and services, that a Local policy leaves without endpoints here while there are some elsewhere. */
  noLocal(): { readonly ports: NoLocal; readonly services: NoLocal } {
    const { internal, external, internalServices, externalServices } = this.#totals
    return { ports: { internal, external }, services: { internal: internalServices, external: externalServices } }
  }

  #nothing(service: string, error?: ProxyError): Plan {
    this.#index(service, [])
    const affected = this.contest.release(service)
    return error === undefined ? { entries: [], affected } : { entries: [], affected, error }
  }

  #index(service: string, ports: readonly ServicePort[]): void {
    const udp = ports.filter((port) => port.protocol === 'udp')
    keep(this.#udp, service, udp.length > 0 ? udp : undefined)
    keep(this.#health, service, ports.find((port) => port.health !== undefined)?.health)
    this.#count(this.#noLocal.get(service), -1)
    const internal = count(ports, (port) => port.internal === 'drop')
    const external = count(ports, (port) => port.external === 'drop')
    const noLocal = internal + external > 0 ? { internal, external } : undefined
    keep(this.#noLocal, service, noLocal)
    this.#count(noLocal, 1)
  }

  #count(noLocal: NoLocal | undefined, sign: 1 | -1): void {
    if (noLocal === undefined) return
    this.#totals.internal += sign * noLocal.internal
    this.#totals.external += sign * noLocal.external
    if (noLocal.internal > 0) this.#totals.internalServices += sign
    if (noLocal.external > 0) this.#totals.externalServices += sign
  }
}

function keep<T>(map: Map<string, T>, key: string, value: T | undefined): void {
  if (value !== undefined) map.set(key, value)
  else if (map.size > 0) map.delete(key)
}

function count(ports: readonly ServicePort[], test: (port: ServicePort) => boolean): number {
  let total = 0
  for (const port of ports) if (test(port)) total++
  return total
}

const failure = (service: string, cause: unknown): ProxyError =>
  cause instanceof ProxyError
    ? cause
    : new ProxyError('plan', `service ${service} cannot be planned: ${describeError(cause)}`, { cause })
