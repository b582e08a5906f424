// Reads packet counters of the kernel at each scrape: those of nfacct, and the traffic per service port.

import type { PortCounters } from '../backend/backend.ts'
import type { PacketReader } from '../backend/proxy-mode.ts'
import { describeError } from '../lib/errors.ts'
import { familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { MetricDeclaration } from '../lib/metric-declaration.ts'
import type { Clock } from '../lib/time.ts'
import type { MetricsRegistry } from './metrics-registry.ts'

export interface KernelCounters {
  /** Reads the packets of each nfacct object; absent where nfacct does not work. */
  readonly packetCounters?: PacketReader | undefined
  /** Reads the traffic of the busiest service ports, at most `limit` of them. */
  readonly portCounters?: ((limit: number) => Promise<readonly PortCounters[]>) | undefined
  readonly log: Logger
}

const deadlineMs = 2_000

/** The number of service ports that have their own series; each has five. */
const countedPorts = 200

/** A counter that cannot be read keeps its last value: the other metrics must not wait for it. */
export async function readKernelCounters(
  registry: MetricsRegistry,
  declarations: readonly MetricDeclaration[],
  { packetCounters, portCounters, log }: KernelCounters,
  clock: Clock,
): Promise<void> {
  const attempt = async <T>(read: (() => Promise<T>) | undefined, record: (value: T) => void) => {
    if (read === undefined) return
    try {
      record(await withDeadline(read(), clock))
    } catch (error) {
      log.error('Cannot read packet counters', { error: describeError(error) })
    }
  }
  await attempt(packetCounters, (packets) => recordPackets(registry, declarations, packets))
  await attempt(portCounters && (() => portCounters(countedPorts)), (ports) => recordPorts(registry, ports))
}

function recordPackets(
  registry: MetricsRegistry,
  declarations: readonly MetricDeclaration[],
  packets: Readonly<Record<string, number>>,
): void {
  for (const { name, nfacct } of declarations) {
    const value = nfacct === undefined ? undefined : packets[nfacct]
    if (value !== undefined) registry.set(name, {}, value)
  }
}

function recordPorts(registry: MetricsRegistry, ports: readonly PortCounters[]): void {
  const labelled = ports.map((counters) => ({ ...counters, labels: portLabels(counters) }))
  const both = (labels: ReturnType<typeof portLabels>, received: number, sent: number) =>
    [
      [{ ...labels, direction: 'in' }, received],
      [{ ...labels, direction: 'out' }, sent],
    ] as const
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
function portLabels({ family, port: text }: PortCounters) {
  const [, namespace = '', service = text, port = ''] = /^([^/]*)\/([^:]*):?(.*)$/.exec(text) ?? []
  return { namespace, service, port, ip_family: familyName(family) }
}

function withDeadline<T>(work: Promise<T>, clock: Clock): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.after(deadlineMs, () => reject(new Error('no answer in time')))
    work.then(resolve, reject).finally(() => timer.cancel())
  })
}
