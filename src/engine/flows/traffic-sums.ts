// Adds up the packets and bytes of flows per service port and per endpoint, from lists of open flows and from reports of ended ones. Bounded.
// No I/O, and no clock: the caller passes the time.
//
// What a flow has counted is added as the difference to what was added for it before, so that no sum ever decreases: not when a flow ends between
// a list and its report, not when reports are lost, and not when another program sets the counters of a flow back.

import { type Family, hostPort } from '../../lib/ip.ts'
import type { ServicePort } from '../../model/types.ts'
import type { SeenFlow } from './flow-log.ts'
import {
  type Figures,
  type FlowTotals,
  figuresOf,
  isLower,
  type MutableTotals,
  nothing,
  raise,
  subtract,
  toTotals,
} from './flow-totals.ts'
import type { FlowDestination } from './frontend-index.ts'

/** The part of a flow that is read here. */
export type MeasuredFlow = FlowDestination &
  Pick<SeenFlow, 'id' | 'sourcePort' | 'replySource' | 'replySourcePort' | 'traffic'>

export interface TrafficSumsOptions {
  /** Returns the service port that a packet is for. */
  readonly find: (destination: FlowDestination) => ServicePort | undefined
  /** Open flows that are remembered. Flows beyond them are added when they end. */
  readonly maxOpen?: number
  /** Endpoints that are remembered. The flows of endpoints beyond them are added to the service port alone. */
  readonly maxEndpoints?: number
  /** How long the sum of a service port or endpoint that is gone is kept. */
  readonly goneMs?: number
}

interface Sum extends MutableTotals {
  /** When it went, on a clock that never goes back; undefined if it is there. */
  goneAt: number | undefined
}

interface PortSum extends Sum {
  readonly family: Family
  /** `ns/name:port`. */
  readonly name: string
  /** By `ip:port`. */
  readonly endpoints: Map<string, Sum>
}

/** What was added for a flow so far, and to which sums. */
interface OpenFlow extends FlowTotals {
  readonly port: PortSum
  readonly endpoint: string
  /** How many lists in a row left the flow out. */
  missing: number
}

export interface PortFlowTotals extends FlowTotals {
  readonly endpoints: ReadonlyMap<string, FlowTotals>
}

/** Everything that is known, as plain data. */
export interface SavedSums {
  readonly ports: readonly (readonly [
    family: Family,
    name: string,
    figures: Figures,
    endpoints: readonly (readonly [address: string, figures: Figures])[],
  ])[]
  /** `port` is a position in `ports`. */
  readonly open: readonly (readonly [key: number, port: number, endpoint: string, figures: Figures])[]
}

/** A list that is read while the table changes may leave a flow out once. */
const maxMissing = 2

export class TrafficSums {
  readonly #options: TrafficSumsOptions
  readonly #maxOpen: number
  readonly #maxEndpoints: number
  readonly #goneMs: number
  /** By `family name`. */
  readonly #ports = new Map<string, PortSum>()
  /** The keys of the ports of each service, by `family service`. */
  readonly #portsOf = new Map<string, Set<string>>()
  /** The keys of ports that are gone, or have endpoints that are gone. */
  readonly #withGone = new Set<string>()
  /** Service ports with sums for endpoints that may be gone already: flows outlive their endpoints. */
  readonly #unchecked = new Set<PortSum>()
  #endpoints = 0
  readonly #open = new Map<number, OpenFlow>()
  /** The flows that the list has had so far; undefined while none is read. */
  #listed: Set<number> | undefined
  /** The flows that ended while the list is read. The list may still have them. */
  #endedMeanwhile = new Set<number>()

  constructor(options: TrafficSumsOptions) {
    this.#options = options
    this.#maxOpen = options.maxOpen ?? 100_000
    this.#maxEndpoints = options.maxEndpoints ?? 200_000
    this.#goneMs = options.goneMs ?? 600_000
  }

  /** How many open flows are remembered. */
  get open(): number {
    return this.#open.size
  }

  of(family: Family, name: string): PortFlowTotals | undefined {
    return this.#ports.get(portKey(family, name))
  }

  /** A flow has ended. */
  end(flow: MeasuredFlow): void {
    const key = keyOf(flow)
    if (this.#listed !== undefined) this.#endedMeanwhile.add(key)
    this.#add(key, flow)
    this.#open.delete(key)
  }

  /** A list of all open flows begins. */
  beginList(): void {
    this.#listed = new Set()
    this.#endedMeanwhile = new Set()
  }

  /** One flow of the list. */
  list(flow: MeasuredFlow): void {
    const key = keyOf(flow)
    if (this.#endedMeanwhile.has(key)) return
    // A flow that cannot be remembered is added when it ends, and not twice.
    if (!this.#open.has(key) && this.#open.size >= this.#maxOpen) return
    const added = this.#add(key, flow)
    if (added === undefined) return
    this.#open.set(key, added)
    this.#listed?.add(key)
  }

  /** The list is over. `isComplete`: all flows were listed, and all reports of flows that ended before are passed on. */
  endList(isComplete: boolean): void {
    const listed = this.#listed
    this.#listed = undefined
    this.#endedMeanwhile = new Set()
    if (!isComplete || listed === undefined) return
    for (const [key, flow] of this.#open) {
      if (listed.has(key)) flow.missing = 0
      else if (++flow.missing >= maxMissing) this.#open.delete(key)
    }
  }

  /** A service has these ports now. `now` is on a clock that never goes back. */
  setPorts(service: string, family: Family, ports: readonly ServicePort[], now: number): void {
    const owner = portKey(family, service)
    for (const key of this.#portsOf.get(owner) ?? []) {
      const sum = this.#ports.get(key)
      if (sum === undefined) continue
      const port = ports.find(({ name }) => name === sum.name)
      sum.goneAt = port === undefined ? (sum.goneAt ?? now) : undefined
      if (markEndpoints(sum, port, now) || port === undefined) this.#withGone.add(key)
      else this.#withGone.delete(key)
    }
  }

  /** Forgets what has been gone for long enough. `portsOf` returns the ports that a service has now. */
  forget(portsOf: (service: string, family: Family) => readonly ServicePort[], now: number): void {
    for (const { name, family } of this.#unchecked) {
      const service = serviceOf(name)
      this.setPorts(service, family, portsOf(service, family), now)
    }
    this.#unchecked.clear()
    const dropped = new Set<PortSum>()
    for (const key of this.#withGone) {
      const sum = this.#ports.get(key)
      if (sum === undefined) this.#withGone.delete(key)
      else if (this.#isOver(sum, now)) dropped.add(this.#drop(key, sum))
      else this.#forgetEndpoints(key, sum, now)
    }
    if (dropped.size === 0) return
    for (const [key, { port }] of this.#open) if (dropped.has(port)) this.#open.delete(key)
  }

  save(): SavedSums {
    const positions = new Map<PortSum, number>()
    const ports = [...this.#ports.values()].map((port, i): SavedSums['ports'][number] => {
      positions.set(port, i)
      const endpoints = [...port.endpoints].map(([address, sum]) => [address, figuresOf(sum)] as const)
      return [port.family, port.name, figuresOf(port), endpoints]
    })
    const open: SavedSums['open'][number][] = []
    for (const [key, flow] of this.#open) {
      const port = positions.get(flow.port)
      if (port !== undefined) open.push([key, port, flow.endpoint, figuresOf(flow)])
    }
    return { ports, open }
  }

  /** Takes over what was saved before. Everything counts as gone until `setPorts` names it. */
  load({ ports, open }: SavedSums, now: number): void {
    const loaded = ports.map(([family, name, figures, endpoints]) => {
      const port = this.#portOf(family, name)
      raise(port, toTotals(figures))
      port.goneAt = now
      this.#withGone.add(portKey(family, name))
      for (const [address, more] of endpoints) {
        const endpoint = this.#endpointOf(port, address)
        if (endpoint === undefined) continue
        raise(endpoint, toTotals(more))
        endpoint.goneAt = now
      }
      return port
    })
    for (const [key, position, endpoint, figures] of open) {
      const port = loaded[position]
      if (port !== undefined && this.#open.size < this.#maxOpen)
        this.#open.set(key, { ...toTotals(figures), port, endpoint, missing: 0 })
    }
  }

  /** Adds what the flow has counted since it was seen last. Undefined if the flow is not one to a service, or nothing counts it. */
  #add(key: number, flow: MeasuredFlow): OpenFlow | undefined {
    const { traffic, family } = flow
    if (traffic === undefined) return undefined
    const known = this.#open.get(key)
    const name = known === undefined ? this.#options.find(flow)?.name : undefined
    if (known === undefined && (name === undefined || !isTranslated(flow))) return undefined
    const port = known?.port ?? this.#portOf(family, name ?? '')
    const endpoint = known?.endpoint ?? hostPort(flow.replySource, flow.replySourcePort)
    // A counter that is lower than before belongs to another flow with the same key, or was set back.
    const more = known === undefined || isLower(traffic, known) ? traffic : subtract(traffic, known)
    raise(port, more)
    const sum = this.#endpointOf(port, endpoint)
    if (sum !== undefined) raise(sum, more)
    return { ...traffic, port, endpoint, missing: 0 }
  }

  #portOf(family: Family, name: string): PortSum {
    const key = portKey(family, name)
    let port = this.#ports.get(key)
    if (port !== undefined) return port
    port = { family, name, ...nothing, goneAt: undefined, endpoints: new Map() }
    this.#ports.set(key, port)
    const owner = portKey(family, serviceOf(name))
    const siblings = this.#portsOf.get(owner)
    if (siblings === undefined) this.#portsOf.set(owner, new Set([key]))
    else siblings.add(key)
    return port
  }

  #endpointOf(port: PortSum, address: string): Sum | undefined {
    const known = port.endpoints.get(address)
    if (known !== undefined || this.#endpoints >= this.#maxEndpoints) return known
    const sum: Sum = { ...nothing, goneAt: undefined }
    port.endpoints.set(address, sum)
    this.#unchecked.add(port)
    this.#endpoints++
    return sum
  }

  #isOver({ goneAt }: Sum, now: number): boolean {
    return goneAt !== undefined && now - goneAt >= this.#goneMs
  }

  #drop(key: string, port: PortSum): PortSum {
    const owner = portKey(port.family, serviceOf(port.name))
    const siblings = this.#portsOf.get(owner)
    siblings?.delete(key)
    if (siblings?.size === 0) this.#portsOf.delete(owner)
    this.#ports.delete(key)
    this.#withGone.delete(key)
    this.#endpoints -= port.endpoints.size
    return port
  }

  #forgetEndpoints(key: string, port: PortSum, now: number): void {
    let isWaiting = port.goneAt !== undefined
    for (const [address, sum] of port.endpoints) {
      if (this.#isOver(sum, now)) {
        port.endpoints.delete(address)
        this.#endpoints--
      } else isWaiting ||= sum.goneAt !== undefined
    }
    if (!isWaiting) this.#withGone.delete(key)
  }
}

const portKey = (family: Family, name: string): string => `${family} ${name}`

/** `ns/name` of `ns/name:port`. */
const serviceOf = (name: string): string => name.split(':', 1)[0] as string

/** The kernel's id has 32 bits: with the port of the client two of a hundred thousand flows are never the same. IPv6 is the highest bit. */
const keyOf = ({ id, sourcePort, family }: MeasuredFlow): number =>
  (family === 6 ? 2 ** 48 : 0) + id * 65_536 + sourcePort

const isTranslated = ({ destination, destinationPort, replySource, replySourcePort }: MeasuredFlow): boolean =>
  replySource !== destination || replySourcePort !== destinationPort

/** Notes which endpoints are gone, and since when. Returns true if there are any. */
function markEndpoints(sum: PortSum, port: ServicePort | undefined, now: number): boolean {
  const there = new Set([...(port?.cluster ?? []), ...(port?.local ?? [])].map(({ ip, port }) => hostPort(ip, port)))
  for (const { address } of port?.ejected ?? []) there.add(address)
  let isAnyGone = false
  for (const [address, endpoint] of sum.endpoints) {
    endpoint.goneAt = there.has(address) ? undefined : (endpoint.goneAt ?? now)
    isAnyGone ||= endpoint.goneAt !== undefined
  }
  return isAnyGone
}
