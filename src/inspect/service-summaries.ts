// Summarises services for `status`: ports, pending changes, and how many entries of each service the kernel holds.

import type { FamilyStatus } from '../engine/lane.ts'
import type { PortSummary, Presence, ServiceSummary } from '../http/admin.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import { nextTurn } from '../lib/time.ts'
import { describeHolder } from '../model/conflicts.ts'
import type { ServicePort } from '../model/types.ts'
import type { ExplainContext } from './explanation.ts'
import { comparePresence, type KernelState } from './kernel-state.ts'

/** Undefined if the kernel was not asked; a family is missing or undefined if its state could not be read. */
type KernelStates = ReadonlyMap<Family, KernelState | undefined> | undefined

/** Returns one summary per service and family. `service` is '' for all services. Yields the event loop between services. */
export async function summariseServices(
  { desired, views, readKernel }: Pick<ExplainContext, 'desired' | 'views' | 'readKernel'>,
  service: string,
  asksKernel: boolean,
): Promise<readonly ServiceSummary[]> {
  const keys = service === '' ? [...desired.store.records()].map(({ key }) => key).sort() : [service]
  const states = new Map<Family, KernelState | undefined>()
  if (asksKernel) for (const { family } of views) states.set(family, await readKernel?.(family))
  const summaries: ServiceSummary[] = []
  for (const [i, key] of keys.entries()) {
    if (i % 100 === 99) await nextTurn()
    const { known, families } = desired.status(key)
    if (!known) continue
    summaries.push(
      ...families.filter(isWorthShowing).map((one) => summarise(key, one, asksKernel ? states : undefined)),
    )
  }
  return summaries
}

const isWorthShowing = ({ ports, entries, lost, quarantine }: FamilyStatus): boolean =>
  ports.length + entries.length + lost.length > 0 || quarantine !== undefined

function summarise(service: string, status: FamilyStatus, states: KernelStates): ServiceSummary {
  const { family, pending, ports, lost, quarantine, entries } = status
  const found = entries.map((entry) => ({ entry, presence: comparePresence(entry, states?.get(family)) }))
  const counts: Record<Presence, number> = { held: 0, present: 0, missing: 0, differs: 0, 'not checked': 0 }
  for (const one of found) counts[one.presence]++
  return {
    service,
    family,
    pending,
    ports: ports.map(summarisePort),
    entries: entries.length,
    inKernel: states === undefined ? undefined : counts,
    wrong: found.flatMap((one) => {
      if (one.presence === 'missing') return [`${one.entry.id}: is not in the kernel`]
      return one.presence === 'differs' ? [`${one.entry.id}: has other content in the kernel`] : []
    }),
    lost: lost.map((conflict) => `${conflict.frontend} ${describeHolder(conflict)}`),
    quarantine: quarantine?.error.message ?? '',
  }
}

const summarisePort = (port: ServicePort): PortSummary => ({
  name: port.name,
  protocol: port.protocol,
  frontends: port.frontends.map(({ kind, ip, port: number }) =>
    kind === 'node-port' ? `node-port ${number}` : `${kind} ${hostPort(ip, number)}`,
  ),
  internal: port.internal,
  external: port.external,
  endpoints: port.cluster.map(({ ip, port: number }) => hostPort(ip, number)),
  localEndpoints: port.local.map(({ ip, port: number }) => hostPort(ip, number)),
  affinitySeconds: port.affinitySeconds,
})
