// Computes what is different between two points of the history, from the records in between: the changes of each part follow each other,
// so that the first value before and the last value after remain. Pure.

import type { Family } from '../../lib/ip.ts'
import type { EntryWrite, HistoryRecord, PartChange } from './history-record.ts'

export interface HistoryDifference {
  /** The syncs whose changes are compared: after the first up to the last. */
  readonly syncs: number
  /** The services whose frontends, endpoints or settings differ, by name. */
  readonly services: readonly ChangedService[]
  readonly entries: readonly EntryDifference[]
  /** How often another program changed our rules in between, and a sync repaired them. */
  readonly repairs: number
  /** Sentences that say what is not known; empty if the difference is complete. */
  readonly gaps: readonly string[]
}

export interface ChangedService {
  readonly service: string
  readonly parts: readonly PartChange[]
}

export interface EntryDifference extends EntryWrite {
  readonly family: Family
}

interface Values {
  readonly before: string
  after: string
}

/** `records` are those after the first point up to the second, oldest first. */
export function compareTimes(records: readonly HistoryRecord[]): HistoryDifference {
  const objects = new Map<string, { service: string; parts: Map<string, Values> }>()
  const entries = new Map<string, EntryWrite & { family: Family; after: string }>()
  const seen = new Set<string>()
  let repairs = 0
  for (const record of records) {
    if (record.notes.some(({ kind }) => kind === 'drift')) repairs++
    for (const { kind, name, service, resourceVersion, action, parts } of record.objects) {
      // A change of a dual-stack service is in the records of both families.
      const once = `${kind} ${name} ${resourceVersion} ${action}`
      if (kind === 'Service' && resourceVersion !== '' && seen.has(once)) continue
      seen.add(once)
      addParts(objects, `${kind} ${name} ${service}`, service, parts)
    }
    for (const entry of record.entries) addEntry(entries, record, entry)
  }
  return {
    syncs: records.length,
    services: foldServices(objects.values()),
    entries: [...entries.values()].filter(({ before, after }) => before !== after),
    repairs,
    gaps: findGaps(records),
  }
}

function addParts(
  objects: Map<string, { service: string; parts: Map<string, Values> }>,
  key: string,
  service: string,
  parts: readonly PartChange[],
): void {
  const object = objects.get(key) ?? { service, parts: new Map<string, Values>() }
  objects.set(key, object)
  for (const { part, before, after } of parts) {
    const values = object.parts.get(part)
    if (values === undefined) object.parts.set(part, { before, after })
    else values.after = after
  }
}

function addEntry(
  entries: Map<string, EntryWrite & { family: Family; after: string }>,
  { family }: HistoryRecord,
  { id, before, after }: EntryWrite,
): void {
  const known = entries.get(`${family} ${id}`)
  if (known !== undefined) known.after = after
  else entries.set(`${family} ${id}`, { family, id, before, after })
}

/** Joins the objects of each service. An endpoint that moved from one slice to another is not a difference. */
function foldServices(
  objects: Iterable<{ readonly service: string; readonly parts: ReadonlyMap<string, Values> }>,
): readonly ChangedService[] {
  const services = new Map<string, PartChange[]>()
  for (const { service, parts } of objects) {
    const list = services.get(service) ?? []
    services.set(service, list)
    for (const [part, { before, after }] of parts) if (before !== after) list.push({ part, before, after })
  }
  return [...services]
    .map(([service, parts]) => ({ service, parts: cancelMoves(parts) }))
    .filter(({ parts }) => parts.length > 0)
    .sort((a, b) => (a.service < b.service ? -1 : 1))
}

function cancelMoves(parts: readonly PartChange[]): readonly PartChange[] {
  const joined = new Map<string, PartChange>()
  for (const change of parts) {
    const { part, before, after } = change
    const other = joined.get(part)
    if (other === undefined) joined.set(part, change)
    else if (other.after === '' && before === '') joined.set(part, { part, before: other.before, after })
    else if (other.before === '' && after === '') joined.set(part, { part, before, after: other.after })
    else joined.set(part, change)
  }
  return [...joined.values()].filter(({ before, after }) => before !== after)
}

function findGaps(records: readonly HistoryRecord[]): readonly string[] {
  return records.flatMap((record) => {
    const { sync, moreObjects, objects, put, dropped, entries, notes } = record
    const moreParts = objects.reduce((sum, one) => sum + one.moreParts, 0)
    const gaps: string[] = []
    if (moreObjects > 0) gaps.push(`sync ${sync} took over ${moreObjects} more changed objects that are not recorded`)
    if (moreParts > 0) gaps.push(`sync ${sync} changed ${moreParts} more parts of objects that are not recorded`)
    if (put + dropped > entries.length)
      gaps.push(`sync ${sync} wrote ${put + dropped - entries.length} more entries that are not recorded`)
    if (notes.some(({ kind }) => kind === 'start'))
      gaps.push(`the proxy started with sync ${sync}: how objects changed while it did not run is not recorded`)
    return gaps
  })
}
