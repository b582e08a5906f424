// Opens the flows of a daemon with what they need of it.

import { findMode } from '../../backend/modes.ts'
import type { Engine } from '../../engine/engine.ts'
import { readEndpointPods, readPodAt } from '../../kube/lookup/pod-lookup.ts'
import { platform } from '../../sys/platform/platform.ts'
import type { NodeViews } from '../node/node-views.ts'
import type { OpenedDaemon } from '../opened-daemon.ts'
import { Flows } from './flow-answers.ts'
import { type FlowSources, readKernelFlows } from './flow-session.ts'
import { PodNames } from './pod-names.ts'
import { watchRefusals } from './refused-packets.ts'
import { readRelayFlows } from './relay-session.ts'

export function openFlows(daemon: OpenedDaemon, engine: Engine, views: NodeViews): Flows {
  const { options, backend, client, clock, closers, journal, servers, log } = daemon
  const names = new PodNames(
    {
      readEndpointPods: (service) => readEndpointPods(client, service),
      readPodAt: (ip) => readPodAt(client, ip),
    },
    clock,
  )
  const isTracked = platform.tracksConnections && backend.untracked !== true
  const sources: FlowSources = {
    ports: (family) => engine.ports(family),
    portsOf: (service, family) => engine.portsOf(service, family),
    journal,
    families: views.families,
    nodeAddresses: () => views.addresses,
    ...(isTracked ? { openRefusals: watchRefusals(views.families) } : {}),
    clock,
    log: log.named('flows'),
  }
  const { relayed } = backend
  const flows = new Flows({
    reading: relayed === undefined ? readKernelFlows(sources, isTracked) : readRelayFlows(sources, relayed),
    names,
    metrics: servers.metrics,
    remarks: findMode(options.config.mode).traffic.flowRemarks,
    clock,
  })
  closers.push(() => flows.close())
  return flows
}
