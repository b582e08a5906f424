// What `sluice flows` and `sluice trace` say about userspace mode. Pure.

import type { TrafficTraits } from '../../proxy-mode.ts'

export const userspaceTraffic: TrafficTraits = {
  // The relays say it themselves: what they cannot show depends on whether rules redirect clients to them.
  flowRemarks: [],
  countsBytes: true,
  traceObstacle:
    'in userspace mode the proxy relays connections itself and no rule chooses the endpoint; see connections with sluice flows',
}
