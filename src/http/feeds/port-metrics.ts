// Chooses the service ports that have metrics of their own, the busiest, and sums the others, so that no series ever decreases.

import type { PortCounters, TrafficCounts } from '../../backend/backend.ts'
import { type Family, familyName } from '../../lib/ip.ts'
import type { MetricsRegistry } from '../registry/metrics-registry.ts'

/** The name under which all service ports beyond the limit are reported. */
const others = 'others'

export type NamedCounts = TrafficCounts & Pick<PortCounters, 'family' | 'port'>

interface RunningTotal {
  /** Everything counted so far, which decides the rank of the service port. */
  readonly all: TrafficCounts
  /** What was reported under the name of the service port. */
  readonly reported: TrafficCounts
}

/**
 * What was counted since the last report is added to the name under which the service port is reported now. So no count is lost, and
 * every series only grows, although the busiest service ports change and services are deleted.
 */
export class BusiestPorts {
  #totals = new Map<string, RunningTotal>()
  readonly #others = new Map<Family, TrafficCounts>()

  report(counters: readonly PortCounters[], limit: number): readonly NamedCounts[] {
    const ports = counters.map((one) => {
      const key = `${one.family} ${one.port}`
      const before = this.#totals.get(key)
      const reported = before?.reported ?? zero
      return { one, key, more: subtract(one, before?.all ?? zero), reported }
    })
    if (ports.length > limit) ports.sort((a, b) => b.one.connections - a.one.connections || (a.key < b.key ? -1 : 1))
    const totals = new Map<string, RunningTotal>()
    const named: NamedCounts[] = []
    for (const [i, { one, key, more, reported }] of ports.entries()) {
      const shown = i < limit ? add(reported, more) : reported
      if (i < limit) named.push({ ...shown, family: one.family, port: one.port })
      else this.#others.set(one.family, add(this.#others.get(one.family) ?? zero, more))
      totals.set(key, { all: countsOf(one), reported: shown })
    }
    this.#totals = totals
    return [...named, ...[...this.#others].map(([family, sum]) => ({ ...sum, family, port: others }))]
  }
}

const zero: TrafficCounts = { connections: 0 }

const countsOf = ({ connections, packetsIn, packetsOut, bytesIn, bytesOut }: TrafficCounts): TrafficCounts => ({
  connections,
  packetsIn,
  packetsOut,
  bytesIn,
  bytesOut,
})

/** Combines two counts; what neither counts stays undefined. */
function combine(a: TrafficCounts, b: TrafficCounts, step: (a: number, b: number) => number): TrafficCounts {
  const both = (x: number | undefined, y: number | undefined) =>
    x === undefined && y === undefined ? undefined : step(x ?? 0, y ?? 0)
  return {
    connections: step(a.connections, b.connections),
    packetsIn: both(a.packetsIn, b.packetsIn),
    packetsOut: both(a.packetsOut, b.packetsOut),
    bytesIn: both(a.bytesIn, b.bytesIn),
    bytesOut: both(a.bytesOut, b.bytesOut),
  }
}

const add = (a: TrafficCounts, b: TrafficCounts): TrafficCounts => combine(a, b, (x, y) => x + y)

const subtract = (a: TrafficCounts, b: TrafficCounts): TrafficCounts => combine(a, b, (x, y) => Math.max(0, x - y))

export function recordPorts(registry: MetricsRegistry, ports: readonly NamedCounts[]): void {
  const labelled = ports.map((counts) => ({ ...counts, labels: portLabels(counts) }))
  const both = (labels: ReturnType<typeof portLabels>, received: number | undefined, sent: number | undefined) =>
    received === undefined || sent === undefined
      ? []
      : ([
          [{ ...labels, direction: 'in' }, received],
          [{ ...labels, direction: 'out' }, sent],
        ] as const)
  registry.replace(
    'sluice_service_connections_total',
    labelled.map(({ labels, connections }) => [labels, connections]),
  )
  registry.replace(
    'sluice_service_packets_total',
    labelled.flatMap(({ labels, packetsIn, packetsOut }) => both(labels, packetsIn, packetsOut)),
  )
  registry.replace(
    'sluice_service_bytes_total',
    labelled.flatMap(({ labels, bytesIn, bytesOut }) => both(labels, bytesIn, bytesOut)),
  )
}

/** A port is `ns/name:port`, or `ns/name` if it has no name; the sum of the other ports is a name without a namespace. */
function portLabels({ family, port: text }: NamedCounts) {
  const [, namespace = '', service = text, port = ''] = /^([^/]*)\/([^:]*):?(.*)$/.exec(text) ?? []
  return { namespace, service, port, ip_family: familyName(family) }
}
