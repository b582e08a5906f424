// Traces one packet through the model and explains the result: the service, each decision, each endpoint, and the entries behind it.

import type { Backend, Held } from '../backend/backend.ts'
import type { ProxyMode } from '../backend/proxy-mode.ts'
import type { FamilyStatus } from '../engine/lane.ts'
import type { EntrySummary, Explanation, Question } from '../http/admin.ts'
import { type Family, familyOf, hostPort, isLoopback } from '../lib/ip.ts'
import { describeHolder, frontendKey } from '../model/conflicts.ts'
import type { ModeBehaviour } from '../model/mode-behaviour.ts'
import { type Outcome, type Packet, trace } from '../model/trace.ts'
import type { Frontend, NodeView } from '../model/types.ts'
import type { Desired } from './dry-run.ts'
import { explainEndpoints } from './endpoint-reasons.ts'
import { comparePresence, type KernelState } from './kernel-state.ts'
import { findTargets, originOf, type PacketTarget } from './question.ts'

export interface ExplainContext {
  readonly desired: Desired
  readonly backend: Pick<Backend<Held>, 'plan' | 'parts' | 'answersAt'>
  readonly mode: Pick<ProxyMode, 'name' | 'explain'>
  readonly behaviour: ModeBehaviour
  readonly views: readonly NodeView[]
  /** Every address of the node's interfaces. */
  readonly nodeAddresses: readonly string[]
  /** Reads what the kernel holds; absent if the kernel must not be asked. */
  readonly readKernel?: (family: Family) => Promise<KernelState | undefined>
}

/** A packet, the node as its family sees it, and what becomes of the packet. */
interface TracedPacket {
  readonly view: NodeView
  readonly packet: Packet
  readonly outcome: Outcome
}

/** Returns one answer for an address, and one per frontend for a service name. Throws a ProxyError 'question'. */
export async function explain(context: ExplainContext, question: Question): Promise<readonly Explanation[]> {
  const answers: Explanation[] = []
  const kernelStates = new Map<Family, KernelState | undefined>()
  for (const target of findTargets(context, question.target)) {
    const traced = traceTo(context, target, question.from)
    if (traced === undefined) continue
    const { family } = traced.view
    if (!kernelStates.has(family)) kernelStates.set(family, await context.readKernel?.(family))
    answers.push(explainTraced(context, traced, kernelStates.get(family)))
  }
  return answers
}

/** Returns undefined if this node or the source has no address of the target's family: such a packet cannot exist. */
function traceTo(context: ExplainContext, target: PacketTarget, from: string): TracedPacket | undefined {
  const family = familyOf(target.ip)
  const view = context.views.find((one) => one.family === family)
  if (view === undefined) return undefined
  const source = sourceOf(view, target, from)
  if (familyOf(source) !== family) return undefined
  const packet = { from: source, to: target.ip, port: target.port, protocol: target.protocol }
  const ports = [...context.desired.ports(family)]
  const nodeAddresses = context.nodeAddresses.filter((ip) => familyOf(ip) === family)
  const sent = { ...packet, origin: originOf(context, view, source) }
  return { view, packet: sent, outcome: trace({ ports, node: view, nodeAddresses }, sent, context.behaviour) }
}

function sourceOf(view: NodeView, target: PacketTarget, from: string): string {
  if (from !== '' && from !== 'node') return from
  return isLoopback(target.ip) ? target.ip : view.ip
}

function explainTraced(context: ExplainContext, traced: TracedPacket, kernel: KernelState | undefined): Explanation {
  const { view, packet, outcome } = traced
  const { port, frontend } = outcome
  const status = port === undefined ? undefined : statusOf(context, port.service, view.family)
  const { topology, endpoints } =
    port === undefined || frontend === undefined
      ? { topology: [], endpoints: [] }
      : explainEndpoints(context, view, { ...outcome, port })
  const modeRemarks = outcome.verdict === 'forward' ? context.mode.explain.remarks : []
  return {
    node: view.name,
    mode: context.mode.name,
    packet: {
      from: packet.from,
      to: packet.to,
      port: packet.port,
      protocol: packet.protocol,
      origin: packet.origin,
    },
    verdict: outcome.verdict,
    reason: outcome.verdict === 'forward' ? undefined : outcome.reason,
    service: port?.name ?? '',
    frontend: frontend === undefined ? '' : describeFrontend(frontend),
    steps: [...outcome.steps.slice(0, 1), ...topology, ...outcome.steps.slice(1)],
    endpoints,
    affinitySeconds: outcome.verdict === 'forward' ? outcome.affinity : 0,
    snat: sourceTranslation(outcome),
    entries: neededEntries(context, traced, status?.entries ?? []).map(({ id, kind, digest }) => ({
      id,
      kind,
      digest,
      kernel: comparePresence({ id, kind, digest }, kernel),
    })),
    remarks: [...(status === undefined ? claimRemarks(context, traced) : serviceRemarks(status)), ...modeRemarks],
  }
}

const statusOf = ({ desired }: ExplainContext, service: string, family: Family): FamilyStatus | undefined =>
  desired.status(service).families.find((one) => one.family === family)

function sourceTranslation(outcome: Outcome): Explanation['snat'] {
  if (outcome.verdict !== 'forward') return 'none'
  if (outcome.masquerade) return 'yes'
  return outcome.endpoints.some(({ snat }) => snat) ? 'hairpin' : 'no'
}

const kinds = { 'cluster-ip': 'cluster IP', 'external-ip': 'external IP', 'load-balancer': 'load balancer IP' } as const

const describeFrontend = ({ kind, ip, port }: Frontend): string =>
  kind === 'node-port' ? `node port ${port}` : `${kinds[kind]} ${hostPort(ip, port)}`

function serviceRemarks({ pending, quarantine, lost }: FamilyStatus): readonly string[] {
  return [
    ...(pending ? ['A change of this service waits for the next sync.'] : []),
    ...(quarantine === undefined
      ? []
      : [`This service is quarantined: ${quarantine.error.message}. The kernel has its last good state.`]),
    ...lost.map((conflict) => `${conflict.frontend} ${describeHolder(conflict)}.`),
  ]
}

/** Names the services that want the address of a packet which meets no service. */
function claimRemarks({ desired }: ExplainContext, { view, packet }: TracedPacket): readonly string[] {
  const keys = [packet.to, ''].map((ip) => frontendKey({ ip, port: packet.port }, packet.protocol))
  return desired
    .conflicts()
    .filter(({ family, frontend }) => family === view.family && keys.includes(frontend))
    .map((conflict) => `Service ${conflict.loser} claims ${conflict.frontend}, which ${describeHolder(conflict)}.`)
}

/** Returns those of the service's entries that the matched frontend needs: planned alone, then found among what the service claims. */
function neededEntries(
  { backend }: ExplainContext,
  { view, packet, outcome }: TracedPacket,
  claimed: readonly Held[],
): readonly Omit<EntrySummary, 'kernel'>[] {
  const { port, frontend } = outcome
  if (port === undefined) return []
  const parts = (entry: Held) => backend.parts?.(entry) ?? [entry]
  const needed =
    frontend === undefined
      ? // The packet met the address but no port: the entry of the address alone decides.
        claimed.filter(({ id }) => id.endsWith(` ${packet.to}`))
      : backend.plan({ ...port, frontends: [frontend] }, view).flatMap(parts)
  const ids = new Set(needed.map(({ id }) => id))
  return claimed.filter(({ id }, i) => ids.has(id) && claimed.findIndex((one) => one.id === id) === i)
}
