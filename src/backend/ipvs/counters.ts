// Sums IPVS's own statistics by service port and endpoint, so that the sums only grow although virtual servers are created again.

import { type Family, hostPort } from '../../lib/ip.ts'
import type { Protocol } from '../../model/types.ts'
import type { ListedDestination, ServerStatistics, VirtualServerKey } from '../../sys/netlink/ipvs.ts'
import type { PortCounters } from '../backend.ts'

/** The kernel's counters of one virtual server of a service port. They start from zero when the server is created again. */
export interface CounterReading {
  readonly family: Family
  /** `tcp 10.0.0.1:80`. */
  readonly server: string
  readonly key: VirtualServerKey
  /** `ns/name:port`. */
  readonly port: string
  readonly statistics: ServerStatistics
  /** The endpoints of the server now, as `ip:port`. */
  readonly endpoints: readonly string[]
}

/** What is known of one server. */
interface KnownServer {
  readonly statistics: ServerStatistics
  /** True if the server had counted more than in the reading before. */
  readonly isBusy: boolean
  /** By endpoint. */
  readonly destinations: ReadonlyMap<string, DestinationTotal>
}

interface DestinationTotal {
  readonly seen: ServerStatistics
  readonly total: ServerStatistics
}

type Total = PortCounters & ServerStatistics & { readonly endpoints: Map<string, ServerStatistics> }

/** Adds what each server counted since the last reading to the total of its service port. Service ports without servers are forgotten. */
export class PortTotals {
  #servers = new Map<string, KnownServer>()
  #totals = new Map<string, Total>()

  /**
   * Destinations are read with a request for each server, so only servers that have counted are asked: in this reading or in the one
   * before, since the kernel adds up the counters of its processors every two seconds, at other times for destinations than for servers.
   */
  async report(
    readings: readonly CounterReading[],
    readDestinations: (key: VirtualServerKey) => Promise<readonly ListedDestination[]>,
  ): Promise<readonly PortCounters[]> {
    const servers = new Map<string, KnownServer>()
    const totals = new Map<string, Total>()
    for (const reading of readings) {
      const { family, server, port, statistics } = reading
      const known = this.#servers.get(server)
      const more = subtract(statistics, known?.statistics)
      const isBusy = more.connections + more.packetsIn + more.packetsOut > 0
      const listed = isBusy || known?.isBusy === true ? await readDestinations(reading.key) : undefined
      const destinations = listed === undefined ? known?.destinations : addDestinations(known?.destinations, listed)
      servers.set(server, { statistics, isBusy, destinations: destinations ?? new Map() })
      const key = `${family} ${port}`
      const before = totals.get(key) ?? this.#totals.get(key)
      const endpoints = totals.get(key)?.endpoints ?? new Map<string, ServerStatistics>()
      for (const endpoint of reading.endpoints) {
        endpoints.set(endpoint, add(endpoints.get(endpoint) ?? zero, destinations?.get(endpoint)?.total ?? zero))
      }
      const protocol = server.slice(0, server.indexOf(' ')) as Protocol
      totals.set(key, { family, port, protocol, ...(before === undefined ? more : add(before, more)), endpoints })
    }
    this.#servers = servers
    this.#totals = totals
    return [...totals.values()]
  }
}

const zero: ServerStatistics = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

/** Destinations that are not listed are gone. */
const addDestinations = (
  known: ReadonlyMap<string, DestinationTotal> | undefined,
  listed: readonly ListedDestination[],
): ReadonlyMap<string, DestinationTotal> =>
  new Map(
    listed.map(({ ip, port, statistics: seen }) => {
      const endpoint = hostPort(ip, port)
      const before = known?.get(endpoint)
      return [endpoint, { seen, total: add(before?.total ?? zero, subtract(seen, before?.seen)) }]
    }),
  )

/** A server or destination that counts less than before was created again in between. */
function subtract(now: ServerStatistics, before: ServerStatistics | undefined): ServerStatistics {
  if (before === undefined || now.connections < before.connections || now.packetsIn < before.packetsIn) return now
  return {
    connections: now.connections - before.connections,
    packetsIn: now.packetsIn - before.packetsIn,
    packetsOut: Math.max(0, now.packetsOut - before.packetsOut),
    bytesIn: Math.max(0, now.bytesIn - before.bytesIn),
    bytesOut: Math.max(0, now.bytesOut - before.bytesOut),
  }
}

const add = (one: ServerStatistics, more: ServerStatistics): ServerStatistics => ({
  connections: one.connections + more.connections,
  packetsIn: one.packetsIn + more.packetsIn,
  packetsOut: one.packetsOut + more.packetsOut,
  bytesIn: one.bytesIn + more.bytesIn,
  bytesOut: one.bytesOut + more.bytesOut,
})
