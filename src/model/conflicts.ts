// Two services that claim one address: what exactly is contested, who is first, and what the loser is left with.

import { hostPort } from '../lib/ip.ts'
import type { Frontend, Protocol, ServicePort, ServiceRecord } from './types.ts'

/** What only one service port can hold: `ip:port/protocol`, or `:port/protocol` for a node port. */
export const frontendKey = (frontend: Frontend, protocol: Protocol): string =>
  `${hostPort(frontend.ip, frontend.port)}/${protocol}`

/** Sort order of claimants: the oldest service wins, then the smaller key. Never depends on the order of events. */
export function olderFirst(a: ServiceRecord, b: ServiceRecord): number {
  if (a.created !== b.created) return a.created - b.created
  return a.key === b.key ? 0 : a.key < b.key ? -1 : 1
}

/** The port without the frontends whose keys it lost; the port itself if it lost none. */
export function withoutFrontends(port: ServicePort, lost: ReadonlySet<string>): ServicePort {
  if (lost.size === 0) return port
  const frontends = port.frontends.filter((frontend) => !lost.has(frontendKey(frontend, port.protocol)))
  return frontends.length === port.frontends.length ? port : { ...port, frontends }
}
