// The slots from which a service port's algorithm chooses: a list in which an endpoint stands as often as its share wants. Pure.

import { hostPort } from '../lib/ip.ts'
import { hashTableSize, makeHashTable } from './consistent-hash.ts'
import type { Endpoint, ServicePort } from './types.ts'
import { countSlots } from './weights.ts'

/** Endpoints as `ip:port`, in their order, each as often as its share wants. */
export function listWeighted(port: Pick<ServicePort, 'slowStart'>, endpoints: readonly Endpoint[]): readonly string[] {
  const counts = countSlots(endpoints, port)
  if (counts === undefined) return endpoints.map(addressOf)
  return endpoints.flatMap((endpoint, i) => new Array<string>(counts[i] as number).fill(addressOf(endpoint)))
}

/** As `listWeighted`; with consistent hashing the table, in which the place of each slot matters. */
export function listSlots(port: ServicePort, endpoints: readonly Endpoint[]): readonly string[] {
  const weighted = listWeighted(port, endpoints)
  const size = tableSizeOf(port)
  return size === 0 ? weighted : tabulate(weighted, size)
}

/** The table for endpoints as `listWeighted` lists them. */
export function tabulate(weighted: readonly string[], size: number): readonly string[] {
  if (weighted.length === 0) return []
  const shares = new Map<string, number>()
  for (const address of weighted) shares.set(address, (shares.get(address) ?? 0) + 1)
  const endpoints = [...shares].map(([address, share]) => ({ address, share }))
  return makeHashTable(endpoints, size)
}

/**
 * The size of the table, or 0 if the port does not hash clients. ClientIP affinity goes before consistent hashing: it keeps a client even
 * where its slot moves. All endpoints of the port count, usable or not, because another size moves most clients.
 */
export function tableSizeOf(port: Pick<ServicePort, 'algorithm' | 'affinitySeconds' | 'endpoints'>): number {
  const hashes = port.algorithm === 'consistent-hash' && port.affinitySeconds === 0
  return hashes ? hashTableSize(port.endpoints) : 0
}

const addressOf = ({ ip, port }: Endpoint): string => hostPort(ip, port)
