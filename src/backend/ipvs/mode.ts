// The ipvs mode as the rest of the program sees it: its data plane, and what differs from other modes.

import type { ProxyMode } from '../proxy-mode.ts'
import { ipvs } from './backend.ts'
import { ipvsBehaviour } from './traits/behaviour.ts'
import { ipvsDoctor } from './traits/doctor.ts'
import { ipvsExplain } from './traits/explain.ts'
import { ipvsLeftovers } from './traits/leftovers.ts'
import { ipvsMetrics } from './traits/metrics.ts'
import { ipvsTraffic } from './traits/traffic.ts'

export const ipvsMode: ProxyMode = {
  name: 'ipvs',
  makeBackend: ipvs,
  behaviour: () => ipvsBehaviour,
  explain: ipvsExplain,
  metrics: ipvsMetrics,
  doctor: ipvsDoctor,
  leftovers: ipvsLeftovers,
  traffic: ipvsTraffic,
}
