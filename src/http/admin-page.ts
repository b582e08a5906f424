// What the server of the dashboard sends to its page: the types only, so that both sides agree.

import type { AdminEvent, Comparison, FamilySummary, ProxyIdentity, ReportSummary, Summary } from './admin.ts'
import type { FlowCoverage, FlowEvent, FlowSummary } from './admin-flows.ts'
import type { Sample } from './admin-samples.ts'

/** How the page writes commands, so that they work where the dashboard runs. */
export interface PageAbout {
  /** `sluice`, or a path. */
  readonly program: string
  /** The flags that choose the proxy: `--socket FILE`, `--node NAME`. */
  readonly flags: readonly string[]
  /** The flags that choose the cluster; null if the fleet cannot be shown. */
  readonly fleetFlags: readonly string[] | null
  /** True if there is a proxy to show, and not only a fleet. */
  readonly hasProxy: boolean
  readonly version: string
}

/** What the first page shows, without its plots. */
export interface Overview extends ProxyIdentity {
  /** Differs if the list of services may differ. */
  readonly revision: string
  readonly services: number
  readonly families: readonly FamilySummary[]
  readonly conflicts: Summary['conflicts']
  readonly quarantined: Summary['quarantined']
  readonly drifts: Summary['drifts']
  readonly counters: Summary['counters']
  readonly connections: { readonly tracked: number; readonly limit: number } | null
  readonly savedState: Summary['savedState']
  /** Newest first, the last few. */
  readonly reports: readonly ReportSummary[]
  /** The worst first. */
  readonly problems: readonly PageProblem[]
}

export interface PageProblem {
  readonly level: 'error' | 'warning'
  readonly text: string
}

/** One service in the list: all its ports and families together. */
export interface ServiceRow {
  readonly name: string
  /** Where clients reach it; the first few. */
  readonly addresses: readonly string[]
  /** How many more addresses there are. */
  readonly moreAddresses: number
  readonly ports: number
  /** The different endpoints of all ports. */
  readonly endpoints: number
  /** How many of them are on this node. */
  readonly local: number
  readonly state: ServiceState
  /** Why the state is not `ok`; '' if it is. */
  readonly note: string
}

export type ServiceState = 'ok' | 'pending' | 'empty' | 'ejected' | 'conflict' | 'wrong' | 'quarantined'

export interface ServiceList {
  readonly revision: string
  readonly rows: readonly ServiceRow[]
}

/** The number of connections that the kernel tracks now, per service port and endpoint. */
export interface PageConnections {
  readonly at: number
  readonly counts: readonly { readonly service: string; readonly endpoint: string; readonly count: number }[]
}

export interface ServicePage {
  readonly name: string
  readonly comparison: Comparison
}

/** A message of the stream of server-sent events. */
export type PageMessage =
  | { readonly kind: 'overview'; readonly overview: Overview }
  | { readonly kind: 'samples'; readonly samples: readonly Sample[] }
  | { readonly kind: 'event'; readonly at: number; readonly event: AdminEvent }
  /** The proxy cannot be asked; the last answers stay. */
  | { readonly kind: 'gone'; readonly message: string }

/** A message of the stream of flows: first those that there are, then each that begins or ends. */
export type FlowMessage =
  | { readonly kind: 'flows'; readonly flows: readonly FlowSummary[]; readonly coverage: FlowCoverage }
  | FlowEvent
  | { readonly kind: 'failed'; readonly message: string }
