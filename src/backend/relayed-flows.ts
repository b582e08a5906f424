// What a mode that relays connections in this process knows of each: the source of `sluice flows` there, instead of the kernel. Pure.

import type { Family } from '../lib/ip.ts'
import type { Protocol } from '../model/types.ts'

/**
 * `open`, or how it ended. `refused`, `timed-out`: the endpoint refused, or did not answer. `expired`: a UDP client was silent. `rejected`,
 * `dropped`: the relay turned the client away, with a reset or in silence.
 */
export type RelayVerdict = 'open' | 'closed' | 'reset' | 'refused' | 'timed-out' | 'expired' | 'rejected' | 'dropped'

/** From the client (in) and to the client (out). The relay of TCP sees no packets, and counts 0. */
export interface RelayTotals {
  readonly bytesIn: number
  readonly bytesOut: number
  readonly packetsIn: number
  readonly packetsOut: number
}

/** The addresses by which a relayed flow is found in the kernel's connection tracking. */
export interface RelayedAddresses {
  /** Unique in this process; the same in all reports of a flow. */
  readonly id: number
  readonly family: Family
  readonly protocol: Protocol
  readonly client: string
  readonly clientPort: number
  /** Where this process received it: what the client asked for, unless a rule has redirected it. */
  readonly local: string
  readonly localPort: number
}

/** One connection from a client to an endpoint, or one attempt to make it; or what a client sends over UDP from one port. */
export interface RelayedFlow extends RelayedAddresses {
  /** The service port, `ns/name:port`. */
  readonly port: string
  /** `ip:port`; '' if none was chosen. */
  readonly endpoint: string
  readonly verdict: RelayVerdict
  /** Why the client was turned away; '' otherwise. */
  readonly why: string
  /** Unix ms. */
  readonly startedAt: number
  /** Unix ms; undefined while it is open. */
  readonly endedAt: number | undefined
  readonly traffic: RelayTotals
}

export interface RelayedFlowListener {
  /** Flows of other clients are not reported, and nothing is made for them. */
  selects(clientPort: number): boolean
  /** Called for every selected flow that begins or ends. */
  note(flow: RelayedFlow): void
}

export interface FlowPlace {
  readonly ip: string
  readonly port: number
}

export interface RelayedFlows {
  /** What flows do not show here, as sentences. */
  readonly remarks: readonly string[]
  /** The flows that are open now. The relays hold them anyway; this describes them. */
  list(): Iterable<RelayedFlow>
  /** Replaces the listener. Without one, nothing is described and nothing is kept. Returns what ends it. */
  follow(listener: RelayedFlowListener): () => void
  /**
   * Finds the places that the clients asked for, in the order of the flows; undefined where nobody knows. Absent if nothing is redirected:
   * then the local addresses are these places.
   */
  findPlaces?(flows: readonly RelayedAddresses[]): Promise<readonly (FlowPlace | undefined)[]>
}
