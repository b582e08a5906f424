// What `sluice flows` and `sluice trace` say about userspace mode. Pure.

import type { TrafficTraits } from '../../proxy-mode.ts'

export const userspaceTraffic: TrafficTraits = {
  flowRemarks: ['The endpoint of a relayed connection is chosen by the relay.'],
  traceObstacle:
    'in userspace mode the proxy relays connections itself and no rule chooses the endpoint; see connections with sluice flows',
}
