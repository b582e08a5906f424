// Measures the history: the time that recording adds to a change, and the memory of an hour at 50 changes per second. The heap is
// measured only with `npx tsx --expose-gc bench/observability.ts history`.

import { History } from '../src/engine/history/history.ts'
import { type DeliveredObject, HistoryRecorder } from '../src/engine/history/history-recorder.ts'
import { SyncJournal, type SyncReport } from '../src/engine/journal.ts'
import { readOrigin } from '../src/kube/reflect/object-origin.ts'
import { silentLogger } from '../src/lib/log.ts'
import { endpoint, slice } from '../test/support/builders.ts'

const services = 10_000
const changesPerSecond = 50
const limits = { maxRecords: 5_000, maxBytes: 4 << 20 }

/** The metadata of a slice as the API server sends it, with two managers. */
const json = {
  metadata: {
    resourceVersion: '123456789',
    managedFields: [
      { manager: 'kube-controller-manager', operation: 'Update', time: '2026-11-17T03:12:07Z', fieldsV1: {} },
      { manager: 'kubectl-client-side-apply', operation: 'Update', time: '2026-11-16T03:12:07Z', fieldsV1: {} },
    ],
  },
}

/** The slice of a service with ten endpoints, one of which changes at each turn. */
function sliceOf(service: number, turn: number) {
  const key = `namespace-${service % 100}/service-${service}`
  const network = `10.${service >> 8}.${service & 255}`
  const endpoints = Array.from({ length: 9 }, (_, i) => endpoint(`${network}.${i}`, `node-${i}`))
  const changing = endpoint(`${network}.${100 + (turn % 100)}`, 'node-9')
  return slice([...endpoints, changing], { key: `${key}-abcde`, service: key, port: 8080, name: 'http' })
}

function makeReport(names: readonly string[], startedAt: number): SyncReport {
  const entries = names.flatMap((name) => [
    { id: `frontend ${name} 10.96.0.10 tcp 80`, before: '0a1b2c3d', after: '4e5f6071' },
    { id: `hairpins ${name} 10.1.2.3 tcp 8080`, before: '', after: '4e5f6071' },
    { id: `hairpins ${name} 10.1.2.4 tcp 8080`, before: '0a1b2c3d', after: '' },
  ])
  return {
    backend: 'nftables',
    family: 4,
    startedAt,
    durationMs: 0.8,
    full: false,
    ok: true,
    causes: ['change'],
    put: 2 * names.length,
    dropped: names.length,
    entries: entries.slice(0, 100),
    held: 4 * services,
    services: names,
    refused: [],
    triggers: [],
    noLocal: { internal: 0, external: 0 },
    noLocalServices: { internal: 0, external: 0 },
    udpChanged: false,
    figures: {},
  }
}

interface Course {
  readonly history: History
  readonly microsecondsPerChange: number
  readonly heapBytes: number
}

/** Records so many changes, `batch` of them per sync. Without a recorder the same journal has no listener. */
function record(changes: number, batch: number, isRecorded: boolean): Course {
  const history = new History(limits)
  const journal = new SyncJournal({ log: silentLogger })
  let delivered: DeliveredObject | undefined
  const recorder = new HistoryRecorder({
    delivered: () => delivered,
    describeStart: () => '',
    onRecord: (one) => history.add(JSON.stringify(one)),
  })
  if (isRecorded) journal.subscribe(recorder)
  const before = measureHeap()
  let spent = 0
  for (let at = 0; at < changes; at += batch) {
    const names: string[] = []
    for (let i = at; i < at + batch; i++) {
      const old = sliceOf(i % services, i)
      const changed = {
        ...old,
        endpoints: [...[...old.endpoints].slice(0, 9), [...sliceOf(i % services, i + 1).endpoints][9]!],
      }
      names.push(old.service)
      const started = performance.now()
      delivered = { kind: 'EndpointSlice', key: old.key, readOrigin: () => readOrigin(json, false) }
      journal.object({ kind: 'EndpointSlice', key: old.key, before: old, after: changed })
      delivered = undefined
      spent += performance.now() - started
    }
    const report = makeReport(names, 1_794_885_127_000 + at)
    const started = performance.now()
    journal.drained(4)
    journal.report(report)
    spent += performance.now() - started
  }
  return { history, microsecondsPerChange: (1000 * spent) / changes, heapBytes: measureHeap() - before }
}

function measureHeap(): number {
  globalThis.gc?.()
  globalThis.gc?.()
  return process.memoryUsage().heapUsed
}

const mib = (bytes: number): string => `${(bytes / (1 << 20)).toFixed(1)} MiB`

export function measureHistory(): readonly string[] {
  record(20_000, 1, true) // The first changes run code that is not compiled yet.
  const hour = 3600 * changesPerSecond
  return [
    [1, 'each in a sync of its own'],
    [changesPerSecond, 'one sync per second'],
  ].flatMap(([batch, words]) => {
    const [without, with_] = [record(hour, Number(batch), false), record(hour, Number(batch), true)]
    const added = with_.microsecondsPerChange - without.microsecondsPerChange
    const { size, bytes } = with_.history
    return [
      `history of an hour, ${changesPerSecond} changes per second, ${words}: ${size} records, ${mib(bytes)} of lines, ` +
        `${mib(with_.heapBytes - without.heapBytes)} of heap; ${added.toFixed(1)} µs per change`,
    ]
  })
}
