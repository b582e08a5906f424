// Reads packet counters of the kernel at each scrape: those of nfacct, and the traffic per service port.

import type { PacketReader } from '../../backend/proxy-mode.ts'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { MetricDeclaration } from '../../lib/metric-declaration.ts'
import type { Clock } from '../../lib/time.ts'
import type { MetricsRegistry } from '../registry/metrics-registry.ts'
import { type NamedCounts, recordPorts } from './port-metrics.ts'

export interface KernelCounters {
  /** Reads the packets of each nfacct object; absent where nfacct does not work. */
  readonly packetCounters?: PacketReader | undefined
  /** Reads the traffic of the service ports that have series; absent if there are none. */
  readonly portCounters?: (() => Promise<readonly NamedCounts[]>) | undefined
  readonly log: Logger
}

const deadlineMs = 2_000

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
  await attempt(portCounters, (ports) => recordPorts(registry, ports))
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

function withDeadline<T>(work: Promise<T>, clock: Clock): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.after(deadlineMs, () => reject(new Error('no answer in time')))
    work.then(resolve, reject).finally(() => timer.cancel())
  })
}
