// Rules for two services that claim one address: what is contested, which service holds it, and what the other keeps. Pure.

import { hostPort } from '../lib/ip.ts'
import type { Frontend, Protocol, ServicePort, ServiceRecord } from './types.ts'

/** The key of what only one service port can hold: `ip:port/protocol`, or `:port/protocol` for a node port. */
export const frontendKey = (frontend: Frontend, protocol: Protocol): string =>
  `${hostPort(frontend.ip, frontend.port)}/${protocol}`

/** Compares claimants: the oldest service comes first, then the smaller key. The order of events does not matter. */
export function olderFirst(a: ServiceRecord, b: ServiceRecord): number {
  if (a.created !== b.created) return a.created - b.created
  if (a.key === b.key) return 0
  return a.key < b.key ? -1 : 1
}

/** Returns the port without the frontends whose keys it lost, or the port itself if it lost none. */
export function withoutFrontends(port: ServicePort, lost: ReadonlySet<string>): ServicePort {
  if (lost.size === 0) return port
  const frontends = port.frontends.filter((frontend) => !lost.has(frontendKey(frontend, port.protocol)))
  return frontends.length === port.frontends.length ? port : { ...port, frontends }
}
