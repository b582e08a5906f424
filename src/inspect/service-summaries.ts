// Summarises services for `status`: ports, pending changes, and how many entries of each service the kernel holds.

import type { Backend, Held, KernelCheck, Presence } from '../backend/backend.ts'
import type { FamilyStatus } from '../engine/lane.ts'
import type { Comparison, EndpointSummary, PortSummary, ServiceSummary } from '../http/admin.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import { nextTurn } from '../lib/time.ts'
import { describeHolder } from '../model/conflicts.ts'
import { reachableOf } from '../model/endpoints.ts'
import type { Endpoint, Frontend, ServicePort } from '../model/types.ts'
import { startSteps } from '../model/weights.ts'
import type { ExplainContext } from './explanation.ts'
import { presenceOf } from './kernel-state.ts'
import { describePart } from './part-descriptions.ts'

type SummaryContext = Pick<ExplainContext, 'desired' | 'views' | 'readKernel' | 'backend' | 'mode'>

/** Undefined if the kernel was not asked; a family is missing or undefined if its state could not be read. */
type KernelStates = ReadonlyMap<Family, KernelCheck | undefined> | undefined

/** Returns one summary per service and family. `service` is '' for all services. Yields the event loop between services. */
export async function summariseServices(
  context: SummaryContext,
  service: string,
  asksKernel: boolean,
): Promise<readonly ServiceSummary[]> {
  return (await compareAll(context, service, asksKernel)).services
}

/** As `summariseServices`, with what the node needs whatever services there are. The kernel is read once for both. */
export async function compareAll(context: SummaryContext, service: string, asksKernel: boolean): Promise<Comparison> {
  if (!asksKernel) return compareWith(context, service, undefined)
  const first = await compareWith(context, service, await readStates(context))
  // A sync may have written between the two reads: only what is wrong twice is wrong.
  return isAllRight(first) ? first : compareWith(context, service, await readStates(context))
}

const isAllRight = ({ base, services }: Comparison): boolean =>
  [...base, ...services].every(({ wrong }) => wrong.length === 0)

async function compareWith(context: SummaryContext, service: string, states: KernelStates): Promise<Comparison> {
  const base = context.views.map((view) => {
    const parts = context.backend.base(view).flatMap((entry) => context.backend.parts?.(entry) ?? [entry])
    return { family: view.family, ...compareParts(context, view.family, parts, states) }
  })
  return { base, services: await summariseWith(context, service, states) }
}

async function readStates({ views, readKernel }: SummaryContext): Promise<KernelStates> {
  const states = new Map<Family, KernelCheck | undefined>()
  for (const { family } of views) states.set(family, await readKernel?.(family))
  return states
}

async function summariseWith(
  context: SummaryContext,
  service: string,
  states: KernelStates,
): Promise<readonly ServiceSummary[]> {
  const { desired, backend } = context
  const keys = service === '' ? [...desired.store.records()].map(({ key }) => key).sort() : [service]
  const summaries: ServiceSummary[] = []
  for (const [i, key] of keys.entries()) {
    if (i % 100 === 99) await nextTurn()
    const { known, families } = desired.status(key)
    if (!known) continue
    summaries.push(
      ...families.filter(isWorthShowing).map((one) => ({
        ...summarise(context, key, one, states),
        ports: one.ports.map((port) => summarisePort(port, backend.answersAt)),
      })),
    )
  }
  return summaries
}

const isWorthShowing = ({ ports, entries, lost, quarantine }: FamilyStatus): boolean =>
  ports.length + entries.length + lost.length > 0 || quarantine !== undefined

function summarise(
  context: SummaryContext,
  service: string,
  { family, pending, lost, quarantine, entries }: FamilyStatus,
  states: KernelStates,
): Omit<ServiceSummary, 'ports'> {
  const compared = compareParts(context, family, entries, states)
  return {
    service,
    family,
    pending,
    ...compared,
    // A change that waits for its sync is not yet in the kernel.
    wrong: pending ? [] : compared.wrong,
    lost: lost.map((conflict) => `${conflict.frontend} ${describeHolder(conflict)}`),
    quarantine: quarantine?.error.message ?? '',
  }
}

function compareParts(
  { mode }: SummaryContext,
  family: Family,
  parts: readonly Held[],
  states: KernelStates,
): Pick<ServiceSummary, 'entries' | 'inKernel' | 'wrong'> {
  const inKernel: Record<Presence, number> = { present: 0, byName: 0, missing: 0, differs: 0, unchecked: 0 }
  const wrong: string[] = []
  for (const part of parts) {
    const presence = presenceOf(part, states?.get(family))
    inKernel[presence]++
    if (presence !== 'missing' && presence !== 'differs') continue
    const problem = presence === 'missing' ? 'is not in the kernel' : 'has other content in the kernel'
    wrong.push(`${describePart(mode, part, family).name} ${problem}`)
  }
  return { entries: parts.length, ...(states === undefined ? {} : { inKernel }), wrong }
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
    endpoints: reachableOf(port).map(summariseEndpoint),
    ejected: port.ejected?.map(({ address, why }) => `${address}: ${why}`) ?? [],
    drainingUntil: port.drainingUntil ?? '',
    affinitySeconds: port.affinitySeconds,
    ...(port.algorithm === undefined ? {} : { algorithm: port.algorithm }),
  }
}

const summariseEndpoint = ({ ip, port, local, weight = 1, weightFrom, startStep }: Endpoint): EndpointSummary => ({
  address: hostPort(ip, port),
  local,
  ...(weight === 1 ? {} : { weight }),
  ...(weightFrom === undefined ? {} : { weightFrom }),
  ...(startStep === undefined ? {} : { startingPercent: (100 * startStep) / startSteps }),
})

const ownAddress = ({ ip, port }: Frontend): string => (ip === '' ? `:${port}` : hostPort(ip, port))
