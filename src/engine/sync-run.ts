// The state of one sync while it runs, and the report that it becomes. No I/O.

import type { Changes, Held } from '../backend/backend.ts'
import type { Ledger } from '../backend/ledger.ts'
import type { ProxyError } from '../lib/errors.ts'
import { hashText } from '../lib/set-sketch.ts'
import type { Clock } from '../lib/time.ts'
import { TimeSlice } from '../lib/yielding.ts'
import type { EntryWrite } from './history/history-record.ts'
import type { RefusedService, SyncCause, SyncReport } from './journal.ts'
import type { Planner } from './planner.ts'

export interface SyncRun {
  readonly slice: TimeSlice
  readonly signal: AbortSignal
  readonly causes: readonly SyncCause[]
  full: boolean
  unfinished: boolean
  put: number
  dropped: number
  /** The first of the entries that were put or dropped. */
  readonly entries: EntryWrite[]
  figures: Readonly<Record<string, number>>
  readonly refused: RefusedService[]
}

/** What a lane adds to the report of a sync. */
export interface LaneFigures
  extends Pick<SyncReport, 'backend' | 'family' | 'held' | 'services' | 'triggers' | 'udpChanged'> {
  readonly noLocal: ReturnType<Planner['noLocal']>
  readonly error: ProxyError | undefined
}

export function beginRun(
  clock: Clock,
  signal: AbortSignal,
  causes: readonly SyncCause[],
  waitForTurn: () => Promise<void>,
): SyncRun {
  const slice = new TimeSlice(clock, async () => {
    await waitForTurn()
    signal.throwIfAborted()
  })
  const figures = { put: 0, dropped: 0, entries: [], figures: {}, refused: [] }
  return { slice, signal, causes, full: false, unfinished: false, ...figures }
}

/** True if the target has nothing to do. For other causes than changes it may have to repair or to repeat something by itself. */
export const isNothingToWrite = ({ full, causes }: SyncRun, { put, drop }: Changes<Held>): boolean =>
  !full && put.length + drop.length === 0 && causes.length > 0 && causes.every((cause) => cause === 'change')

const idleCauses: readonly SyncCause[] = ['change', 'node', 'period']

/** True if nothing was written, and nothing was observed or repeated. */
const isIdle = ({ full, unfinished, put, dropped, refused, causes }: SyncRun): boolean =>
  !full &&
  !unfinished &&
  put + dropped + refused.length === 0 &&
  causes.length > 0 &&
  causes.every((cause) => idleCauses.includes(cause))

/** Names every field: there is a report for each change, and copies of whole objects would be most of its cost. */
export function makeReport(
  run: SyncRun,
  begun: Pick<SyncReport, 'startedAt' | 'durationMs'>,
  lane: LaneFigures,
): SyncReport {
  const { error, noLocal } = lane
  const report: { -readonly [F in keyof SyncReport]: SyncReport[F] } = {
    backend: lane.backend,
    family: lane.family,
    startedAt: begun.startedAt,
    durationMs: begun.durationMs,
    full: run.full,
    ok: error === undefined,
    causes: run.causes,
    put: run.put,
    dropped: run.dropped,
    entries: run.entries,
    held: lane.held,
    services: lane.services,
    refused: run.refused,
    triggers: lane.triggers,
    noLocal: noLocal.ports,
    noLocalServices: noLocal.services,
    udpChanged: lane.udpChanged,
    figures: run.figures,
  }
  if (error !== undefined) report.error = error
  if (run.unfinished) report.unfinished = true
  if (error === undefined && isIdle(run)) report.idle = true
  return report
}

/** Entries that a report names. */
const maxEntries = 100

/** Counts what the target wrote, and names the first of it. Called before the ledger settles: it knows what was there before. */
export function noteWritten(
  run: SyncRun,
  { put, drop }: Changes<Held>,
  ledger: Pick<Ledger<Held>, 'lastWritten' | 'vanished'>,
  refused: ReadonlySet<string>,
): void {
  run.put += put.length
  run.dropped += drop.length
  for (const held of ledger.vanished()) {
    if (run.entries.length < maxEntries) run.entries.push(describeWrite(held.id, held, undefined))
  }
  for (const entry of put) {
    if (run.entries.length >= maxEntries) return
    if (!refused.has(entry.id)) run.entries.push(describeWrite(entry.id, ledger.lastWritten(entry.id), entry))
  }
  for (const { id } of drop) {
    if (run.entries.length >= maxEntries) return
    if (!refused.has(id)) run.entries.push(describeWrite(id, ledger.lastWritten(id), undefined))
  }
}

const describeWrite = (id: string, before: Held | undefined, after: Held | undefined): EntryWrite => ({
  id,
  before: before === undefined ? '' : hashDigest(before.digest),
  after: after === undefined ? '' : hashDigest(after.digest),
})

/** Some modes cannot read what an entry contains that another process wrote. */
const hashDigest = (digest: string): string =>
  digest === '' ? 'unknown' : hashText(digest).toString(16).padStart(8, '0')
