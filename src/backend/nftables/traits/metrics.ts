// The metrics that nftables mode has beyond those of every mode. Pure.

import { counter } from '../../../lib/metric-declaration.ts'
import type { MetricTraits } from '../../proxy-mode.ts'
import { conntrackMetrics, syncKindMetrics } from '../../shared-metrics.ts'

export const nftablesMetrics: MetricTraits = {
  declarations: [
    ...syncKindMetrics,
    counter(
      'kubeproxy_sync_proxy_rules_nftables_sync_failures_total',
      ['ip_family'],
      'Transactions that the kernel refused.',
    ),
    counter(
      'kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total',
      ['ip_family'],
      'Removals of what is no longer in use that failed.',
    ),
    ...conntrackMetrics,
  ],
  noLocalUnit: 'service-ports',
  failureFigures: () => ['nftables_sync_failures'],
}
