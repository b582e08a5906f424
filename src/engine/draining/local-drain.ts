// Forwards external traffic to other nodes for a while after the last endpoint on this node has gone, where the policy is Local.
//
// A load balancer notices by the health check port that a node has no endpoints any more, and that takes it some seconds. Until then it
// sends new connections here, and policy Local drops them. Decisions:
// 1. Only a node that had an endpoint drains: one that never had any gets no traffic from a balancer.
// 2. The time counts from the moment at which the last endpoint went, and a change of anything else does not extend it.
// 3. Only external traffic is forwarded. Users of internalTrafficPolicy Local rely on traffic that stays on the node, and no balancer
//    stands before it.
// 4. A restart of the proxy changes nothing: a port that a previous process let drain goes on with the rest of its time.
// 5. The health check port does not know of this: it reports no endpoints at once.

import type { Family } from '../../lib/ip.ts'
import { type Clock, formatTime, type Timer } from '../../lib/time.ts'
import type { Disposition, ServicePort, ServiceRecord } from '../../model/types.ts'
import type { Resolve } from '../planner.ts'

/** What is remembered of a service port: that it has endpoints here, or since when it has none, as monotonic and Unix time. */
export type DrainState = 'serving' | { readonly since: number; readonly sinceUnix: number }

/** Decides what to remember. `now` is monotonic. Undefined: nothing, and no draining. */
export function followDrain(
  before: DrainState | undefined,
  external: Disposition,
  time: { readonly now: number; readonly unix: number; readonly drainMs: number },
): DrainState | undefined {
  if (external === 'cluster' || time.drainMs === 0) return undefined
  if (external === 'local') return 'serving'
  if (before === 'serving') return { since: time.now, sinceUnix: time.unix }
  return before !== undefined && time.now < before.since + time.drainMs ? before : undefined
}

export interface LocalDrainsOptions {
  /** How long external traffic of a service is forwarded, in ms; 0 for not at all. */
  readonly drainMs: (service: ServiceRecord) => number
  /** Called when the time of a service is over: it must be planned again. */
  readonly onEnd: (service: string, family: Family) => void
  readonly hasService: (service: string) => boolean
  /** Called with the number of service ports that drain now. */
  readonly onCount: (draining: number) => void
  /** What `onDrains` got last in a previous process: Unix times by port. An entry counts when its port is planned for the first time. */
  readonly earlier?: Map<string, number>
  /** Called with all ports that drain, when one begins or ends. */
  readonly onDrains?: (since: ReadonlyMap<string, number>) => void
  readonly clock: Clock
}

interface Remembered {
  readonly service: string
  readonly state: DrainState
  /** Present while the port drains. */
  readonly timer: Timer | undefined
}

/** Below this number nothing is pruned. */
const few = 64

export class LocalDrains {
  readonly #options: LocalDrainsOptions
  readonly #ports = new Map<string, Remembered>()
  #draining = 0
  #pruneAt = few

  constructor(options: LocalDrainsOptions) {
    this.#options = options
  }

  /** Wraps the policy of the model: external traffic that would be dropped is forwarded while the service drains. */
  wrap(resolve: Resolve): Resolve {
    return (service, slices, node) => {
      const drainMs = service.externalPolicy === 'Local' ? this.#options.drainMs(service) : 0
      const ports = resolve(service, slices, node)
      return drainMs === 0 && this.#ports.size === 0 ? ports : this.#applyAll(service, ports, drainMs)
    }
  }

  *#applyAll(service: ServiceRecord, ports: Iterable<ServicePort>, drainMs: number): Iterable<ServicePort> {
    for (const port of ports) yield this.#apply(service, port, drainMs)
  }

  /** The number of service ports of which something is remembered. */
  get size(): number {
    return this.#ports.size
  }

  close(): void {
    for (const { timer } of this.#ports.values()) timer?.cancel()
    this.#ports.clear()
  }

  #apply({ uid }: ServiceRecord, port: ServicePort, drainMs: number): ServicePort {
    const { clock } = this.#options
    const key = `${port.family} ${uid} ${port.id}`
    const before = this.#ports.get(key)
    const time = { now: clock.monotonic(), unix: clock.now(), drainMs }
    const state = followDrain(before?.state ?? this.#recall(key, time), port.external, time)
    if (state === undefined || state === 'serving') {
      if (state !== before?.state) this.#remember(key, state && { service: port.service, state, timer: undefined })
      return port
    }
    if (state !== before?.state) {
      const timer = clock.after(state.since + drainMs - time.now, () => this.#end(key, port))
      this.#remember(key, { service: port.service, state, timer })
    }
    if (port.external !== 'drop') return port
    return { ...port, external: 'cluster', drainingUntil: formatTime(state.sinceUnix + drainMs) }
  }

  /** What a previous process knew. A time in the future says that the clock was set. */
  #recall(key: string, { now, unix }: { readonly now: number; readonly unix: number }): DrainState | undefined {
    const sinceUnix = this.#options.earlier?.get(key)
    this.#options.earlier?.delete(key)
    return sinceUnix === undefined || sinceUnix > unix ? undefined : { since: now - (unix - sinceUnix), sinceUnix }
  }

  #end(key: string, { service, family }: ServicePort): void {
    this.#remember(key, undefined)
    this.#options.onEnd(service, family)
  }

  #remember(key: string, next: Remembered | undefined): void {
    const before = this.#ports.get(key)
    before?.timer?.cancel()
    const draining = this.#draining + (next?.timer === undefined ? 0 : 1) - (before?.timer === undefined ? 0 : 1)
    if (next === undefined) this.#ports.delete(key)
    else this.#ports.set(key, next)
    const hasChanged = before?.timer !== next?.timer
    if (draining !== this.#draining) this.#options.onCount(draining)
    this.#draining = draining
    if (hasChanged) this.#options.onDrains?.(this.#listDrains())
    if (this.#ports.size >= this.#pruneAt) this.#prune()
  }

  #listDrains(): ReadonlyMap<string, number> {
    const since = new Map<string, number>()
    for (const [key, { state }] of this.#ports) if (typeof state === 'object') since.set(key, state.sinceUnix)
    return since
  }

  /** Forgets the ports of services that are gone. Its cost is spread: it runs when the number of ports has doubled. */
  #prune(): void {
    for (const [key, { service, timer }] of this.#ports) {
      if (timer === undefined && !this.#options.hasService(service)) this.#ports.delete(key)
    }
    this.#pruneAt = Math.max(few, 2 * this.#ports.size)
  }
}
