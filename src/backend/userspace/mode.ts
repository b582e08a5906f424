// The userspace mode as the rest of the program sees it: its data planes, and what differs from other modes.

import type { ProxyMode } from '../proxy-mode.ts'
import { userspace } from './backend.ts'
import { firstFreePort, userspaceUnprivileged } from './direct/unprivileged.ts'
import { userspaceBehaviour } from './traits/behaviour.ts'
import { userspaceDoctor } from './traits/doctor.ts'
import { userspaceExplain } from './traits/explain.ts'
import { userspaceLeftovers } from './traits/leftovers.ts'
import { userspaceMetrics } from './traits/metrics.ts'
import { userspaceTraffic } from './traits/traffic.ts'

export const userspaceMode: ProxyMode = {
  name: 'userspace',
  makeBackend: userspace,
  unprivileged: { makeBackend: userspaceUnprivileged, describe: describeUnprivileged },
  behaviour: () => userspaceBehaviour,
  explain: userspaceExplain,
  metrics: userspaceMetrics,
  doctor: userspaceDoctor,
  leftovers: userspaceLeftovers,
  traffic: userspaceTraffic,
  trialObstacle: 'userspace mode programs sockets, and a trial would have to open them',
}

function describeUnprivileged(): string {
  const free = firstFreePort()
  const moved = free > 1 ? `, ports below ${free} moved up by 10000` : ''
  return `Without root, services answer on loopback only: node ports on 127.0.0.1, cluster IP 10.a.b.c on 127.a.b.c${moved}.`
}
