// Keeps the flows to services that are open and those that ended lately, and decides how a flow ended. Bounded. No I/O, and no clock: the
// caller passes the time.

import { type Family, hostPort } from '../../lib/ip.ts'
import type { Protocol, ServicePort } from '../../model/types.ts'
import type { FlowTotals } from './flow-totals.ts'
import type { FlowVerdict } from './flow-verdicts.ts'
import type { FlowDestination } from './frontend-index.ts'

/** A flow as the data plane reports it. */
export interface SeenFlow extends FlowDestination {
  readonly id: number
  readonly source: string
  readonly sourcePort: number
  /** The address that replies, or should. */
  readonly replySource: string
  readonly replySourcePort: number
  readonly replied: boolean
  readonly stage: 'opening' | 'open' | 'closed' | 'reset'
  readonly traffic: FlowTotals | undefined
  /** Unix ms; undefined if unknown. */
  readonly startedAt: number | undefined
}

export interface LoggedFlow {
  /** Unique as long as the log is kept. */
  readonly id: string
  readonly family: Family
  readonly protocol: Protocol
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
  readonly port: Pick<ServicePort, 'service' | 'name'>
  /** `ip:port`; '' if no endpoint was chosen. */
  readonly endpoint: string
  readonly verdict: FlowVerdict
  /** The rule that rejected or dropped it; '' otherwise. */
  readonly rule: string
  /** Unix ms; undefined if it began before anyone looked. */
  readonly startedAt: number | undefined
  readonly endedAt: number | undefined
  readonly traffic: FlowTotals | undefined
}

/** A packet that a rule rejected or dropped. */
export interface RefusedPacket extends FlowDestination {
  readonly source: string
  readonly sourcePort: number
  readonly verdict: 'rejected' | 'dropped'
  readonly rule: string
}

export interface FlowLogOptions {
  /** Returns the service port that a packet is for. */
  readonly find: (destination: FlowDestination) => ServicePort | undefined
  /** How long the data plane waits for the first reply before it forgets a connection. */
  readonly replyTimeoutMs: () => number
  /** Called for every flow that begins or ends. */
  readonly emit?: (flow: LoggedFlow) => void
  readonly maxOpen?: number
  readonly maxEnded?: number
}

export class FlowLog {
  readonly #options: FlowLogOptions
  readonly #maxOpen: number
  readonly #maxEnded: number
  readonly #open = new Map<string, LoggedFlow>()
  readonly #ended: LoggedFlow[] = []
  /** The open flows that the last list left out. */
  #missing: ReadonlySet<string> = new Set()
  #refused = 0
  #skipped = 0

  constructor(options: FlowLogOptions) {
    this.#options = options
    this.#maxOpen = options.maxOpen ?? 10_000
    this.#maxEnded = options.maxEnded ?? 1_000
  }

  /** Flows that were left out because the log is full. */
  get skipped(): number {
    return this.#skipped
  }

  /** The open flows, and then those that ended, the newest last. */
  list(): readonly LoggedFlow[] {
    return [...this.#open.values(), ...this.#ended]
  }

  /** A flow of a list: it may have ended before. */
  add(flow: SeenFlow): void {
    if (!this.#begin(flow, undefined) && verdictOf(flow) !== 'open') this.#addEnded(flow)
  }

  /** A notification. Returns true if a flow begins. */
  note(kind: 'new' | 'update' | 'destroy', flow: SeenFlow, now: number): boolean {
    const id = idOf(flow)
    const known = this.#open.get(id)
    if (known === undefined) return kind !== 'destroy' && this.#begin(flow, kind === 'new' ? now : undefined)
    const verdict = kind === 'destroy' ? this.#judgeEnd(known, flow, now) : verdictOf(flow)
    const traffic = flow.traffic ?? known.traffic
    if (verdict !== 'open') this.end({ ...known, verdict, traffic, endedAt: now })
    else if (traffic !== known.traffic) this.#open.set(id, { ...known, traffic })
    return false
  }

  /**
   * All flows that the data plane held between `since` and `now`. A flow that is missing twice has ended: a list that is read while the
   * table changes may leave one out.
   */
  merge(flows: Iterable<SeenFlow>, since: number, now: number): void {
    const held = new Set<string>()
    for (const flow of flows) {
      held.add(idOf(flow))
      this.note('update', flow, now)
    }
    const missing = new Set<string>()
    for (const [id, flow] of this.#open) {
      if (held.has(id) || (flow.startedAt ?? 0) >= since) continue
      if (this.#missing.has(id)) this.end({ ...flow, verdict: 'expired', endedAt: now })
      else missing.add(id)
    }
    this.#missing = missing
  }

  /** A rule rejected or dropped a packet. A client that tries again makes one more entry. */
  refuse(packet: RefusedPacket, now: number): void {
    const port = this.#options.find(packet)
    if (port === undefined) return
    const { family, protocol, source, sourcePort, destination, destinationPort, verdict, rule } = packet
    this.end({
      ...{ id: `rule-${++this.#refused}`, family, protocol, source, sourcePort, destination, destinationPort, port },
      ...{ endpoint: '', verdict, rule, startedAt: now, endedAt: now, traffic: undefined },
    })
  }

  /** A flow that has ended, and of which the caller knows everything. */
  end(flow: LoggedFlow): void {
    this.#open.delete(flow.id)
    this.#keepEnded(flow)
    this.#options.emit?.(flow)
  }

  /** Forgets the open flows for which `keeps` is false, without an end. */
  forget(keeps: (flow: LoggedFlow) => boolean): void {
    for (const [id, flow] of this.#open) if (!keeps(flow)) this.#open.delete(id)
  }

  #begin(flow: SeenFlow, now: number | undefined): boolean {
    const logged = verdictOf(flow) === 'open' ? this.#describe(flow, now) : undefined
    if (logged === undefined) return false
    if (this.#open.size >= this.#maxOpen) {
      this.#skipped++
      return true
    }
    this.#open.set(logged.id, logged)
    this.#options.emit?.(logged)
    return true
  }

  #addEnded(flow: SeenFlow): void {
    const logged = this.#describe(flow, undefined)
    if (logged !== undefined) this.#keepEnded(logged)
  }

  /** Undefined if the flow is not one to a service. */
  #describe(flow: SeenFlow, now: number | undefined): LoggedFlow | undefined {
    const { family, protocol, source, sourcePort, destination, destinationPort } = flow
    const { replySource, replySourcePort, startedAt = now, traffic } = flow
    const port = this.#options.find(flow)
    const isTranslated = replySource !== destination || replySourcePort !== destinationPort
    // Without translation at a node port, the node itself answers.
    if (port === undefined || (!isTranslated && isNodePort(port, destination))) return undefined
    return {
      ...{ id: idOf(flow), family, protocol, source, sourcePort, destination, destinationPort, port },
      ...{ endpoint: isTranslated ? hostPort(replySource, replySourcePort) : '', verdict: verdictOf(flow), rule: '' },
      ...{ startedAt, endedAt: undefined, traffic },
    }
  }

  #judgeEnd(known: LoggedFlow, flow: SeenFlow, now: number): FlowVerdict {
    const verdict = verdictOf(flow)
    if (verdict !== 'open') return verdict
    if (flow.replied) return 'expired'
    // Kernels before 5.10 do not report the state with the end. They forget a connection at once when its first reply is a reset.
    const isEarly = known.startedAt !== undefined && now - known.startedAt < this.#options.replyTimeoutMs()
    return flow.protocol === 'tcp' && isEarly ? 'refused' : 'timed-out'
  }

  #keepEnded(flow: LoggedFlow): void {
    this.#ended.push(flow)
    if (this.#ended.length > this.#maxEnded) this.#ended.shift()
  }
}

const idOf = ({ family, id }: SeenFlow): string => `${family}-${id.toString(36)}`

function verdictOf({ stage, replied }: SeenFlow): FlowVerdict {
  // A reset that was the first reply: nobody listens at the endpoint.
  if (stage === 'reset' && !replied) return 'refused'
  return stage === 'closed' || stage === 'reset' ? stage : 'open'
}

const isNodePort = ({ frontends }: ServicePort, ip: string): boolean =>
  !frontends.some((frontend) => frontend.ip === ip)
