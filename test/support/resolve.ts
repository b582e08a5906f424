// Resolves all ports of a service at once, for tests and benches.

import { resolvePorts } from '../../src/model/resolve.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../../src/model/types.ts'

export const resolve = (
  service: ServiceRecord,
  slices: readonly SliceRecord[],
  node: NodeView,
): readonly ServicePort[] => [...resolvePorts(service, slices, node)]
