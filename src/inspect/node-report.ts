// What a proxy publishes about itself for `sluice nodes`: one short JSON text in an annotation of a Lease. Pure.

import type { Family } from '../lib/ip.ts'

export const reportAnnotation = 'sluice/report'

export interface NodeReport {
  readonly apiVersion: 'sluice/v1'
  readonly kind: 'NodeReport'
  readonly node: string
  readonly version: string
  readonly mode: string
  /** RFC 3339. */
  readonly startedAt: string
  /** RFC 3339: when this was written. */
  readonly reportedAt: string
  readonly intervalSeconds: number
  readonly families: readonly FamilyReport[]
  /** How many services the proxy knows. */
  readonly services: number
  readonly failedSyncs: number
  readonly quarantined: number
  readonly conflicts: number
  readonly drifts: number
  readonly invalidManifests: number
  /** How long the API server had not sent anything. */
  readonly apiServerSilentSeconds: number
  /** The format of the snapshots; only equal formats can be compared. */
  readonly digestFormat: number
  /** Newest first, at most two: all nodes take them at the same times, and at least one time is common to all that report. */
  readonly snapshots: readonly ObjectsSnapshot[]
}

export interface FamilyReport {
  readonly family: Family
  /** Equal on two nodes that should do the same for every service. */
  readonly stateHash: string
  /** RFC 3339, '' before the first sync. */
  readonly lastSync: string
  /** '' if the last sync succeeded. */
  readonly error: string
}

/** The objects that a proxy has programmed at one time. */
export interface ObjectsSnapshot {
  /** RFC 3339. */
  readonly at: string
  /** Equal if all services and their endpoints are equal. */
  readonly hash: string
  /** From two of them the services that differ can be read. */
  readonly sketch: string
}

const maxText = 300

/** Returns undefined if the text is not a report. Every node writes its own, so nothing in it is trusted. */
export function parseNodeReport(text: string): NodeReport | undefined {
  if (text.length > 64_000) return undefined
  try {
    const given = JSON.parse(text) as Record<string, unknown>
    if (given.apiVersion !== 'sluice/v1' || given.kind !== 'NodeReport') return undefined
    return {
      apiVersion: 'sluice/v1',
      kind: 'NodeReport',
      node: readText(given.node),
      version: readText(given.version),
      mode: readText(given.mode),
      startedAt: readTime(given.startedAt),
      reportedAt: readTime(given.reportedAt),
      intervalSeconds: readNumber(given.intervalSeconds),
      families: readList(given.families, 2).map(parseFamily),
      services: readNumber(given.services),
      failedSyncs: readNumber(given.failedSyncs),
      quarantined: readNumber(given.quarantined),
      conflicts: readNumber(given.conflicts),
      drifts: readNumber(given.drifts),
      invalidManifests: readNumber(given.invalidManifests),
      apiServerSilentSeconds: readNumber(given.apiServerSilentSeconds),
      digestFormat: readNumber(given.digestFormat),
      snapshots: readList(given.snapshots, 2).map(parseSnapshot),
    }
  } catch {
    return undefined
  }
}

const parseFamily = (given: Record<string, unknown>): FamilyReport => ({
  family: given.family === 6 ? 6 : 4,
  stateHash: readText(given.stateHash),
  lastSync: readTime(given.lastSync),
  error: readText(given.error),
})

const parseSnapshot = (given: Record<string, unknown>): ObjectsSnapshot => ({
  at: readTime(given.at),
  hash: readText(given.hash),
  sketch: typeof given.sketch === 'string' ? given.sketch : '',
})

function readList(value: unknown, most: number): readonly Record<string, unknown>[] {
  if (!Array.isArray(value)) return []
  return value
    .slice(0, most)
    .map((one) => (typeof one === 'object' && one !== null ? (one as Record<string, unknown>) : {}))
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed.
const controls = /[\x00-\x1f\x7f-\x9f]/g

/** Control characters would be commands to the terminal of the person who reads the table. */
const readText = (value: unknown): string =>
  typeof value === 'string' ? value.slice(0, maxText).replace(controls, ' ') : ''

const readTime = (value: unknown): string =>
  typeof value === 'string' && !Number.isNaN(Date.parse(value)) ? readText(value) : ''

const readNumber = (value: unknown): number => (typeof value === 'number' && Number.isFinite(value) ? value : 0)
