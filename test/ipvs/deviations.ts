// Lists the scenarios in which IPVS cannot do what every other mode does. Single packets with another outcome are marked `ipvs:` in the scenarios, with a reason.

import type { Deviation } from '../lab/driver.ts'

export const deviations: readonly Deviation[] = [
  {
    reason:
      'IPVS keeps persistence per virtual server: a client has one endpoint per address of the service, not one for all addresses',
    scenarios: ['affinity/J10b', 'affinity-lb/J10l'],
  },
  {
    reason:
      'packets that IPVS sends from the node to the node do not pass POSTROUTING: they are not masqueraded, and need not be',
    scenarios: ['internal-local/P17f'],
  },
  {
    reason:
      'IPVS serves only addresses that are bound to its device, and the address of an API server is never bound: its other ports are not served',
    scenarios: ['api-server/api-3'],
  },
]
