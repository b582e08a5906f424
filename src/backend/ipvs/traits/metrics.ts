// The metrics that ipvs mode has beyond those of every mode. Pure.

import { counter } from '../../../lib/metric-declaration.ts'
import type { MetricTraits } from '../../proxy-mode.ts'
import { conntrackMetrics, restoreFailureFigure, restoreFailureMetric } from '../../shared-metrics.ts'

const servicePort = ['namespace', 'service', 'port', 'ip_family'] as const
/** The number of series is limited, so that one scrape of a large cluster's node stays small. */
const counted = 'those of the 200 busiest service ports; the rest together is service="others"'

export const ipvsMetrics: MetricTraits = {
  declarations: [
    restoreFailureMetric,
    ...conntrackMetrics,
    counter('sluice_service_connections_total', servicePort, `Connections to service ports: ${counted}.`),
    counter(
      'sluice_service_packets_total',
      [...servicePort, 'direction'],
      `Packets from (in) and to (out) clients: ${counted}.`,
    ),
    counter(
      'sluice_service_bytes_total',
      [...servicePort, 'direction'],
      `Bytes from (in) and to (out) clients: ${counted}.`,
    ),
  ],
  noLocalUnit: 'services',
  failureFigures: ({ error }) => (error?.code.startsWith('iptables') ? [restoreFailureFigure] : []),
}
