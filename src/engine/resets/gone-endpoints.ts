// Finds endpoints that have gone for good, for services that want their connections ended. No I/O.
//
// 1. An endpoint is gone when its address has left all slices of the service: its pod is deleted. One that is unready, or that
//    terminates and still has its grace, is in its slice, and counts as there.
// 2. An endpoint may move from one slice to another, and is in none of them for a moment. So it is reported only after a grace, and only
//    if it has not come back.
// 3. A service that is deleted ends no connections: its endpoints may live on.

import type { Family } from '../../lib/ip.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import type { NodeView, Protocol, ServiceRecord, SliceRecord } from '../../model/types.ts'
import type { Resolve } from '../planner.ts'

export interface GoneEndpoint {
  readonly service: string
  readonly family: Family
  readonly protocol: Protocol
  readonly ip: string
  readonly port: number
}

export interface GoneEndpointsOptions {
  /** How long an endpoint of the service must be gone, in ms; 0 if its connections are left alone. */
  readonly graceMs: (service: ServiceRecord) => number
  /** Called with endpoints whose grace is over, several at once if they went together. */
  readonly onGone: (endpoints: readonly GoneEndpoint[]) => void
  readonly hasService: (service: string) => boolean
  readonly clock: Clock
}

interface Known {
  readonly service: string
  readonly endpoints: ReadonlyMap<string, GoneEndpoint>
}

interface Leaving {
  readonly endpoint: GoneEndpoint
  /** Monotonic time. */
  readonly dueAt: number
}

/** Endpoints that went within this time are reported together: looking for their connections costs the same for one and for many. */
const togetherMs = 50
/** Below this number nothing is pruned. */
const few = 64

export class GoneEndpoints {
  readonly #options: GoneEndpointsOptions
  /** By family and uid of the service. */
  readonly #known = new Map<string, Known>()
  readonly #leaving = new Map<string, Leaving>()
  #timer: { readonly timer: Timer; readonly at: number } | undefined
  #pruneAt = few

  constructor(options: GoneEndpointsOptions) {
    this.#options = options
  }

  /** Wraps the policy of the model, which stays as it is: planning a service shows its endpoints. */
  wrap(resolve: Resolve): Resolve {
    const observe: (...of: Parameters<Resolve>) => void = (service, slices, node) => {
      const graceMs = this.#options.graceMs(service)
      if (graceMs > 0) this.#compare(service, slices, node, graceMs)
      else if (this.#known.size > 0) this.#known.delete(keyOf(service, node))
    }
    return (service, slices, node) => {
      observe(service, slices, node)
      return resolve(service, slices, node)
    }
  }

  /** The endpoints that have left their service and whose grace is not over. */
  *listLeaving(): Iterable<GoneEndpoint> {
    for (const { endpoint } of this.#leaving.values()) yield endpoint
  }

  close(): void {
    this.#timer?.timer.cancel()
    this.#leaving.clear()
  }

  #compare(service: ServiceRecord, slices: readonly SliceRecord[], node: NodeView, graceMs: number): void {
    const key = keyOf(service, node)
    const before = this.#known.get(key)?.endpoints
    const endpoints = listEndpoints(service, slices, node.family)
    this.#known.set(key, { service: service.key, endpoints })
    const dueAt = this.#options.clock.monotonic() + graceMs
    for (const [id, endpoint] of before ?? none) {
      if (!endpoints.has(id)) this.#leaving.set(`${key} ${id}`, { endpoint, dueAt })
    }
    if (this.#leaving.size > 0) for (const id of endpoints.keys()) this.#leaving.delete(`${key} ${id}`)
    this.#arm()
    if (before === undefined && this.#known.size >= this.#pruneAt) this.#prune()
  }

  #arm(): void {
    let first = Number.POSITIVE_INFINITY
    for (const { dueAt } of this.#leaving.values()) first = Math.min(first, dueAt)
    if (first === this.#timer?.at) return
    this.#timer?.timer.cancel()
    this.#timer = undefined
    if (first === Number.POSITIVE_INFINITY) return
    const { clock } = this.#options
    const timer = clock.after(Math.max(0, first - clock.monotonic()) + togetherMs, () => this.#report())
    this.#timer = { timer, at: first }
  }

  #report(): void {
    const { clock, onGone, hasService } = this.#options
    const now = clock.monotonic()
    const gone: GoneEndpoint[] = []
    this.#timer = undefined
    for (const [key, { endpoint, dueAt }] of this.#leaving) {
      if (dueAt > now) continue
      this.#leaving.delete(key)
      if (hasService(endpoint.service)) gone.push(endpoint)
    }
    this.#arm()
    if (gone.length > 0) onGone(gone)
  }

  /** Forgets services that are gone. Its cost is spread: it runs when the number of services has doubled. */
  #prune(): void {
    for (const [key, { service }] of this.#known) if (!this.#options.hasService(service)) this.#known.delete(key)
    this.#pruneAt = Math.max(few, 2 * this.#known.size)
  }
}

const none: ReadonlyMap<string, GoneEndpoint> = new Map()

const keyOf = ({ uid, key }: ServiceRecord, { family }: NodeView): string => `${family} ${uid} ${key}`

/** Every endpoint of the service, whatever its conditions. */
function listEndpoints(
  { key: service }: ServiceRecord,
  slices: readonly SliceRecord[],
  family: Family,
): ReadonlyMap<string, GoneEndpoint> {
  const found = new Map<string, GoneEndpoint>()
  for (const slice of slices) {
    if (slice.family !== family || slice.service !== service) continue
    for (const { protocol, port } of slice.ports) {
      for (const { ip } of slice.endpoints) {
        found.set(`${protocol} ${ip} ${port}`, { service, family, protocol, ip, port })
      }
    }
  }
  return found
}
