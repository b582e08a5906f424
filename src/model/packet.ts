// What is traced: a packet, where it is traced, and what can happen to it. trace.ts decides. Pure.

import { contains, hostPort, isLoopback, parseCidr } from '../lib/ip.ts'
import type { ModeBehaviour } from './mode-behaviour.ts'
import type { Frontend, NodeView, Protocol, ServicePort } from './types.ts'

export interface TraceContext {
  /** All service ports of the family of `node`. */
  readonly ports: readonly ServicePort[]
  readonly node: NodeView
  /** Every address of the node's interfaces; all of loopback belongs to the node without being listed. */
  readonly nodeAddresses: readonly string[]
}

/** The first packet of a connection as it was sent. Addresses are canonical. */
export interface Packet {
  readonly from: string
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  /** Where the packet comes from: a pod of this node, the node itself, or elsewhere. */
  readonly origin: 'pod' | 'node' | 'outside'
  /** Absent for packets of the node itself. A pod's packet without one counts as entering where the local detector looks. */
  readonly inInterface?: string
}

/** A packet on its way through the rules of a mode, with what was decided so far. */
export interface TracedPacket {
  readonly context: TraceContext
  readonly packet: Packet
  readonly behaviour: ModeBehaviour
  /** One sentence per decision. */
  readonly steps: string[]
}

export interface ChosenEndpoint {
  /** `ip:port`. */
  readonly address: string
  /** True if the endpoint sees this node as the source. */
  readonly snat: boolean
}

export interface Forwarded {
  readonly verdict: 'forward'
  /** The endpoints that the packet may go to, sorted bytewise by address; never empty. */
  readonly endpoints: readonly ChosenEndpoint[]
  /** True if the source is rewritten for every endpoint; otherwise only for a pod that reaches itself (hairpin). */
  readonly masquerade: boolean
  /** Seconds for which a client keeps its endpoint; 0 if there is no affinity. */
  readonly affinity: number
  readonly port: ServicePort
  readonly frontend: Frontend
  /** One sentence per decision, in order. */
  readonly steps: readonly string[]
}

export type Reason =
  | 'no-endpoints'
  | 'no-local-endpoints'
  | 'not-relayed'
  | 'source-range'
  | 'unused-port'
  | 'unallocated'
  | 'node-port-elsewhere'
  | 'health-check'
  | 'api-server'
  | 'no-service'
  | 'other-family'

export interface NotForwarded {
  /** `reject`: refused with an ICMP error; `drop`: silently discarded; `pass`: left to ordinary routing. */
  readonly verdict: 'reject' | 'drop' | 'pass'
  readonly reason: Reason
  /** The service port that the packet matched, if any. */
  readonly port: ServicePort | undefined
  readonly frontend: Frontend | undefined
  readonly steps: readonly string[]
}

export type Outcome = Forwarded | NotForwarded

export const isNodeAddress = (context: TraceContext, ip: string): boolean =>
  isLoopback(ip) || context.nodeAddresses.includes(ip)

export function isInside(cidr: string, ip: string): boolean {
  const parsed = parseCidr(cidr)
  return parsed !== undefined && contains(parsed, ip)
}

export const describeTarget = (packet: Packet): string => `${hostPort(packet.to, packet.port)}/${packet.protocol}`
