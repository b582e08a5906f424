// Traces one packet through the model and explains the result: the service, each decision, each endpoint, and the entries behind it.

import type { Backend, Held, KernelCheck } from '../backend/backend.ts'
import type { ProxyMode } from '../backend/proxy-mode.ts'
import type { FamilyStatus } from '../engine/lane.ts'
import type { EndpointCandidate, EntrySummary, Explanation, Question } from '../http/admin.ts'
import { type Family, familyOf, hostPort, isLoopback } from '../lib/ip.ts'
import { describeHolder, frontendKey } from '../model/conflicts.ts'
import type { ModeBehaviour } from '../model/mode-behaviour.ts'
import type { Outcome, Packet } from '../model/packet.ts'
import { trace } from '../model/trace.ts'
import type { Frontend, NodeView } from '../model/types.ts'
import type { Desired } from './dry-run.ts'
import { explainEndpoints } from './endpoint-reasons.ts'
import { presenceOf } from './kernel-state.ts'
import { describePart } from './part-descriptions.ts'
import { findTargets, originOf, type PacketTarget } from './question.ts'
import { describeDoubt, type PodDoubt } from './unknown-pods.ts'

export interface ExplainContext {
  readonly desired: Desired
  readonly backend: Pick<Backend<Held>, 'base' | 'plan' | 'parts' | 'answersAt'>
  readonly mode: Pick<ProxyMode, 'name' | 'explain'>
  readonly behaviour: ModeBehaviour
  readonly views: readonly NodeView[]
  /** Every address of the node's interfaces. */
  readonly nodeAddresses: readonly string[]
  /** Reads what the kernel holds; absent if the kernel must not be asked. */
  readonly readKernel?: (family: Family) => Promise<KernelCheck | undefined>
  /** True if nothing says how the proxy of this node detects the traffic of its pods. */
  readonly podsUnknown?: boolean
}

/** A packet, the node as its family sees it, and what becomes of the packet. */
interface TracedPacket {
  readonly view: NodeView
  readonly packet: Packet
  readonly outcome: Outcome
  /** Undefined if the outcome is sure. */
  readonly doubt: PodDoubt | undefined
}

/** Returns one answer for an address, and one per frontend for a service name. Throws a ProxyError 'question'. */
export async function explain(context: ExplainContext, question: Question): Promise<readonly Explanation[]> {
  const answers: Explanation[] = []
  const kernelStates = new Map<Family, KernelCheck | undefined>()
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
  const traceOn = (node: NodeView) => trace({ ports, node, nodeAddresses }, sent, context.behaviour)
  const outcome = traceOn(view)
  return { view, packet: sent, outcome, doubt: context.podsUnknown ? describeDoubt(view, sent, traceOn) : undefined }
}

function sourceOf(view: NodeView, target: PacketTarget, from: string): string {
  if (from !== '' && from !== 'node') return from
  return isLoopback(target.ip) ? target.ip : view.ip
}

function explainTraced(context: ExplainContext, traced: TracedPacket, kernel: KernelCheck | undefined): Explanation {
  const { view, packet, outcome, doubt } = traced
  const { port, frontend } = outcome
  const status = port === undefined ? undefined : statusOf(context, port.service, view.family)
  const { topology, endpoints } =
    port === undefined || frontend === undefined
      ? { topology: [], endpoints: [] }
      : explainEndpoints(context, view, { ...outcome, port })
  const modeRemarks = outcome.verdict === 'forward' ? context.mode.explain.remarks : []
  const isSourceUnknown = doubt?.isSourceUnknown === true
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
    reason: outcome.verdict === 'forward' ? '' : outcome.reason,
    service: port?.name ?? '',
    frontend: frontend === undefined ? '' : describeFrontend(frontend),
    steps: [...outcome.steps.slice(0, 1), ...topology, ...(doubt?.steps ?? outcome.steps).slice(1)],
    endpoints: isSourceUnknown ? endpoints.map(withUnknownSource) : endpoints,
    affinitySeconds: outcome.verdict === 'forward' ? outcome.affinity : 0,
    ...(isSourceUnknown ? { snat: null, hairpin: false } : sourceTranslation(outcome)),
    entries: neededEntries(context, traced, status?.entries ?? []).map((part) =>
      summarisePart(context, view, part, kernel),
    ),
    remarks: [
      ...(status === undefined ? claimRemarks(context, traced) : serviceRemarks(status)),
      ...modeRemarks,
      ...(doubt?.remarks ?? []),
    ],
  }
}

/** An endpoint that is not used sees nothing, and a hairpin is sure. */
const withUnknownSource = (endpoint: EndpointCandidate): EndpointCandidate =>
  endpoint.probability === 0 || endpoint.snat === true ? endpoint : { ...endpoint, snat: null }

function summarisePart(
  { mode }: ExplainContext,
  { family }: NodeView,
  part: Held,
  kernel: KernelCheck | undefined,
): EntrySummary {
  const { name, content, command } = describePart(mode, part, family)
  const kept = kernel?.adaptCommand?.(command, part) ?? command
  return { kind: part.kind, name, content, command: kept, kernel: presenceOf(part, kernel) }
}

const statusOf = ({ desired }: ExplainContext, service: string, family: Family): FamilyStatus | undefined =>
  desired.status(service).families.find((one) => one.family === family)

function sourceTranslation(outcome: Outcome): Pick<Explanation, 'snat' | 'hairpin'> {
  if (outcome.verdict !== 'forward') return { snat: false, hairpin: false }
  return { snat: outcome.masquerade, hairpin: !outcome.masquerade && outcome.endpoints.some(({ snat }) => snat) }
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
): readonly Held[] {
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
