// Opens the history: what it listens to, how much it keeps, and its files if there are any.

import { sluiceVersion } from '../../config/sluice-version.ts'
import { History } from '../../engine/history/history.ts'
import { HistoryRecorder } from '../../engine/history/history-recorder.ts'
import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import type { DaemonContext, OpenedDaemon } from '../opened-daemon.ts'
import { DeliveredObjects } from './delivered-object.ts'
import { HistoryFile } from './history-file.ts'

export interface OpenedHistory {
  readonly history: History
  /** True while records cannot be written on disk. */
  isUnwritten(): boolean
  /** Returns a sink that lets the history know which object is delivered. */
  follow<R>(kind: string, sink: RecordSink<R>): RecordSink<R>
}

export async function openHistory({
  options,
  journal,
  savedStart,
  closers,
  name,
  log,
}: DaemonContext & Pick<OpenedDaemon, 'journal' | 'name' | 'savedStart'>): Promise<OpenedHistory> {
  const { size, maxBytes, directory } = options.sluice.history
  const history = new History({ maxRecords: size, maxBytes }, () => recorder.recordWaiting())
  const objects = new DeliveredObjects()
  const file =
    directory === '' || options.initOnly ? undefined : new HistoryFile({ directory, node: name, maxBytes, log })
  let lastSync = 0
  await file?.read((line, sync) => {
    history.add(line)
    lastSync = sync
  })
  const describeStart = () => {
    const state = savedStart.summarise()?.inUse === true ? 'the state on disk' : 'the objects of the API server'
    return `Sluice ${sluiceVersion} started in mode ${options.config.mode} with ${state}`
  }
  const recorder: HistoryRecorder = new HistoryRecorder({
    delivered: () => objects.current,
    describeStart,
    lastSync,
    // What is on disk must survive a crash.
    mayWait: file === undefined,
    onRecord(record) {
      const line = JSON.stringify(record)
      history.add(line)
      file?.append(line)
    },
  })
  journal.subscribe(recorder)
  closers.push(async () => file?.close())
  return { history, isUnwritten: () => file?.hasFailed === true, follow: (kind, sink) => objects.follow(kind, sink) }
}
