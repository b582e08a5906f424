// The answer of /v1/traffic on the admin socket: what was counted per service port and per endpoint. Pure.
//
// `/v1/traffic` lists all service ports, the busiest first, without their endpoints. `/v1/traffic?service=ns/name` lists the ports of one
// service with their endpoints. A client need not ask more often than every two seconds: counters are not read more often.

import type { Family } from '../lib/ip.ts'
import type { Protocol } from '../model/types.ts'

export interface Traffic {
  /** RFC 3339: when the counters were read; '' if they were not. */
  readonly readAt: string
  /** Why nothing is counted, as a sentence; '' if connections are counted. */
  readonly uncounted: string
  /** True if packets and bytes are counted: always in ipvs mode, bytes always in userspace mode, otherwise with `traffic.accounting`. */
  readonly accounting: boolean
  /** Why packets and bytes are not counted, or which are missing, as a sentence; '' if all are counted. */
  readonly unaccounted: string
  /** The busiest first. */
  readonly ports: readonly PortTraffic[]
}

/** All numbers but the rates only grow, also over a restart of the proxy where the data plane outlives it. */
export interface TrafficFigures {
  /** New connections; UDP flows for UDP. */
  readonly connections: number
  /** New connections per second, between the last two readings that were at least two seconds apart; null before the second reading. */
  readonly connectionsPerSecond: number | null
  /** From the clients to the endpoints; null if not counted. */
  readonly packetsIn: number | null
  readonly bytesIn: number | null
  /** From the endpoints to the clients; null if not counted. */
  readonly packetsOut: number | null
  readonly bytesOut: number | null
}

export interface PortTraffic extends TrafficFigures {
  /** `namespace/name`. */
  readonly service: string
  /** The name of the service port; '' if it has none. */
  readonly port: string
  readonly protocol: Protocol
  readonly family: Family
  /** Present if one service was asked for. Endpoints that are gone are counted in the port and not listed. */
  readonly endpoints?: readonly EndpointTraffic[]
}

export interface EndpointTraffic extends TrafficFigures {
  /** `10.1.0.11:8080`. */
  readonly address: string
}

/** What the socket needs from the process that it belongs to, for `/v1/traffic`. */
export interface TrafficAnswers {
  /** Describes the ports of one service with their endpoints, or all ports if `service` is ''. */
  traffic(service: string): Promise<Traffic>
}
