// The ipvs mode as the rest of the program sees it: its data plane, and what differs from other modes.

import type { ProxyMode } from '../proxy-mode.ts'
import { ipvs } from './backend.ts'
import { ipvsBehaviour } from './traits/behaviour.ts'
import { ipvsDoctor } from './traits/doctor.ts'
import { ipvsLeftovers } from './traits/leftovers.ts'
import { ipvsMetrics } from './traits/metrics.ts'

export const ipvsMode: ProxyMode = {
  name: 'ipvs',
  makeBackend: ipvs,
  behaviour: () => ipvsBehaviour,
  explain: {
    usesWeights: true,
    remarks: ['IPVS chooses by its scheduler; the shares are averages over many connections.'],
    isVisible: () => true,
    // The kernel does not say which virtual servers are for node ports.
    observedId: (id) => id.replace(/^node-port /, 'server '),
    listCommand: 'cat /proc/net/ip_vs',
  },
  metrics: ipvsMetrics,
  doctor: ipvsDoctor,
  leftovers: ipvsLeftovers,
}
