// The admin socket: a running proxy answers questions as JSON, and streams events, over a unix socket that only its owner may open.
// This file has the types of the answers and the routes; admin-listener.ts listens, the daemon computes the answers, and admin-client.ts
// asks for them.

import type { DriftReason, Mode, Presence, Settings } from '../backend/backend.ts'
import type { Conflict, Counters, SyncCause } from '../engine/journal.ts'
import type { Family } from '../lib/ip.ts'
import type { ServiceLimits } from '../model/limits.ts'
import type { Reason } from '../model/packet.ts'
import type {
  Algorithm,
  Disposition,
  Frontend,
  NodeView,
  Protocol,
  ServiceRecord,
  SliceRecord,
} from '../model/types.ts'
import { type FlowAnswers, makeFlowRoutes } from './admin-flows.ts'
import { type HistoryAnswers, makeHistoryRoutes } from './admin-history.ts'
import { replyJson, streamJson } from './admin-replies.ts'
import { makeSampleRoutes, type SampleSource } from './admin-samples.ts'
import { makeTraceRoutes, type TraceAnswers } from './admin-trace.ts'
import type { TrafficAnswers } from './admin-traffic.ts'
import type { Exchange } from './routing.ts'

export interface ProxyIdentity {
  readonly node: string
  readonly mode: Mode
  readonly pid: number
  readonly version: string
  /** RFC 3339; '' for a proxy that does not run. */
  readonly startedAt: string
}

export interface Summary extends ProxyIdentity {
  readonly services: number
  readonly families: readonly FamilySummary[]
  readonly conflicts: readonly Conflict[]
  readonly quarantined: readonly QuarantineSummary[]
  /** The last changes of our rules by other programs, newest first. */
  readonly drifts: readonly DriftSummary[]
  /** Everything that is wrong now in the files of `sluice up --manifests`. */
  readonly invalidManifests: readonly InvalidManifest[]
  /** Newest first. */
  readonly reports: readonly ReportSummary[]
  readonly counters: Readonly<Counters>
  /** Null if no state is kept on disk. */
  readonly savedState: SavedStateSummary | null
  /** The connections that the kernel tracks and its limit; undefined if the kernel tracks none. */
  readonly connections: { readonly tracked: number; readonly limit: number } | undefined
}

/** The state that is kept on disk for a start without the API server. */
export interface SavedStateSummary {
  readonly path: string
  /** True while the proxy serves the saved state, because the API server has not sent its own. */
  readonly inUse: boolean
  /** RFC 3339: when the state was last that of the API server; null before the first write. */
  readonly savedAt: string | null
  /** Why the state is not saved, or not used; '' if all is well. */
  readonly problem: string
}

export interface FamilySummary {
  readonly family: Family
  /** Equal on two nodes that should do the same for every service. */
  readonly stateHash: string
  /** The number of entries that the services need. */
  readonly entries: number
  readonly lastSync: ReportSummary | undefined
}

export interface DriftSummary {
  readonly family: Family
  /** RFC 3339. */
  readonly at: string
  readonly reason: DriftReason
  /** The program if the kernel names it, and what it changed if that is known. For people. */
  readonly culprit: string
}

/** One problem in a file of manifests. The objects of the last valid content of the file stay. */
export interface InvalidManifest {
  readonly file: string
  /** 0 if the problem is not in a line. */
  readonly line: number
  /** '' if the problem is not in a field. */
  readonly field: string
  readonly message: string
}

export interface ReportSummary {
  readonly family: Family
  /** RFC 3339. */
  readonly startedAt: string
  /** Why there was a sync. */
  readonly causes: readonly SyncCause[]
  readonly durationMs: number
  readonly full: boolean
  readonly ok: boolean
  readonly error: string
  readonly put: number
  readonly dropped: number
  readonly held: number
  readonly services: readonly string[]
  readonly refused: readonly { readonly service: string; readonly id: string; readonly error: string }[]
}

export interface QuarantineSummary {
  readonly service: string
  readonly family: Family
  readonly error: string
  readonly attempts: number
  /** RFC 3339. */
  readonly since: string
  readonly retryAt: string
  readonly entries: readonly string[]
}

export interface ServiceSummary {
  readonly service: string
  readonly family: Family
  readonly ports: readonly PortSummary[]
  /** A change waits for a sync. */
  readonly pending: boolean
  readonly entries: number
  /** How many of the entries are in which state in the kernel now; absent if the kernel was not asked. */
  readonly inKernel?: Readonly<Record<Presence, number>> | undefined
  /** One sentence per entry that is missing or different in the kernel. */
  readonly wrong: readonly string[]
  /** Addresses that an older service holds: `10.0.0.1:80/tcp (ns/older)`. */
  readonly lost: readonly string[]
  readonly quarantine: string
}

/** What a node needs in one family whatever services there are. */
export interface BaseSummary extends Pick<ServiceSummary, 'family' | 'entries' | 'inKernel' | 'wrong'> {}

/** What is wanted, compared with what the kernel holds. */
export interface Comparison {
  readonly base: readonly BaseSummary[]
  readonly services: readonly ServiceSummary[]
}

export interface PortSummary {
  readonly name: string
  readonly protocol: Protocol
  readonly frontends: readonly FrontendSummary[]
  readonly internal: Disposition
  readonly external: Disposition
  /** The usable endpoints. */
  readonly endpoints: readonly EndpointSummary[]
  /** Endpoints that are left out for a while, because connections to them fail: `10.0.0.1:80: why`. */
  readonly ejected: readonly string[]
  /** Until when external traffic is forwarded to other nodes although the policy is Local; '' if it is not. */
  readonly drainingUntil: string
  /** 0 if there is no affinity. */
  readonly affinitySeconds: number
  /** How an endpoint is chosen; absent if the mode chooses as it does by itself. */
  readonly algorithm?: Algorithm
}

export interface FrontendSummary {
  readonly kind: Frontend['kind']
  /** '' for a node port. */
  readonly ip: string
  readonly port: number
  /** Where clients reach it: `10.96.0.1:443`, `:30080` on addresses of the node; '' for nowhere. */
  readonly answersAt: string
}

export interface EndpointSummary {
  /** `10.1.0.11:8080`. */
  readonly address: string
  /** True if the endpoint is on this node. */
  readonly local: boolean
  /** Absent if it is 1. */
  readonly weight?: number
  /** Only for a weight that is not from annotations: from its node, or from the smallest node if its own is not known. */
  readonly weightFrom?: 'node-capacity' | 'smallest-node'
  /** Only for a new endpoint in a slow start: the percentage of its share that it gets now. */
  readonly startingPercent?: number
}

export interface Question {
  /** `10.96.0.10:53/udp`, `:30080`, `namespace/name[:port]` or a DNS name. */
  readonly target: string
  /** An address, `node`, or '' for the node itself. */
  readonly from: string
}

export interface Explanation {
  readonly node: string
  readonly mode: Mode
  readonly packet: {
    readonly from: string
    readonly to: string
    readonly port: number
    readonly protocol: Protocol
    readonly origin: 'pod' | 'node' | 'outside'
  }
  readonly verdict: 'forward' | 'reject' | 'drop' | 'pass'
  /** '' if the packet is forwarded. */
  readonly reason: Reason | ''
  /** `ns/name:port`, '' if the packet is for no service. */
  readonly service: string
  readonly frontend: string
  readonly steps: readonly string[]
  readonly endpoints: readonly EndpointCandidate[]
  readonly affinitySeconds: number
  /** True if every endpoint sees this node instead of the client; null if that is unknown. */
  readonly snat: boolean | null
  /** True if only a pod that reaches itself sees this node instead of the client. */
  readonly hairpin: boolean
  readonly entries: readonly EntrySummary[]
  /** Sentences about conflicts, quarantine and pending changes. */
  readonly remarks: readonly string[]
}

export interface EndpointCandidate {
  readonly address: string
  readonly node: string
  /** Between 0 and 1; 0 if the endpoint is not used. */
  readonly probability: number
  /** True if the endpoint sees this node instead of the client; null if that is unknown. */
  readonly snat: boolean | null
  /** Why the endpoint is used or not. */
  readonly why: string
}

export interface EntrySummary {
  readonly kind: string
  /** As the program names it that lists the entry: `chain service-ABC`. */
  readonly name: string
  readonly content: string
  /** A shell command that shows the entry on the node; '' if there is none. */
  readonly command: string
  readonly kernel: Presence
}

/** Everything that planning needs, so that another process can compute what a change would do. */
export interface Inputs {
  readonly identity: ProxyIdentity
  readonly settings: Settings
  /** A service beyond them is not programmed. */
  readonly limits: ServiceLimits
  readonly views: readonly NodeView[]
  readonly nodeAddresses: readonly string[]
  /** True if nothing says how the proxy of that node detects the traffic of its pods. */
  readonly podsUnknown?: boolean
  readonly services: readonly ServiceRecord[]
  readonly slices: readonly SliceRecord[]
}

/** An object of the API that the proxy may read. */
export interface ObjectQuestion {
  /** `services`, `endpointslices`, `namespaces` or `pods`. */
  readonly resource: string
  /** '' for a namespace. */
  readonly namespace: string
  readonly name: string
}

export interface ObjectAnswer {
  /** undefined if there is none. */
  readonly object?: unknown
  /** Why the API server could not be asked. */
  readonly unknown?: string
}

/** The number of connections from a service port to an endpoint. */
export interface Connections {
  readonly service: string
  readonly endpoint: string
  readonly count: number
}

/** How many of the last syncs changed a service. The first sync, which programs every service, does not count. */
export interface ChangeCount {
  readonly service: string
  readonly count: number
}

export type AdminEvent =
  | { readonly kind: 'sync'; readonly report: ReportSummary }
  | { readonly kind: 'conflict' | 'resolved'; readonly conflict: Conflict }
  | { readonly kind: 'drift'; readonly drift: DriftSummary }
  | { readonly kind: 'manifests'; readonly invalid: readonly InvalidManifest[] }
  | { readonly kind: 'problem'; readonly object: string; readonly message: string }

/** What the socket needs from the process that it belongs to. */
export interface AdminAnswers extends HistoryAnswers, SampleSource, TrafficAnswers {
  summary(): Summary
  /** Describes one service, or all if `service` is ''. With `kernel`, compares their entries with the kernel. */
  services(service: string, kernel: boolean): Promise<readonly ServiceSummary[]>
  /** As `services`, with what the node needs whatever services there are. */
  comparison(service: string, kernel: boolean): Promise<Comparison>
  /** The services that match a label selector, as `namespace/name`. */
  select(labelSelector: string): Promise<readonly string[]>
  explain(question: Question): Promise<readonly Explanation[]>
  inputs(): Inputs
  /** Reads an object from the API server. */
  object(question: ObjectQuestion): Promise<ObjectAnswer>
  connections(): Promise<readonly Connections[]>
  changes(): readonly ChangeCount[]
  /** The last syncs that changed the service, newest first. */
  reports(service: string): readonly ReportSummary[]
  subscribe(listener: (event: AdminEvent) => void): () => void
  readonly flows: FlowAnswers
  readonly traces: TraceAnswers
}

export function makeAdminRoutes(answers: AdminAnswers) {
  const answer = (compute: (exchange: Exchange) => unknown) => (exchange: Exchange) =>
    replyJson(exchange, () => compute(exchange))
  return {
    '/v1/summary': answer(() => answers.summary()),
    '/v1/services': answer(({ query }) => answers.services(query.get('service') ?? '', query.get('kernel') === '1')),
    '/v1/comparison': answer(({ query }) =>
      answers.comparison(query.get('service') ?? '', query.get('kernel') === '1'),
    ),
    '/v1/select': answer(({ query }) => answers.select(query.get('selector') ?? '')),
    '/v1/explain': answer(({ query }) =>
      answers.explain({ target: query.get('target') ?? '', from: query.get('from') ?? '' }),
    ),
    '/v1/inputs': answer(() => answers.inputs()),
    '/v1/object': answer(({ query }) =>
      answers.object({
        resource: query.get('resource') ?? '',
        namespace: query.get('namespace') ?? '',
        name: query.get('name') ?? '',
      }),
    ),
    '/v1/connections': answer(() => answers.connections()),
    '/v1/changes': answer(() => answers.changes()),
    '/v1/reports': answer(({ query }) => answers.reports(query.get('service') ?? '')),
    '/v1/traffic': answer(({ query }) => answers.traffic(query.get('service') ?? '')),
    ...makeHistoryRoutes(answers, answer),
    ...makeSampleRoutes(answers, answer),
    '/v1/events': (exchange: Exchange) => streamJson<AdminEvent>(exchange, (send) => answers.subscribe(send)),
    ...makeFlowRoutes(answers.flows),
    ...makeTraceRoutes(answers.traces),
  }
}
