// The metrics that iptables mode has beyond those of every mode, and the reader of the kernel's packet counters.

import { counter, gauge } from '../../../lib/metric-declaration.ts'
import { PacketCounters } from '../../../sys/netlink/nfacct.ts'
import { counters } from '../../iptables-kit/chains.ts'
import type { MetricTraits, PacketReader } from '../../proxy-mode.ts'
import { conntrackMetrics, restoreFailureFigure, restoreFailureMetric, syncKindMetrics } from '../../shared-metrics.ts'

const byTable = ['table', 'ip_family'] as const

export const iptablesMetrics: MetricTraits = {
  declarations: [
    ...syncKindMetrics,
    gauge('kubeproxy_sync_proxy_rules_iptables_total', byTable, 'Rules owned, by table.'),
    gauge('kubeproxy_sync_proxy_rules_iptables_last', byTable, 'Rules written by the last sync, by table.'),
    restoreFailureMetric,
    counter(
      'kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total',
      ['ip_family'],
      'Partial syncs that failed.',
    ),
    counter(
      'kubeproxy_iptables_ct_state_invalid_dropped_packets_total',
      [],
      'Packets dropped because conntrack called them invalid.',
      { nfacct: counters.invalid },
    ),
    counter(
      'kubeproxy_iptables_localhost_nodeports_accepted_packets_total',
      [],
      'Packets accepted on node ports of the loopback address.',
      { nfacct: counters.localhost },
    ),
    ...conntrackMetrics,
  ],
  noLocalUnit: 'service-ports',
  failureFigures: ({ full }) => [restoreFailureFigure, ...(full ? [] : ['iptables_partial_restore_failures'])],
  openPacketCounters,
}

async function openPacketCounters(): Promise<PacketReader | undefined> {
  const kernel = new PacketCounters()
  if (!(await kernel.supported())) return undefined
  return async () => {
    const found: Record<string, number> = {}
    for (const name of Object.values(counters)) found[name] = (await kernel.read(name)) ?? 0
    return found
  }
}
