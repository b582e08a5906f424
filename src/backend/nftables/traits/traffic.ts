// What `sluice flows` and `sluice trace` say about nftables mode. Pure.

import type { TrafficTraits } from '../../proxy-mode.ts'

export const nftablesTraffic: TrafficTraits = {
  flowRemarks: [],
  countsBytes: false,
  traceObstacle: '',
}
