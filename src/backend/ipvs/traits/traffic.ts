// What `sluice flows` and `sluice trace` say about ipvs mode. Pure.

import type { TrafficTraits } from '../../proxy-mode.ts'

export const ipvsTraffic: TrafficTraits = {
  flowRemarks: ['Packets that are rejected or dropped are not shown in ipvs mode.'],
  countsBytes: true,
  traceObstacle:
    'in ipvs mode IPVS chooses the endpoint outside of all rules; see who gets the connection with sluice flows',
}
