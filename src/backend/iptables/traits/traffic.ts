// What `sluice flows` and `sluice trace` say about iptables mode. Pure.

import type { TrafficTraits } from '../../proxy-mode.ts'

export const iptablesTraffic: TrafficTraits = {
  flowRemarks: ['Packets that legacy iptables rejects or drops are not shown; iptables on nf_tables shows them.'],
  countsBytes: false,
  traceObstacle: '',
}
