// Explains every endpoint of a service port, used or not: its share of the connections, and why it is used or left out. Pure.

import type { EndpointCandidate } from '../http/admin.ts'
import { hostPort } from '../lib/ip.ts'
import { applyWeights, type Candidate, candidatesOf, slicesOf, type Topology, topologyOf } from '../model/endpoints.ts'
import type { Outcome } from '../model/packet.ts'
import type { Endpoint, NodeView, ServicePort } from '../model/types.ts'
import { shareOf, startSteps } from '../model/weights.ts'
import type { Desired } from './dry-run.ts'

interface EndpointContext {
  readonly desired: Pick<Desired, 'store'>
}

type MatchedOutcome = Outcome & { readonly port: ServicePort }

export interface ExplainedEndpoints {
  /** Sentences about topology hints, for the steps of the explanation. */
  readonly topology: readonly string[]
  readonly endpoints: readonly EndpointCandidate[]
}

export function explainEndpoints(
  { desired }: EndpointContext,
  view: NodeView,
  outcome: MatchedOutcome,
): ExplainedEndpoints {
  const { port } = outcome
  const slices = slicesOf(port.service, desired.store.slicesOf(port.service, view.family), view)
  const rules = desired.store.service(port.service)?.weights
  const candidates = applyWeights(candidatesOf(slices, port.portName, port.protocol, view), rules)
  const chosen = new Map(
    outcome.verdict === 'forward' ? outcome.endpoints.map((endpoint) => [endpoint.address, endpoint]) : [],
  )
  const usable = new Map(
    [...port.cluster, ...port.local].map((endpoint) => [hostPort(endpoint.ip, endpoint.port), endpoint]),
  )
  const share = (address: string) => {
    const endpoint = usable.get(address)
    return endpoint === undefined ? 0 : shareOf(endpoint, port)
  }
  const total = [...chosen.keys()].reduce((sum, address) => sum + share(address), 0)
  const circumstances = circumstancesOf(view, outcome, candidates)
  const ejected = new Map(port.ejected?.map(({ address, why }) => [address, why]))
  return {
    topology: topologySteps(view, circumstances.topology, candidates),
    endpoints: candidates.map((candidate) => {
      const address = addressOf(candidate)
      const endpoint = chosen.get(address)
      const reason = {
        candidate,
        used: endpoint !== undefined,
        ejected: ejected.get(address),
        usable: usable.get(address),
      }
      return {
        address,
        node: candidate.record.node,
        probability: endpoint === undefined || total === 0 ? 0 : share(address) / total,
        snat: endpoint?.snat ?? false,
        why: reasonFor({ ...circumstances, ...reason }),
      }
    }),
  }
}

const addressOf = ({ endpoint }: Candidate): string => hostPort(endpoint.ip, endpoint.port)

function topologySteps(view: NodeView, topology: Topology, candidates: readonly Candidate[]): readonly string[] {
  if (topology === 'same-node') return [`Every ready endpoint has a node hint: only those for ${view.name} are used.`]
  if (topology === 'same-zone') return [`Every ready endpoint has a zone hint: only those for ${view.zone} are used.`]
  const ready = candidates.filter(({ record }) => record.ready)
  const hinted = ready.filter(({ record }) => record.zoneHints.length + record.nodeHints.length > 0)
  if (hinted.length === 0) return []
  return hinted.length < ready.length
    ? ['Some ready endpoints have no topology hint, so hints are not followed: any endpoint may answer.']
    : [`No topology hint is for this node (zone "${view.zone}"), so hints are not followed: any endpoint may answer.`]
}

/** What is the same for all endpoints of one packet. */
interface Circumstances {
  readonly view: NodeView
  readonly topology: Topology
  /** The traffic policy left only endpoints of this node. */
  readonly localOnly: boolean
  readonly forwarded: boolean
}

function circumstancesOf(view: NodeView, outcome: MatchedOutcome, candidates: readonly Candidate[]): Circumstances {
  return {
    view,
    topology: topologyOf(candidates, view),
    localOnly: outcome.verdict === 'drop' || usesOnlyLocal(outcome),
    forwarded: outcome.verdict === 'forward',
  }
}

function usesOnlyLocal(outcome: MatchedOutcome): boolean {
  if (outcome.verdict !== 'forward' || outcome.endpoints.length === 0) return false
  const local = new Set(outcome.port.local.map(({ ip, port }) => hostPort(ip, port)))
  return outcome.endpoints.every(({ address }) => local.has(address))
}

interface EndpointCase extends Circumstances {
  readonly candidate: Candidate
  readonly used: boolean
  /** Why the endpoint is left out for a while; undefined if it is not. */
  readonly ejected: string | undefined
  /** The endpoint as the service port has it; undefined if the policies leave it out. */
  readonly usable: Endpoint | undefined
}

interface ReasonRule {
  readonly applies: (endpoint: EndpointCase) => boolean
  readonly reason: (endpoint: EndpointCase) => string
}

const isReady = ({ candidate }: EndpointCase): boolean => candidate.record.ready

const isDraining = ({ candidate }: EndpointCase): boolean => candidate.record.serving && candidate.record.terminating

/** The first rule that applies gives the reason. */
const reasonRules: readonly ReasonRule[] = [
  {
    applies: ({ used, ejected }) => !used && ejected !== undefined,
    reason: ({ ejected }) => `ejected for a while: ${ejected}`,
  },
  { applies: (one) => one.used && !isReady(one), reason: () => 'draining; no endpoint is ready' },
  { applies: (one) => one.used && one.candidate.endpoint.local, reason: () => 'ready, on this node' },
  { applies: (one) => one.used, reason: () => 'ready' },
  {
    applies: (one) => !isReady(one) && !isDraining(one),
    reason: ({ candidate }) => `${candidate.record.terminating ? 'terminating' : 'not ready'}: gets no new connections`,
  },
  { applies: (one) => !isReady(one), reason: () => 'terminating, and other endpoints are ready' },
  {
    applies: ({ localOnly, candidate }) => localOnly && !candidate.endpoint.local,
    reason: ({ candidate }) => `on ${candidate.record.node || 'another node'}, and the policy is Local`,
  },
  {
    applies: ({ topology, candidate, view }) =>
      topology === 'same-zone' && !candidate.record.zoneHints.includes(view.zone),
    reason: ({ candidate, view }) =>
      `hinted for zone ${candidate.record.zoneHints.join(', ')}, this node is in ${view.zone}`,
  },
  {
    applies: ({ topology }) => topology === 'same-node',
    reason: ({ candidate }) => `hinted for node ${candidate.record.nodeHints.join(', ')}`,
  },
  { applies: ({ forwarded }) => !forwarded, reason: () => 'ready, but the packet is not forwarded' },
  {
    applies: ({ usable, candidate }) => usable === undefined && candidate.endpoint.weight === 0,
    reason: () => 'weight 0: gets no new connections',
  },
  {
    applies: ({ usable }) => usable !== undefined,
    reason: () => 'ready, but consistent hashing chooses another endpoint for this client',
  },
]

const reasonFor = (endpoint: EndpointCase): string =>
  (reasonRules.find(({ applies }) => applies(endpoint))?.reason(endpoint) ?? 'ready, but not chosen by the policy') +
  (endpoint.used ? describeShare(endpoint.usable) : '')

function describeShare({ weight = 1, weightFrom, startStep }: Partial<Endpoint> = {}): string {
  const weighted = weight === 1 && weightFrom === undefined ? '' : `, weight ${weight}${describeSource(weightFrom)}`
  return startStep === undefined ? weighted : `${weighted}, new: gets ${startStep}/${startSteps} of its share so far`
}

/** The source of a weight that is not from annotations. */
function describeSource(from: Endpoint['weightFrom']): string {
  if (from === undefined) return ''
  return from === 'node-capacity'
    ? ' by the capacity of its node'
    : ' as the smallest node has, since the capacity of its own is not known'
}
