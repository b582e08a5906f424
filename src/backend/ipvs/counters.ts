// Sums IPVS's own statistics by service port, and reports the busiest service ports by name and all others as one.

import type { Family } from '../../lib/ip.ts'
import type { ServerStatistics } from '../../sys/netlink/ipvs.ts'
import type { PortCounters } from '../backend.ts'

/** The name under which all service ports beyond the limit are reported. */
const others = 'others'

/** The kernel's counters of one virtual server of a service port. They start from zero when the server is created again. */
export interface CounterReading {
  readonly family: Family
  /** `tcp 10.0.0.1:80`. */
  readonly server: string
  /** `ns/name:port`. */
  readonly port: string
  readonly statistics: ServerStatistics
}

interface RunningTotal {
  /** Everything counted so far, which decides the rank of the service port. */
  readonly all: PortCounters
  /** What was reported under the name of the service port. */
  readonly reported: PortCounters
}

/**
 * Every reported counter only grows, although servers are created again, services are deleted, and the busiest service ports change:
 * what was counted since the last report is added to the name under which the service port is reported now, so no count is lost.
 */
export class PortTotals {
  #lastReadings = new Map<string, ServerStatistics>()
  #totals = new Map<string, RunningTotal>()
  readonly #others = new Map<Family, PortCounters>()

  report(readings: readonly CounterReading[], limit: number): readonly PortCounters[] {
    const ports = [...this.#countSinceLast(readings)].map(([key, more]) => {
      const before = this.#totals.get(key) ?? { all: zero(more), reported: zero(more) }
      return { key, more, all: add(before.all, more), reported: before.reported }
    })
    if (ports.length > limit) ports.sort((a, b) => b.all.connections - a.all.connections || (a.key < b.key ? -1 : 1))
    const named = ports.slice(0, limit).map((one) => ({ ...one, reported: add(one.reported, one.more) }))
    const unnamed = ports.slice(limit)
    for (const { more } of unnamed) {
      const sum = this.#others.get(more.family) ?? { ...zero(more), port: others }
      this.#others.set(more.family, add(sum, more))
    }
    this.#totals = new Map([...named, ...unnamed].map(({ key, all, reported }) => [key, { all, reported }]))
    return [...named.map(({ reported }) => reported), ...this.#others.values()]
  }

  /** Returns, by service port, what its servers counted since the last report. */
  #countSinceLast(readings: readonly CounterReading[]): ReadonlyMap<string, PortCounters> {
    const readingByServer = new Map<string, ServerStatistics>()
    const ports = new Map<string, PortCounters>()
    for (const { family, server, port, statistics } of readings) {
      readingByServer.set(server, statistics)
      const more = { family, port, ...subtract(statistics, this.#lastReadings.get(server)) }
      const key = `${family} ${port}`
      const before = ports.get(key)
      ports.set(key, before === undefined ? more : add(before, more))
    }
    this.#lastReadings = readingByServer
    return ports
  }
}

/** A server that counts less than before was created again in between. */
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

const zero = ({ family, port }: PortCounters): PortCounters => ({
  family,
  port,
  connections: 0,
  packetsIn: 0,
  packetsOut: 0,
  bytesIn: 0,
  bytesOut: 0,
})

const add = (one: PortCounters, more: ServerStatistics): PortCounters => ({
  family: one.family,
  port: one.port,
  connections: one.connections + more.connections,
  packetsIn: one.packetsIn + more.packetsIn,
  packetsOut: one.packetsOut + more.packetsOut,
  bytesIn: one.bytesIn + more.bytesIn,
  bytesOut: one.bytesOut + more.bytesOut,
})
