// The contract of the TCP and the UDP relay: their options, what a running relay offers, and why it turns clients away.

import type { Logger } from '../../lib/log.ts'
import type { Balancer } from './balancer.ts'
import type { DialReports } from './dial-reports.ts'
import type { FlowReporter } from './flow-reports.ts'

/** `files`: no descriptor is left. `dial`: no endpoint answers. `ports`: no local port is left. `flows`: there are too many UDP clients. */
export type ShedReason = 'files' | 'dial' | 'ports' | 'flows'

/** The descriptors that all relays of the process share, so that some are left for everything else. */
export interface DescriptorBudget {
  /** Returns false if fewer are left. */
  acquire(descriptors: number): boolean
  release(descriptors: number): void
}

export interface RelayOptions {
  readonly host: string
  /** 0: the kernel chooses. */
  readonly port: number
  /** The balancer of all clients, or a function that chooses one by the client's address. */
  readonly balancer: Balancer | ((clientIp: string) => Balancer)
  readonly log: Logger
  /** Whether a client may use the relay; absent: every client may. */
  readonly admits?: (clientIp: string) => boolean
  /** Called for every client that the relay turns away. */
  readonly onShed?: (why: ShedReason) => void
  readonly budget?: DescriptorBudget
  /** Called for every client that got an endpoint, `ip:port`. */
  readonly onServed?: (endpoint: string) => void
  /** Called when the connection or flow of such a client has ended. */
  readonly onEnded?: (endpoint: string, relayed: RelayedTraffic) => void
  /** Gets the result of each TCP connection to an endpoint. */
  readonly dials?: DialReports | undefined
  /** Where the relay reports its flows; absent: nowhere. */
  readonly flows?: FlowReporter | undefined
}

/** What was relayed from (in) and to (out) one client. Datagrams are counted for UDP only. */
export interface RelayedTraffic {
  readonly bytesIn: number
  readonly bytesOut: number
  readonly packetsIn?: number
  readonly packetsOut?: number
}

export interface Relay {
  readonly port: number
  /** Open connections, or UDP flows. */
  readonly active: number
  /** Stops accepting. Open connections go on unless `cut` is true. */
  close(cut?: boolean): Promise<void>
  /** UDP flows to all other endpoints end, and their clients get another endpoint. TCP connections go on. */
  keepOnly(endpoints: ReadonlySet<string>): void
}

export const balancerFor = ({ balancer }: RelayOptions, clientIp: string): Balancer =>
  typeof balancer === 'function' ? balancer(clientIp) : balancer

/** Removes the zone and the prefix of `::ffff:10.0.0.1`, which is how a dual-stack socket shows an IPv4 client. */
export const plainIp = (ip: string | undefined): string =>
  (ip ?? '').replace(/^::ffff:(?=\d+\.)/, '').replace(/%.*$/, '')
