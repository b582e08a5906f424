// Opens the flows of a daemon with what they need of it.

import { findMode } from '../../backend/modes.ts'
import type { Engine } from '../../engine/engine.ts'
import { readEndpointPods, readPodAt } from '../../kube/lookup/pod-lookup.ts'
import type { NodeViews } from '../node/node-views.ts'
import type { OpenedDaemon } from '../opened-daemon.ts'
import { Flows } from './flow-answers.ts'
import { PodNames } from './pod-names.ts'
import { watchRefusals } from './refused-packets.ts'

export function openFlows(daemon: OpenedDaemon, engine: Engine, views: NodeViews): Flows {
  const { options, backend, client, clock, closers, journal, servers, log } = daemon
  const names = new PodNames(
    {
      readEndpointPods: (service) => readEndpointPods(client, service),
      readPodAt: (ip) => readPodAt(client, ip),
    },
    clock,
  )
  const flows = new Flows({
    ports: (family) => engine.ports(family),
    portsOf: (service, family) => engine.portsOf(service, family),
    journal,
    families: views.families,
    nodeAddresses: () => views.addresses,
    openRefusals: watchRefusals(views.families),
    names,
    metrics: servers.metrics,
    remarks: findMode(options.config.mode).traffic.flowRemarks,
    untracked: backend.untracked === true,
    clock,
    log: log.named('flows'),
  })
  closers.push(() => flows.close())
  return flows
}
