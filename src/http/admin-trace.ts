// The traces of the admin socket: real packets on their way through the rules, beside what was foretold. Types and the route.

import type { Protocol } from '../model/types.ts'
import type { Explanation } from './admin.ts'
import { streamJson } from './admin-replies.ts'
import type { Exchange, Routes } from './routing.ts'

/** What became of a packet, as the kernel reported it. */
export interface PacketStory {
  /** `ip:port`. */
  readonly from: string
  readonly to: string
  readonly protocol: Protocol
  readonly verdict: Explanation['verdict']
  /** `ip:port`; '' if the packet was not translated. */
  readonly endpoint: string
  /** True if the source was translated. */
  readonly snat: boolean
  /** The rule that rejected or dropped the packet; '' otherwise. */
  readonly rule: string
  /** One line per rule that decided something. */
  readonly steps: readonly string[]
  /** What `explain` says about this packet; null if it has no answer. */
  readonly foretold: Explanation | null
  /** One sentence per difference between the two. */
  readonly differences: readonly string[]
}

export interface TraceQuestion {
  /** As for `explain`. */
  readonly target: string
  /** The address of the client; '' for every client. */
  readonly from: string
  readonly seconds: number
  /** How many packets to follow. */
  readonly packets: number
}

export type TraceReport =
  | { readonly kind: 'waiting'; readonly targets: readonly string[]; readonly seconds: number }
  | { readonly kind: 'packet'; readonly packet: PacketStory }
  | { readonly kind: 'ended'; readonly packets: number; readonly lost: number; readonly problem: string }

export interface TraceAnswers {
  /** Follows packets and sends reports until it is over, or until the returned function is called. */
  trace(question: TraceQuestion, send: (report: TraceReport) => void): () => void
}

/** Returns a number between 1 and `most`. */
function readCount(text: string | null, fallback: number, most: number): number {
  const value = Number(text ?? fallback)
  return Number.isFinite(value) && value >= 1 ? Math.min(Math.floor(value), most) : fallback
}

/** `/v1/trace` streams `TraceReport`s as server-sent events; the last one has the kind `ended`. */
export const makeTraceRoutes = (answers: TraceAnswers): Routes => ({
  '/v1/trace': (exchange: Exchange) => {
    const { query } = exchange
    const question = {
      target: query.get('target') ?? '',
      from: query.get('from') ?? '',
      seconds: readCount(query.get('seconds'), 30, 600),
      packets: readCount(query.get('packets'), 1, 20),
    }
    streamJson<TraceReport>(exchange, (send) => answers.trace(question, send))
  },
})
