// Summarises services for `status`: ports, pending changes, and how many entries of each service the kernel holds.

import type { Backend, Held } from '../backend/backend.ts'
import type { FamilyStatus } from '../engine/lane.ts'
import type { PortSummary, Presence, ServiceSummary } from '../http/admin.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import { nextTurn } from '../lib/time.ts'
import { describeHolder } from '../model/conflicts.ts'
import { reachableOf } from '../model/endpoints.ts'
import type { Frontend, ServicePort } from '../model/types.ts'
import type { ExplainContext } from './explanation.ts'
import { comparePresence, type KernelState } from './kernel-state.ts'

/** Undefined if the kernel was not asked; a family is missing or undefined if its state could not be read. */
type KernelStates = ReadonlyMap<Family, KernelState | undefined> | undefined

/** Returns one summary per service and family. `service` is '' for all services. Yields the event loop between services. */
export async function summariseServices(
  { desired, views, readKernel, backend }: Pick<ExplainContext, 'desired' | 'views' | 'readKernel' | 'backend'>,
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
      ...families.filter(isWorthShowing).map((one) => ({
        ...summarise(key, one, asksKernel ? states : undefined),
        ports: one.ports.map((port) => summarisePort(port, backend.answersAt)),
      })),
    )
  }
  return summaries
}

const isWorthShowing = ({ ports, entries, lost, quarantine }: FamilyStatus): boolean =>
  ports.length + entries.length + lost.length > 0 || quarantine !== undefined

function summarise(service: string, status: FamilyStatus, states: KernelStates): Omit<ServiceSummary, 'ports'> {
  const { family, pending, lost, quarantine, entries } = status
  const found = entries.map((entry) => ({ entry, presence: comparePresence(entry, states?.get(family)) }))
  const counts: Record<Presence, number> = { present: 0, byName: 0, missing: 0, differs: 0, unchecked: 0 }
  for (const one of found) counts[one.presence]++
  return {
    service,
    family,
    pending,
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

function summarisePort(port: ServicePort, answersAt: Backend<Held>['answersAt'] = ownAddress): PortSummary {
  return {
    name: port.name,
    protocol: port.protocol,
    frontends: port.frontends.map((frontend) => {
      const { kind, ip, port: number } = frontend
      return { kind, ip, port: number, answersAt: answersAt(frontend) }
    }),
    internal: port.internal,
    external: port.external,
    endpoints: reachableOf(port).map(({ ip, port: number, local }) => ({ address: hostPort(ip, number), local })),
    affinitySeconds: port.affinitySeconds,
  }
}

const ownAddress = ({ ip, port }: Frontend): string => (ip === '' ? `:${port}` : hostPort(ip, port))
