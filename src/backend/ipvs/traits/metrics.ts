// The metrics that ipvs mode has beyond those of every mode. Pure.

import type { MetricTraits } from '../../proxy-mode.ts'
import { conntrackMetrics, restoreFailureFigure, restoreFailureMetric } from '../../shared-metrics.ts'

export const ipvsMetrics: MetricTraits = {
  declarations: [restoreFailureMetric, ...conntrackMetrics],
  noLocalUnit: 'services',
  failureFigures: ({ error }) => (error?.code.startsWith('iptables') ? [restoreFailureFigure] : []),
}
