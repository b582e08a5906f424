// IPVS's own statistics, summed up by service port, with a limit to how many are told. Pure.

import type { ServiceSeen } from '../../sys/netlink/ipvs.ts'
import type { PortCounters } from '../backend.ts'
import { serverKey } from './entries.ts'

/** Stands for all service ports beyond the limit. */
export const others = 'others'

/** `nameOf`: the service port of a server; servers that are not ours have none. */
export function countPorts(
  services: readonly ServiceSeen[],
  nameOf: (key: string) => string | undefined,
): readonly PortCounters[] {
  const ports = new Map<string, PortCounters>()
  for (const service of services) {
    const port = nameOf(serverKey(service))
    if (port === undefined) continue
    const { family, statistics } = service
    const before = ports.get(port)
    ports.set(port, before === undefined ? { family, port, ...statistics } : add(before, statistics))
  }
  return [...ports.values()]
}

/** The busiest by connections; the rest as one, so that no sum gets lost and the number of series stays bounded. */
export function limitCounters(ports: readonly PortCounters[], limit: number): readonly PortCounters[] {
  if (ports.length <= limit) return ports
  const sorted = [...ports].sort((a, b) => b.connections - a.connections || (a.port < b.port ? -1 : 1))
  const rest = new Map<number, PortCounters>()
  for (const one of sorted.slice(limit)) {
    const before = rest.get(one.family)
    rest.set(one.family, before === undefined ? { ...one, port: others } : add(before, one))
  }
  return [...sorted.slice(0, limit), ...rest.values()]
}

type Sums = Omit<PortCounters, 'family' | 'port'>

const add = (one: PortCounters, more: Sums): PortCounters => ({
  family: one.family,
  port: one.port,
  connections: one.connections + more.connections,
  packetsIn: one.packetsIn + more.packetsIn,
  packetsOut: one.packetsOut + more.packetsOut,
  bytesIn: one.bytesIn + more.bytesIn,
  bytesOut: one.bytesOut + more.bytesOut,
})
