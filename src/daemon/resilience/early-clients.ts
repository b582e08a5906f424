// Removes the connections of early clients around each write that makes frontends live.

import type { Backend, Held, Target } from '../../backend/backend.ts'
import type { Engine } from '../../engine/engine.ts'
import { EarlyFlowCleaner } from '../../engine/flows/early-flows.ts'
import type { Metrics } from '../../http/metrics.ts'
import { familyOf } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../sys/netlink/conntrack-codec.ts'
import { readTrackedConnections } from '../connection-counts.ts'

export interface EarlyClientsOptions {
  readonly backend: Backend<Held>
  /** Read when the data plane is written; undefined while the engine is being made. */
  readonly engine: () => Engine | undefined
  readonly views: { readonly addresses: readonly string[] }
  readonly metrics: Pick<Metrics, 'earlyFlows'>
  readonly clock: Clock
  readonly log: Logger
}

export interface EarlyClients {
  /** The backend whose targets look for early clients. */
  readonly backend: Backend<Held>
  readonly cleaner: EarlyFlowCleaner<TrackedFlow>
}

/** Undefined if the kernel translates nothing in this mode. */
export function openEarlyClients({ engine, views, metrics, ...rest }: EarlyClientsOptions): EarlyClients | undefined {
  const { backend, clock, log } = rest
  if (backend.untracked) return undefined
  const cleaner = new EarlyFlowCleaner({
    // A socket of its own: the dumps of one socket follow each other, and a client sends again after a second.
    table: new ConntrackTable(),
    recordOf: (service) => engine()?.store.service(service),
    portsOf: (service, family) => engine()?.portsOf(service, family) ?? [],
    nodeAddresses: (family) => views.addresses.filter((ip) => familyOf(ip) === family),
    countFlows: () => readTrackedConnections()?.tracked,
    onRemoved: (family, removed) => metrics.earlyFlows(family, removed),
    clock,
    log,
  })
  const open: Backend<Held>['open'] = async (context) => {
    const target = await backend.open(context)
    const apply: Target<Held>['apply'] = (changes, signal, wanted) =>
      cleaner.around(context.family, engine()?.listLive(context.family) ?? [], () =>
        target.apply(changes, signal, wanted),
      )
    return {
      observe: (signal) => target.observe(signal),
      apply,
      drifted: () => target.drifted(),
      close: () => target.close(),
    }
  }
  return { backend: { ...backend, open }, cleaner }
}
