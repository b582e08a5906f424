// The flows of the admin socket: who talks to which service and endpoint. Types, routes, and a stream while someone follows.

import type { FlowTotals } from '../engine/flows/flow-totals.ts'
import type { FlowVerdict } from '../engine/flows/flow-verdicts.ts'
import type { Family } from '../lib/ip.ts'
import type { Protocol } from '../model/types.ts'
import { replyJson, streamJson } from './admin-replies.ts'
import type { Exchange, Routes } from './routing.ts'

/** One flow: a connection, or what a client sent over UDP from one port. */
export interface FlowSummary {
  readonly id: string
  readonly family: Family
  readonly protocol: Protocol
  /** `ip:port` of the client. */
  readonly from: string
  /** `namespace/name` of the client; '' if it is not a pod, or unknown. */
  readonly fromPod: string
  /** `ip:port` that the client asked for. */
  readonly to: string
  /** `namespace/name:port`. */
  readonly service: string
  /** `ip:port`; '' if no endpoint was chosen. */
  readonly endpoint: string
  /** `namespace/name` of the endpoint; '' if unknown. */
  readonly endpointPod: string
  readonly verdict: FlowVerdict
  /** The rule that rejected or dropped the packet, or the reason of a relay; '' otherwise. */
  readonly rule: string
  /** RFC 3339; null if the flow began before anyone looked. */
  readonly startedAt: string | null
  /** RFC 3339; null while the flow is open, or if it ended before anyone looked. */
  readonly endedAt: string | null
  /** Null if the kernel does not count (net.netfilter.nf_conntrack_acct). */
  readonly traffic: FlowTotals | null
}

/** How complete what is shown is. */
export interface FlowCoverage {
  /** One in so many flows is shown; 1 if all are. */
  readonly sampled: number
  /** How often the kernel dropped notifications, since someone looks. Some flows are missing then, or seem to be open. */
  readonly lost: number
  /** Flows that are not shown because there are too many. */
  readonly skipped: number
  /** Commands and pages that follow flows now. */
  readonly watchers: number
  /** What this mode or this node cannot tell, as sentences. */
  readonly remarks: readonly string[]
}

export interface FlowList {
  readonly flows: readonly FlowSummary[]
  readonly coverage: FlowCoverage
}

/** Selects flows. An empty field selects all. */
export interface FlowQuery {
  /** `namespace/name`, with or without `:port`. */
  readonly service: string
  /** An address or CIDR of clients, or `namespace/name` of a pod. */
  readonly from: string
  readonly verdicts: readonly string[]
  /** The most flows of a list. */
  readonly limit: number
}

export type FlowEvent =
  | { readonly kind: 'flow'; readonly flow: FlowSummary }
  | { readonly kind: 'coverage'; readonly coverage: FlowCoverage }

/** What the routes need from the process. */
export interface FlowAnswers {
  list(query: FlowQuery): Promise<FlowList>
  /** Follows flows until the returned function is called. Throws if this node does not track connections. */
  watch(query: FlowQuery, listener: (event: FlowEvent) => void): () => void
}

const defaultLimit = 1_000
const maxLimit = 10_000

export function readFlowQuery(query: URLSearchParams): FlowQuery {
  const limit = Number(query.get('limit') ?? defaultLimit)
  return {
    service: query.get('service') ?? '',
    from: query.get('from') ?? '',
    verdicts: (query.get('verdict') ?? '').split(',').filter((verdict) => verdict !== ''),
    limit: Number.isInteger(limit) && limit > 0 ? Math.min(limit, maxLimit) : defaultLimit,
  }
}

/** `/v1/flows` is a list; `/v1/flows/events` streams `FlowEvent`s as server-sent events. Both take the fields of `FlowQuery`. */
export const makeFlowRoutes = (answers: FlowAnswers): Routes => ({
  '/v1/flows': (exchange: Exchange) => replyJson(exchange, () => answers.list(readFlowQuery(exchange.query))),
  '/v1/flows/events': (exchange: Exchange) =>
    streamJson<FlowEvent>(exchange, (send) => answers.watch(readFlowQuery(exchange.query), send)),
})
