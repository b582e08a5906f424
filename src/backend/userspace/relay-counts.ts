// Counts the clients of each listener by endpoint, and sums them by service port. Relays end with the process, and so do the counts.

import type { Family } from '../../lib/ip.ts'
import type { PortCounters, TrafficCounts } from '../backend.ts'
import type { RelayedTraffic } from '../relay/relay.ts'

interface EndpointCounts {
  connections: number
  bytesIn: number
  bytesOut: number
  /** Datagrams; 0 for TCP. */
  packetsIn: number
  packetsOut: number
}

export class RelayCounts {
  /** By id of the listener, `ns/name:port/tcp cluster`, and endpoint. */
  readonly #listeners = new Map<string, Map<string, EndpointCounts>>()

  countClient(listener: string, endpoint: string): void {
    this.#find(listener, endpoint).connections++
  }

  /** Called when a connection or flow has ended. Listeners that are gone have been forgotten. */
  countRelayed(listener: string, endpoint: string, relayed: RelayedTraffic): void {
    const counts = this.#listeners.get(listener)?.get(endpoint)
    if (counts === undefined) return
    counts.bytesIn += relayed.bytesIn
    counts.bytesOut += relayed.bytesOut
    counts.packetsIn += relayed.packetsIn ?? 0
    counts.packetsOut += relayed.packetsOut ?? 0
  }

  /** The service is gone. */
  forget(listener: string): void {
    this.#listeners.delete(listener)
  }

  /** Sums the listeners of each service port. `endpointsOf` says which endpoints a listener has now; others are counted in the port alone. */
  report(family: Family, endpointsOf: (listener: string) => readonly string[]): readonly PortCounters[] {
    const ports = new Map<string, PortCounters>()
    for (const [listener, counted] of this.#listeners) {
      const slash = listener.lastIndexOf('/')
      const port = listener.slice(0, slash)
      const protocol = listener.slice(slash + 1).startsWith('udp') ? 'udp' : 'tcp'
      const known = ports.get(listener.split(' ')[0] as string)
      const endpoints = new Map(known?.endpoints)
      for (const endpoint of endpointsOf(listener)) {
        endpoints.set(endpoint, sum([endpoints.get(endpoint), counted.get(endpoint)], protocol))
      }
      const total = sum([known, ...counted.values()], protocol)
      ports.set(listener.split(' ')[0] as string, { ...total, family, port, protocol, endpoints })
    }
    return [...ports.values()]
  }

  #find(listener: string, endpoint: string): EndpointCounts {
    let endpoints = this.#listeners.get(listener)
    if (endpoints === undefined) {
      endpoints = new Map()
      this.#listeners.set(listener, endpoints)
    }
    let counts = endpoints.get(endpoint)
    if (counts === undefined) {
      counts = { connections: 0, bytesIn: 0, bytesOut: 0, packetsIn: 0, packetsOut: 0 }
      endpoints.set(endpoint, counts)
    }
    return counts
  }
}

/** The relay of TCP sees no packets. */
function sum(all: readonly (TrafficCounts | undefined)[], protocol: 'tcp' | 'udp'): TrafficCounts {
  const add = (read: (one: TrafficCounts) => number | undefined) =>
    all.reduce((total, one) => total + ((one && read(one)) ?? 0), 0)
  const [bytesIn, bytesOut] = [add((one) => one.bytesIn), add((one) => one.bytesOut)]
  const counts = { connections: add((one) => one.connections), bytesIn, bytesOut }
  if (protocol === 'tcp') return counts
  return { ...counts, packetsIn: add((one) => one.packetsIn), packetsOut: add((one) => one.packetsOut) }
}
