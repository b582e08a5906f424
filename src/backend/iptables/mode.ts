// The iptables mode as the rest of the program sees it: its data plane, and what differs from other modes.

import type { ProxyMode } from '../proxy-mode.ts'
import { iptables } from './backend.ts'
import { iptablesBehaviour } from './traits/behaviour.ts'
import { iptablesDoctor } from './traits/doctor.ts'
import { iptablesExplain } from './traits/explain.ts'
import { iptablesLeftovers } from './traits/leftovers.ts'
import { iptablesMetrics } from './traits/metrics.ts'
import { iptablesTraffic } from './traits/traffic.ts'

export const iptablesMode: ProxyMode = {
  name: 'iptables',
  makeBackend: iptables,
  behaviour: ({ localhostNodePorts }) => iptablesBehaviour(localhostNodePorts),
  explain: iptablesExplain,
  metrics: iptablesMetrics,
  doctor: iptablesDoctor,
  leftovers: iptablesLeftovers,
  traffic: iptablesTraffic,
}
