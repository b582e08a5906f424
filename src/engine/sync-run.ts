// The state of one sync while it runs, and the report that it becomes. No I/O.

import type { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'
import { TimeSlice } from '../lib/yielding.ts'
import type { RefusedService, SyncReport } from './journal.ts'
import type { Planner } from './planner.ts'

export interface SyncRun {
  readonly slice: TimeSlice
  readonly signal: AbortSignal
  full: boolean
  unfinished: boolean
  put: number
  dropped: number
  figures: Readonly<Record<string, number>>
  readonly refused: RefusedService[]
}

/** What a lane adds to the report of a sync. */
export interface LaneFigures
  extends Pick<SyncReport, 'backend' | 'family' | 'held' | 'services' | 'triggers' | 'udpChanged'> {
  readonly noLocal: ReturnType<Planner['noLocal']>
}

export function beginRun(clock: Clock, signal: AbortSignal, waitForTurn: () => Promise<void>): SyncRun {
  const slice = new TimeSlice(clock, async () => {
    await waitForTurn()
    signal.throwIfAborted()
  })
  return { slice, signal, full: false, unfinished: false, put: 0, dropped: 0, figures: {}, refused: [] }
}

export function makeReport(
  run: SyncRun,
  begun: Pick<SyncReport, 'startedAt' | 'durationMs' | 'causes'>,
  { error, noLocal, ...figures }: LaneFigures & { readonly error: ProxyError | undefined },
): SyncReport {
  return {
    ...figures,
    ...begun,
    full: run.full,
    ...(run.unfinished ? { unfinished: true } : {}),
    ok: error === undefined,
    ...(error === undefined ? {} : { error }),
    put: run.put,
    dropped: run.dropped,
    refused: run.refused,
    noLocal: noLocal.ports,
    noLocalServices: noLocal.services,
    figures: run.figures,
  }
}
