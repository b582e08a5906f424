// The answer of `sluice status`: what is wanted, programmed and held, for services that match a filter, in an order. Pure.

import type { Mode } from '../../backend/backend.ts'
import type { BaseSummary, FamilySummary, ServiceSummary, Summary } from '../../http/admin.ts'
import type { Traffic } from '../../http/admin-traffic.ts'

export interface StatusAnswer {
  readonly node: string
  readonly mode: Mode
  /** Null if no running proxy was asked: then this is what should be programmed. */
  readonly proxy: RunningProxy | null
  readonly families: readonly FamilyStatusAnswer[]
  readonly services: readonly ServiceSummary[]
  /** What was counted for these services; null if no running proxy was asked, or if it cannot tell. */
  readonly traffic: Traffic | null
}

/** What only a running proxy can tell. */
export type RunningProxy = Omit<Summary, 'node' | 'mode' | 'families'>

export interface FamilyStatusAnswer extends Omit<FamilySummary, 'lastSync'> {
  /** Null before the first sync, and if no proxy was asked. */
  readonly lastSync: FamilySummary['lastSync'] | null
  /** What the node needs whatever services there are; null if no proxy was asked. */
  readonly base: Omit<BaseSummary, 'family'> | null
}

export interface StatusFilter {
  /** `namespace/name`; '' for all. */
  readonly service: string
  /** '' for all. */
  readonly namespace: string
  /** The services that match the label selector; undefined if there is no selector. */
  readonly selected: ReadonlySet<string> | undefined
}

export const matches = ({ service, namespace, selected }: StatusFilter, key: string): boolean =>
  (service === '' || key === service) &&
  (namespace === '' || key.startsWith(`${namespace}/`)) &&
  (selected === undefined || selected.has(key))

export const sortKeys = ['name', 'endpoints', 'ports', 'entries', 'state'] as const

export type SortKey = (typeof sortKeys)[number]

/** By name; all other orders have the largest, or the worst, first. */
export function sortServices(services: readonly ServiceSummary[], by: SortKey): readonly ServiceSummary[] {
  const rank = ranks[by]
  return [...services].sort((a, b) => rank(b) - rank(a) || compare(a.service, b.service) || a.family - b.family)
}

const compare = (a: string, b: string): number => {
  if (a === b) return 0
  return a < b ? -1 : 1
}

const ranks: Readonly<Record<SortKey, (one: ServiceSummary) => number>> = {
  name: () => 0,
  endpoints: (one) => countEndpoints(one),
  ports: ({ ports }) => ports.length,
  entries: ({ entries }) => entries,
  state: (one) => severity(one),
}

export const countEndpoints = ({ ports }: ServiceSummary): number =>
  new Set(ports.flatMap(({ endpoints }) => endpoints.map(({ address }) => address))).size

/** 0 if all is well. */
function severity(one: ServiceSummary): number {
  if (one.quarantine !== '' || one.wrong.length > 0) return 3
  if (one.lost.length > 0) return 2
  return one.pending || isIdle(one) ? 1 : 0
}

/** The service has ports, and nobody answers on any of them. */
export const isIdle = ({ ports }: ServiceSummary): boolean =>
  ports.length > 0 && ports.every(({ endpoints }) => endpoints.length === 0)

/** True if someone should look at it. */
export const isWrong = ({ proxy, families, services }: StatusAnswer): boolean =>
  families.some(({ lastSync, base }) => lastSync?.ok === false || (base?.wrong.length ?? 0) > 0) ||
  (proxy?.invalidManifests.length ?? 0) > 0 ||
  services.some((one) => one.wrong.length > 0 || one.quarantine !== '')
