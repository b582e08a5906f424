// Userspace mode has no metrics beyond those of every mode. Pure.

import type { MetricTraits } from '../../proxy-mode.ts'

export const userspaceMetrics: MetricTraits = {
  declarations: [],
  noLocalUnit: 'service-ports',
  failureFigures: () => [],
}
