// Prints what weights by node capacity cost: reading 5,000 Nodes and their heartbeats, and finding the services that a change touches.

import { encodeBody, encodeWatchFrame } from '../src/apiserver/protobuf/encode-protobuf.ts'
import { NodeCapacity } from '../src/daemon/resilience/node-capacity.ts'
import { SyncJournal } from '../src/engine/journal.ts'
import { Store } from '../src/engine/store.ts'
import { ChangeFilter, type RecordSink } from '../src/kube/reflect/change-filter.ts'
import { parseEvent } from '../src/kube/reflect/watch-messages.ts'
import { nodeCapacities } from '../src/kube/reflect/watched-resources.ts'
import { silentLogger } from '../src/lib/log.ts'
import { encodeDelimited } from '../src/lib/protobuf-writer.ts'
import { systemClock } from '../src/lib/time.ts'
import type { NodeCapacityRecord } from '../src/model/types.ts'
import { endpoint, service, slice } from '../test/support/builders.ts'

const nodes = 5_000
const services = 10_000
const endpointsPerService = 10

const nodeName = (i: number): string => `node-${String(i % nodes).padStart(4, '0')}`

/** A Node with fifty images, as a kubelet reports them, in protobuf. */
function encodeEvent(i: number, version: number, cpu: string): Buffer {
  const quantity = Buffer.concat([encodeDelimited(1, 'cpu'), encodeDelimited(2, encodeDelimited(1, cpu))])
  const images = Array.from({ length: 50 }, (_, n) =>
    encodeDelimited(8, encodeDelimited(1, `registry.example.com/team/image-${n}@sha256:${'0'.repeat(64)}`)),
  )
  const labels = Array.from({ length: 15 }, (_, n) =>
    encodeDelimited(11, Buffer.concat([encodeDelimited(1, `example.com/label-${n}`), encodeDelimited(2, 'value')])),
  )
  const metadata = Buffer.concat([encodeDelimited(1, nodeName(i)), encodeDelimited(6, String(version)), ...labels])
  const status = Buffer.concat([encodeDelimited(1, quantity), encodeDelimited(2, quantity), ...images])
  const node = Buffer.concat([encodeDelimited(1, metadata), encodeDelimited(3, status)])
  return encodeWatchFrame('MODIFIED', encodeBody('Node', 'v1', node)).subarray(4)
}

const readHeap = (): number => {
  globalThis.gc?.()
  return process.memoryUsage().heapUsed
}

function time(run: () => void): number {
  const before = process.cpuUsage()
  run()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

const journal = new SyncJournal({ log: silentLogger })
const store = new Store({ families: [4], clock: systemClock, journal })
let sink: RecordSink<NodeCapacityRecord> | undefined
let due = () => {}
const clock = {
  now: () => systemClock.now(),
  // Time stands still, so that the pass over the services is made at once and can be measured.
  monotonic: () => 0,
  after: (_: number, run: () => void) => {
    due = run
    return { cancel: () => {} }
  },
}
const capacity = new NodeCapacity({
  settings: { weights: 'node-capacity' },
  reflect: (_, given) => {
    sink = given
  },
  journal,
  clock,
  log: silentLogger,
})
for (let i = 0; i < services; i++) {
  const key = `ns/service-${i}`
  store.services.put(key, service({ key, clusterIps: [`172.${16 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`] }))
  const endpoints = Array.from({ length: endpointsPerService }, (_, n) =>
    endpoint(`10.${i >> 8}.${i & 255}.${n}`, nodeName(i * 7 + n * 31)),
  )
  store.slices.put(`${key}-a`, slice(endpoints, { key: `${key}-a`, service: key }))
}
store.drainPending(4)
capacity.follow({ store, families: [4] })
if (sink === undefined) throw new Error('the settings do not start the watch')
const filter = new ChangeFilter(nodeCapacities, sink)
const read = (messages: readonly Buffer[]) => {
  for (const message of messages) filter.put(parseEvent(message, nodeCapacities.protobuf).object)
}
const countTouched = () => [...new Set(store.drainPending(4).services())].length

const list = Array.from({ length: nodes }, (_, i) => encodeEvent(i, i + 1, i % 2 === 0 ? '3920m' : '7910m'))
const heartbeats = Array.from({ length: nodes }, (_, i) =>
  encodeEvent(i, nodes + i + 1, i % 2 === 0 ? '3920m' : '7910m'),
)
const before = readHeap()
const listMs = time(() => read(list))
const heap = readHeap() - before
sink.synced()
const firstMs = time(() => due())
const first = countTouched()
due = () => {}
const heartbeatMs = time(() => read(heartbeats))
const touchedByHeartbeats = countTouched()
read([encodeEvent(1, 3 * nodes, '16')])
const changeMs = time(() => due())
const touched = countTouched()

process.stdout.write(
  [
    `${nodes} Nodes of ${list[0]?.length} bytes, ${services} services with ${endpointsPerService} endpoints each`,
    `the list: ${listMs.toFixed(0)} ms of CPU, ${(heap / nodes).toFixed(0)} bytes of heap per Node`,
    `the first pass over the services: ${firstMs.toFixed(0)} ms, ${first} services planned again`,
    `a heartbeat: ${((1000 * heartbeatMs) / nodes).toFixed(0)} µs; ${nodes} of them: ${touchedByHeartbeats} services planned again`,
    `a change of one Node: ${changeMs.toFixed(1)} ms, ${touched} services planned again`,
    '',
  ].join('\n'),
)
