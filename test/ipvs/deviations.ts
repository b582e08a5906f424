// Where IPVS cannot do what a scenario asks of every mode. Packets that merely meet another end are marked `ipvs:` in the scenarios, with a reason.

import type { Deviation } from '../lab/driver.ts'

export const deviations: readonly Deviation[] = [
  {
    reason:
      'persistence is kept by virtual server: a client has one endpoint per address of the service, not one for all addresses',
    scenarios: ['affinity/J10b', 'affinity-lb/J10l'],
  },
  {
    reason:
      'what IPVS sends from the node to the node does not pass POSTROUTING: it is not masqueraded, nor need it be',
    scenarios: ['internal-local/P17f'],
  },
]
