// Follows one packet through the model and says why: the service it meets, each decision, each endpoint, and the entries behind it.

import type { Backend, Held, Mode } from '../backend/backend.ts'
import type { EndpointCandidate as CandidateLine, EntrySummary, Explanation, Question } from '../http/admin.ts'
import { type Family, familyOf, hostPort, isLoopback } from '../lib/ip.ts'
import { type Candidate, candidatesOf, slicesOf, topologyOf } from '../model/endpoints.ts'
import type { ModeBehaviour } from '../model/mode-behaviour.ts'
import { type Outcome, type Packet, trace } from '../model/trace.ts'
import type { Frontend, NodeView, ServicePort } from '../model/types.ts'
import type { Desired } from './dry-run.ts'
import { type KernelState, presence } from './kernel-state.ts'
import { findTargets, originOf, type PacketTarget } from './question.ts'

export interface ExplainContext {
  readonly desired: Desired
  readonly backend: Pick<Backend<Held>, 'name' | 'plan' | 'parts'>
  readonly dialect: ModeBehaviour
  readonly views: readonly NodeView[]
  /** Every address of the node's interfaces. */
  readonly nodeAddresses: readonly string[]
  /** What the kernel holds; undefined: it is not asked. */
  readonly observe?: (family: Family) => Promise<KernelState | undefined>
}

/** One answer for an address; one for each frontend if a service is asked for by name. Throws a ProxyError 'question'. */
export async function explain(stage: ExplainContext, question: Question): Promise<readonly Explanation[]> {
  const answers: Explanation[] = []
  const looked = new Map<Family, Promise<KernelState | undefined>>()
  for (const target of findTargets(stage, question.target)) {
    const family = familyOf(target.ip)
    const view = stage.views.find((one) => one.family === family)
    if (view === undefined) continue
    const packet = packetTo(stage, view, target, question.from)
    if (packet === undefined) continue
    const ports = [...stage.desired.ports(family)]
    const nodeAddresses = stage.nodeAddresses.filter((ip) => familyOf(ip) === family)
    const outcome = trace({ ports, node: view, nodeAddresses }, packet, stage.dialect)
    const kernel = looked.get(family) ?? stage.observe?.(family) ?? Promise.resolve(undefined)
    looked.set(family, kernel)
    answers.push(describe(stage, view, packet, outcome, await kernel))
  }
  return answers
}

function packetTo(stage: ExplainContext, view: NodeView, target: PacketTarget, from: string): Packet | undefined {
  const source = from === '' || from === 'node' ? (isLoopback(target.ip) ? target.ip : view.ip) : from
  // A client of one family never meets an address of the other.
  if (familyOf(source) !== view.family) return undefined
  const origin = originOf(stage, view, source)
  return { from: source, to: target.ip, port: target.port, protocol: target.protocol, origin }
}

function describe(
  stage: ExplainContext,
  view: NodeView,
  packet: Packet,
  outcome: Outcome,
  kernel: KernelState | undefined,
): Explanation {
  const { port, frontend } = outcome
  const { topology, endpoints } =
    port === undefined || frontend === undefined
      ? { topology: [], endpoints: [] }
      : selection(stage, view, port, outcome)
  const snats = outcome.verdict === 'forward' ? outcome.endpoints.map((endpoint) => endpoint.snat) : []
  const status = port === undefined ? undefined : stage.desired.status(port.service)
  const own = status?.families.find(({ family }) => family === view.family)
  return {
    node: view.name,
    mode: stage.backend.name,
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
    snat: outcome.verdict !== 'forward' ? 'none' : outcome.masquerade ? 'yes' : snats.includes(true) ? 'hairpin' : 'no',
    entries: entriesFor(stage, view, packet, outcome, own?.entries ?? [], kernel),
    remarks: [
      ...(own?.pending ? ['A change of this service waits for the next sync.'] : []),
      ...(own?.quarantine === undefined
        ? []
        : [`This service is quarantined: ${own.quarantine.error.message}. The kernel has its last good state.`]),
      ...(own?.lost ?? []).map(({ frontend: at, winner }) => `${at} is held by the older service ${winner}.`),
      ...remarksOf(stage.backend.name, outcome),
    ],
  }
}

const kinds = { 'cluster-ip': 'cluster IP', 'external-ip': 'external IP', 'load-balancer': 'load balancer IP' } as const

const describeFrontend = ({ kind, ip, port }: Frontend): string =>
  kind === 'node-port' ? `node port ${port}` : `${kinds[kind]} ${hostPort(ip, port)}`

function remarksOf(mode: Mode, outcome: Outcome): readonly string[] {
  if (outcome.verdict !== 'forward') return []
  if (mode === 'ipvs') return ['IPVS chooses by its scheduler; the shares are those over many connections.']
  return []
}

// ---- Endpoints: every one of them, used or not, and why. ----

function selection(stage: ExplainContext, view: NodeView, port: ServicePort, outcome: Outcome) {
  const slices = slicesOf(port.service, stage.desired.store.slicesOf(port.service, view.family), view)
  const candidates = candidatesOf(slices, port.portName, port.protocol, view)
  const chosen = new Map(
    outcome.verdict === 'forward' ? outcome.endpoints.map((endpoint) => [endpoint.address, endpoint]) : [],
  )
  const weight = ({ endpoint }: Candidate) => (stage.backend.name === 'ipvs' ? (endpoint.weight ?? 1) : 1)
  const addressOf = ({ endpoint }: Candidate) => hostPort(endpoint.ip, endpoint.port)
  const used = candidates.filter((candidate) => chosen.has(addressOf(candidate)))
  const total = used.reduce((sum, candidate) => sum + weight(candidate), 0)
  const topology = topologyOf(candidates, view)
  const why = reasons(view, port, outcome, candidates)
  return {
    topology: topologySteps(view, topology, candidates),
    endpoints: candidates.map((candidate): CandidateLine => {
      const address = addressOf(candidate)
      const taken = chosen.get(address)
      return {
        address,
        node: candidate.record.node,
        probability: taken === undefined || total === 0 ? 0 : weight(candidate) / total,
        snat: taken?.snat ?? false,
        why: why(candidate, taken !== undefined),
      }
    }),
  }
}

function topologySteps(view: NodeView, topology: string, candidates: readonly Candidate[]): readonly string[] {
  const ready = candidates.filter(({ record }) => record.ready)
  if (topology === 'same-node') return [`Every ready endpoint has a node hint: only those for ${view.name} are near.`]
  if (topology === 'same-zone') return [`Every ready endpoint has a zone hint: only those for ${view.zone} are near.`]
  const hinted = ready.filter(({ record }) => record.zoneHints.length + record.nodeHints.length > 0)
  if (hinted.length === 0) return []
  return hinted.length < ready.length
    ? ['Some ready endpoints have no topology hint, so hints are not followed: any endpoint may answer.']
    : [`No topology hint is for this node (zone "${view.zone}"), so hints are not followed: any endpoint may answer.`]
}

function reasons(view: NodeView, port: ServicePort, outcome: Outcome, candidates: readonly Candidate[]) {
  const topology = topologyOf(candidates, view)
  const localOnly =
    outcome.verdict === 'drop' ||
    (outcome.verdict === 'forward' && outcome.endpoints.length > 0 && everyLocal(port, outcome))
  return ({ record, endpoint }: Candidate, used: boolean): string => {
    const state = record.ready ? 'ready' : record.terminating ? 'terminating' : 'not ready'
    if (used) return record.ready ? `ready${endpoint.local ? ', on this node' : ''}` : 'draining; nothing is ready'
    if (!record.ready && !(record.serving && record.terminating)) return `${state}: gets no new connections`
    if (!record.ready) return 'terminating, and others are ready'
    if (localOnly && !endpoint.local) return `on ${record.node || 'another node'}, and the policy is Local`
    if (topology === 'same-zone' && !record.zoneHints.includes(view.zone)) {
      return `meant for zone ${record.zoneHints.join(', ')}, this node is in ${view.zone}`
    }
    if (topology === 'same-node') return `meant for node ${record.nodeHints.join(', ')}`
    if (outcome.verdict !== 'forward') return `${state}, but the packet is not forwarded`
    return `${state}, but not chosen by the policy`
  }
}

function everyLocal(port: ServicePort, outcome: Outcome & { verdict: 'forward' }): boolean {
  const local = new Set(port.local.map(({ ip, port: number }) => hostPort(ip, number)))
  return outcome.endpoints.every(({ address }) => local.has(address))
}

// ---- Entries. ----

/** Those that the matched frontend needs: planned alone, and found among what the service claims. */
function entriesFor(
  stage: ExplainContext,
  view: NodeView,
  packet: Packet,
  { port, frontend }: Outcome,
  claimed: readonly Held[],
  kernel: KernelState | undefined,
): readonly EntrySummary[] {
  if (port === undefined) return []
  const { backend } = stage
  const parts = (entry: Held) => backend.parts?.(entry) ?? [entry]
  const needed =
    frontend === undefined
      ? // No port was met, only the address: what holds the address alone is what answers.
        new Set(claimed.map(({ id }) => id).filter((id) => id.endsWith(` ${packet.to}`)))
      : new Set(
          backend
            .plan({ ...port, frontends: [frontend] }, view)
            .flatMap(parts)
            .map(({ id }) => id),
        )
  return claimed
    .filter(({ id }, i) => needed.has(id) && claimed.findIndex((one) => one.id === id) === i)
    .map(({ id, kind, digest }) => ({ id, kind, digest, kernel: presence({ id, kind, digest }, kernel) }))
}
