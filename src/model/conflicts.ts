// Rules for services that claim one address: what is contested, which service has the better right, and what the other keeps. Pure.
//
// A cluster IP belongs to its service: the API server allocates it. A load-balancer IP comes next: a controller writes it. An external IP
// comes last: any user can write it. Age decides only within a kind, so no service takes an address by having listed it earlier.

import { hostPort } from '../lib/ip.ts'
import type { Frontend, Protocol, ServicePort, ServiceRecord } from './types.ts'

/** `kind` is the rule above; with `age` the older service always wins, as it did before there were ranks. */
export type Precedence = 'kind' | 'age'

/**
 * Why a service does not hold an address that it claims: another service has a better kind of claim or is older, or no service may hold
 * the address, or the address is an endpoint of another service.
 */
export type ConflictReason = 'kind' | 'age' | 'reserved' | 'endpoint'

/** The right of a service to an address. The smallest rank wins. */
export interface Claimant {
  readonly record: Pick<ServiceRecord, 'key' | 'created'>
  readonly rank: number
}

/** Node ports share their key space with health check node ports, which are sockets of the proxy and go first. */
const ranks: Readonly<Record<Frontend['kind'] | 'health-check', number>> = {
  'cluster-ip': 0,
  'health-check': 0,
  'load-balancer': 1,
  'node-port': 1,
  'external-ip': 2,
}

export const rankOf = (kind: keyof typeof ranks, precedence: Precedence): number =>
  precedence === 'age' ? 0 : ranks[kind]

/** The key of what only one service port can hold: `ip:port/protocol`, or `:port/protocol` for a node port. */
export const frontendKey = (frontend: Pick<Frontend, 'ip' | 'port'>, protocol: Protocol): string =>
  `${hostPort(frontend.ip, frontend.port)}/${protocol}`

/** The key of a health check node port, which is a TCP port of this node like any node port. */
export const healthCheckKey = (port: number): string => frontendKey({ ip: '', port }, 'tcp')

/** Compares claimants of one key: the better rank, then the older service, then the smaller key. The order of events does not matter. */
export function compareClaimants(a: Claimant, b: Claimant): number {
  return a.rank === b.rank ? compareAge(a.record, b.record) : a.rank - b.rank
}

function compareAge(a: Claimant['record'], b: Claimant['record']): number {
  if (a.created !== b.created) return a.created - b.created
  if (a.key === b.key) return 0
  return a.key < b.key ? -1 : 1
}

/** Says who holds the address and why, after the address: "10.96.0.1:443/tcp is held by …". */
export function describeHolder({
  winner,
  reason,
}: {
  readonly winner: string
  readonly reason: ConflictReason
}): string {
  switch (reason) {
    case 'age':
      return `is held by service ${winner} because that service is older`
    case 'kind':
      return `is held by service ${winner} because a cluster IP goes before a load-balancer IP, and that before an external IP`
    case 'reserved':
      return `is reserved for ${winner}`
    case 'endpoint':
      return `is an endpoint of service ${winner}`
  }
}

export const conflictReason = (winner: Claimant, loser: Claimant): 'age' | 'kind' =>
  winner.rank === loser.rank ? 'age' : 'kind'

/** Returns the port without the frontends whose keys it lost, or the port itself if it lost none. */
export function withoutFrontends(port: ServicePort, lost: ReadonlySet<string>): ServicePort {
  if (lost.size === 0) return port
  const frontends = port.frontends.filter((frontend) => !lost.has(frontendKey(frontend, port.protocol)))
  return frontends.length === port.frontends.length ? port : { ...port, frontends }
}
