// The history of a proxy: the last syncs with their causes and effects, and the answers to questions about them. No I/O.

import { ProxyError } from '../../lib/errors.ts'
import { compareTimes, type HistoryDifference } from './compare-times.ts'
import type { HistoryRecord } from './history-record.ts'
import { HistoryRing, type RingLimits } from './history-ring.ts'

export interface HistoryQuestion {
  /** `namespace/name`; '' for all services. */
  readonly service: string
  /** Unix ms: only syncs that began at this time or later; 0 for all. */
  readonly since: number
  /** Only syncs before this one; 0 for all. */
  readonly beforeSync: number
  /** Only syncs after this one; 0 for all. */
  readonly afterSync: number
  readonly limit: number
}

export interface HistoryAnswer {
  /** The oldest sync that is remembered; null if none is. */
  readonly oldest: { readonly sync: number; readonly at: string } | null
  /** Newest first. */
  readonly records: readonly HistoryRecord[]
  /** True if older syncs match and were left out because of the limit. */
  readonly truncated: boolean
}

export interface DifferenceAnswer extends HistoryDifference {
  /** The last sync before the first point, and the last sync up to the second point; 0 if there is none. */
  readonly from: number
  readonly to: number
}

/** A point of the history: after a sync, or at a time in Unix ms. */
export type HistoryPoint = { readonly sync: number } | { readonly time: number }

export class History {
  readonly #lines: HistoryRing
  readonly #addWaiting: () => void

  /** `addWaiting` is called before anything is read: it adds the records that wait. */
  constructor(limits: RingLimits, addWaiting: () => void = () => {}) {
    this.#lines = new HistoryRing(limits)
    this.#addWaiting = addWaiting
  }

  get size(): number {
    return this.#ring.size
  }

  get bytes(): number {
    return this.#ring.bytes
  }

  get #ring(): HistoryRing {
    this.#addWaiting()
    return this.#lines
  }

  /** Adds a record as its line of JSON. */
  add(line: string): void {
    this.#lines.push(line)
  }

  list({ service, since, beforeSync, afterSync, limit }: HistoryQuestion): HistoryAnswer {
    const oldest = this.#ring.oldest()
    const records: HistoryRecord[] = []
    let truncated = false
    for (const record of this.#ring.newestFirst()) {
      if (record.sync <= afterSync || Date.parse(record.at) < since) break
      if (beforeSync !== 0 && record.sync >= beforeSync) continue
      if (service !== '' && !concerns(record, service)) continue
      truncated = records.length >= limit
      if (truncated) break
      records.push(record)
    }
    return { oldest: oldest === undefined ? null : { sync: oldest.sync, at: oldest.at }, records, truncated }
  }

  /** Throws a ProxyError 'question' if the first point is after the second. */
  compare(from: HistoryPoint, to: HistoryPoint, service: string): DifferenceAnswer {
    const oldest = this.#ring.oldest()
    const between: HistoryRecord[] = []
    let [first, last] = [0, 0]
    for (const record of this.#ring.newestFirst()) {
      if (!isUpTo(record, to)) continue
      if (last === 0) last = record.sync
      if (isUpTo(record, from)) {
        first = record.sync
        break
      }
      between.unshift(record)
    }
    if (isAfter(from, to)) throw new ProxyError('question', 'the first point of the difference is after the second')
    const difference = compareTimes(between)
    return {
      ...(service === '' ? difference : selectService(difference, between, service)),
      from: first,
      to: last,
      gaps: [...describeReach(first, oldest), ...difference.gaps],
    }
  }
}

const isUpTo = ({ sync, at, durationMs }: HistoryRecord, point: HistoryPoint): boolean =>
  'sync' in point ? sync <= point.sync : Date.parse(at) + durationMs <= point.time

const isAfter = (from: HistoryPoint, to: HistoryPoint): boolean =>
  ('sync' in from && 'sync' in to && from.sync > to.sync) || ('time' in from && 'time' in to && from.time > to.time)

/** True if the sync may have changed the service: a sync that compared everything concerns all services. */
function concerns(record: HistoryRecord, service: string): boolean {
  const { services, moreServices, objects, moreObjects, notes, refused } = record
  if (services.includes(service) || moreServices > 0 || moreObjects > 0) return true
  if (objects.some((one) => one.service === service || one.service === '')) return true
  if (refused.some((one) => one.service === service)) return true
  return notes.some((one) => one.service === service || one.service === '')
}

/** Entries have no service, so that those of syncs that changed the service stay. */
function selectService(
  difference: HistoryDifference,
  records: readonly HistoryRecord[],
  service: string,
): HistoryDifference {
  const ids = new Set(
    records.filter((record) => concerns(record, service)).flatMap(({ entries }) => entries.map(({ id }) => id)),
  )
  return {
    ...difference,
    services: difference.services.filter((one) => one.service === service || one.service === ''),
    entries: difference.entries.filter(({ id }) => ids.has(id)),
  }
}

const describeReach = (first: number, oldest: HistoryRecord | undefined): readonly string[] => {
  if (first !== 0) return []
  if (oldest === undefined) return ['no sync is recorded']
  return [`the history reaches back to sync ${oldest.sync} at ${oldest.at}; what changed before that is not recorded`]
}
