// IPVS's own statistics by service port, with a limit to how many are told.

import type { Family } from '../../lib/ip.ts'
import type { Statistics } from '../../sys/netlink/ipvs.ts'
import type { PortCounters } from '../backend.ts'

/** Stands for all service ports beyond the limit. */
const others = 'others'

/** One virtual server of a service port, as the kernel counts it: from zero when it is made anew. */
export interface CounterReading {
  readonly family: Family
  /** `tcp 10.0.0.1:80`. */
  readonly server: string
  /** `ns/name:port`. */
  readonly port: string
  readonly statistics: Statistics
}

interface RunningTotal {
  /** Everything so far, by which it ranks. */
  readonly all: PortCounters
  /** What was told under its own name. */
  readonly told: PortCounters
}

/**
 * Tells the busiest by name and the rest as one. Everything told only grows, although servers are made anew, services go, and who is
 * busiest changes: what was counted since the last time is added to the name it is told under now, so no sum gets lost either.
 */
export class PortTotals {
  #seen = new Map<string, Statistics>()
  #tallies = new Map<string, RunningTotal>()
  readonly #rest = new Map<Family, PortCounters>()

  report(readings: readonly CounterReading[], limit: number): readonly PortCounters[] {
    const ports = [...this.#news(readings)].map(([key, more]) => {
      const before = this.#tallies.get(key) ?? { all: none(more), told: none(more) }
      return { key, more, all: add(before.all, more), told: before.told }
    })
    if (ports.length > limit) ports.sort((a, b) => b.all.connections - a.all.connections || (a.key < b.key ? -1 : 1))
    const named = ports.slice(0, limit).map((one) => ({ ...one, told: add(one.told, one.more) }))
    const unnamed = ports.slice(limit)
    for (const { more } of unnamed) {
      const rest = this.#rest.get(more.family) ?? { ...none(more), port: others }
      this.#rest.set(more.family, add(rest, more))
    }
    this.#tallies = new Map([...named, ...unnamed].map(({ key, all, told }) => [key, { all, told }]))
    return [...named.map(({ told }) => told), ...this.#rest.values()]
  }

  /** By service port: what its servers counted since the last time. */
  #news(readings: readonly CounterReading[]): ReadonlyMap<string, PortCounters> {
    const seen = new Map<string, Statistics>()
    const ports = new Map<string, PortCounters>()
    for (const { family, server, port, statistics } of readings) {
      seen.set(server, statistics)
      const more = { family, port, ...since(statistics, this.#seen.get(server)) }
      const key = `${family} ${port}`
      const before = ports.get(key)
      ports.set(key, before === undefined ? more : add(before, more))
    }
    this.#seen = seen
    return ports
  }
}

/** A server that counts less than before was made anew in between. */
function since(now: Statistics, before: Statistics | undefined): Statistics {
  if (before === undefined || now.connections < before.connections || now.packetsIn < before.packetsIn) return now
  return {
    connections: now.connections - before.connections,
    packetsIn: now.packetsIn - before.packetsIn,
    packetsOut: Math.max(0, now.packetsOut - before.packetsOut),
    bytesIn: Math.max(0, now.bytesIn - before.bytesIn),
    bytesOut: Math.max(0, now.bytesOut - before.bytesOut),
  }
}

const none = ({ family, port }: PortCounters): PortCounters => ({
  family,
  port,
  connections: 0,
  packetsIn: 0,
  packetsOut: 0,
  bytesIn: 0,
  bytesOut: 0,
})

const add = (one: PortCounters, more: Statistics): PortCounters => ({
  family: one.family,
  port: one.port,
  connections: one.connections + more.connections,
  packetsIn: one.packetsIn + more.packetsIn,
  packetsOut: one.packetsOut + more.packetsOut,
  bytesIn: one.bytesIn + more.bytesIn,
  bytesOut: one.bytesOut + more.bytesOut,
})
