// The nftables mode as the rest of the program sees it: its data plane, and what differs from other modes.

import type { ProxyMode } from '../proxy-mode.ts'
import { nftables } from './backend.ts'
import { nftablesBehaviour } from './traits/behaviour.ts'
import { nftablesDoctor } from './traits/doctor.ts'
import { nftablesExplain } from './traits/explain.ts'
import { nftablesLeftovers } from './traits/leftovers.ts'
import { nftablesMetrics } from './traits/metrics.ts'
import { nftablesTraffic } from './traits/traffic.ts'

export const nftablesMode: ProxyMode = {
  name: 'nftables',
  makeBackend: nftables,
  behaviour: () => nftablesBehaviour,
  explain: nftablesExplain,
  metrics: nftablesMetrics,
  doctor: nftablesDoctor,
  leftovers: nftablesLeftovers,
  traffic: nftablesTraffic,
}
