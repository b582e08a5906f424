// The capacity of all nodes, as a reflector reads it: in JSON and in protobuf, heartbeats, and an API server that refuses.

import fc from 'fast-check'
import { afterEach, describe, expect, it } from 'vitest'
import { encodeBody, encodeWatchFrame } from '../../../src/apiserver/protobuf/encode-protobuf.ts'
import { NodeCapacities } from '../../../src/engine/balancing/node-capacities.ts'
import { decodeNodeCapacity } from '../../../src/kube/decode/decode-node.ts'
import { nodeCapacity } from '../../../src/kube/protobuf/message-tables.ts'
import { readMessage, UnreadBytes } from '../../../src/kube/protobuf/read-message.ts'
import { Reflector } from '../../../src/kube/reflect/reflector.ts'
import { nodeCapacities } from '../../../src/kube/reflect/watched-resources.ts'
import { createLogger, silentLogger } from '../../../src/lib/log.ts'
import { encodeDelimited } from '../../../src/lib/protobuf-writer.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { NodeCapacityRecord, Problem } from '../../../src/model/types.ts'
import { fastClock } from '../../support/fast-clock.ts'
import { until } from '../../support/until.ts'
import { clientTo, connectionTo, ScriptServer } from '../script-server.ts'

interface NodeJson {
  readonly metadata: Readonly<Record<string, unknown>>
  readonly status?: Readonly<Record<string, Readonly<Record<string, string>>>>
}

/** Field numbers of NodeStatus, as Kubernetes' descriptor has them; test/e2e compares ours with the descriptor itself. */
const statusNumbers: Readonly<Record<string, number>> = { capacity: 1, allocatable: 2 }

const encodeQuantities = (number: number, quantities: Readonly<Record<string, string>>): readonly Buffer[] =>
  Object.entries(quantities).map(([name, quantity]) => {
    const value = encodeDelimited(2, encodeDelimited(1, quantity))
    return encodeDelimited(number, Buffer.concat([encodeDelimited(1, name), value]))
  })

/** A Node with images and annotations, which are read over. */
function encodeNode({ metadata, status = {} }: NodeJson): Buffer {
  const annotations = metadata.annotations as Readonly<Record<string, string>> | undefined
  const meta = Buffer.concat([
    encodeDelimited(1, String(metadata.name)),
    encodeDelimited(6, String(metadata.resourceVersion)),
    ...Object.entries(annotations ?? { note: 'x' }).map(([name, value]) =>
      encodeDelimited(12, Buffer.concat([encodeDelimited(1, name), encodeDelimited(2, value)])),
    ),
  ])
  const fields = Object.entries(status).flatMap(([name, list]) => encodeQuantities(statusNumbers[name] as number, list))
  const images = encodeDelimited(8, encodeDelimited(1, 'registry.example/image'))
  return Buffer.concat([encodeDelimited(1, meta), encodeDelimited(3, Buffer.concat([...fields, images]))])
}

const makeNode = (name: string, version: number, cpu?: string): NodeJson => ({
  metadata: { name, resourceVersion: String(version) },
  status: {
    capacity: { cpu: '64', memory: '1Gi' },
    allocatable: { memory: '1Gi', ...(cpu === undefined ? {} : { cpu }) },
  },
})

const encodings = {
  JSON: (type: string, node: NodeJson) => JSON.stringify({ type, object: { kind: 'Node', ...node } }),
  protobuf: (type: string, node: NodeJson) =>
    encodeWatchFrame(type, encodeBody('Node', 'v1', encodeNode(node))).subarray(4),
}

const end: NodeJson = { metadata: { resourceVersion: '9', annotations: { 'k8s.io/initial-events-end': 'true' } } }

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** A reflector whose watch delivers what the test sends. */
function reflect() {
  const stop = new AbortController()
  let wake = () => {}
  const queue: (string | Buffer)[] = []
  async function* stream() {
    while (!stop.signal.aborted) {
      if (queue.length === 0) await new Promise<void>((resolve) => (wake = resolve))
      yield queue.splice(0)
    }
  }
  const calls = { changed: 0, puts: 0 }
  const capacities = new NodeCapacities(() => calls.changed++)
  const problems: Problem[] = []
  const client = { stream: async () => stream(), request: () => Promise.reject(new Error('nothing is listed')) }
  const reflector = new Reflector<NodeCapacityRecord>({
    ...nodeCapacities,
    client: client as never,
    clock: systemClock,
    log: silentLogger,
    sink: {
      put: (key, record) => {
        calls.puts++
        capacities.put(key, record)
      },
      drop: (key) => capacities.drop(key),
      synced: () => capacities.complete(),
      problem: (problem) => problems.push(problem),
    },
  })
  const running = reflector.run(stop.signal)
  cleanups.push(() => {
    stop.abort()
    wake()
    return running
  })
  const send = (...messages: readonly (string | Buffer)[]) => {
    queue.push(...messages)
    wake()
  }
  return { capacities, calls, problems, send }
}

describe.each(Object.entries(encodings))('nodes in %s', (_, encode) => {
  it('are weighed by their allocatable CPU; a heartbeat is no change, and a node that goes is forgotten', async () => {
    const { capacities, calls, problems, send } = reflect()
    send(encode('ADDED', makeNode('a', 1, '2')), encode('ADDED', makeNode('b', 2, '5890m')))
    send(encode('ADDED', makeNode('c', 3, 'four')), encode('ADDED', makeNode('d', 4)), encode('BOOKMARK', end))
    await until('the list is complete', () => calls.changed === 1)
    expect(['a', 'b', 'c', 'd'].map((name) => capacities.weightOf(name))).toEqual([4, 12, undefined, undefined])
    expect(problems).toMatchObject([{ kind: 'Node', object: 'c', field: 'status.allocatable.cpu' }])
    for (let version = 10; version < 20; version++) send(encode('MODIFIED', makeNode('a', version, '2')))
    await until('the heartbeats are read', () => calls.puts === 14)
    expect(calls.changed).toBe(1)
    send(encode('MODIFIED', makeNode('a', 20, '8')), encode('DELETED', makeNode('b', 21, '6')))
    await until('both changes are read', () => calls.changed === 3)
    expect([capacities.weightOf('a'), capacities.weightOf('b')]).toEqual([16, undefined])
  })
})

describe('the protobuf form of a node', () => {
  const quantity = fc.constantFrom('4', '3920m', '1e3', '0', '', 'x', '-1')
  const quantities = fc.dictionary(fc.constantFrom('cpu', 'memory', 'cp', 'cpus', ''), quantity, {
    noNullPrototype: true,
  })
  const node = fc.record(
    {
      metadata: fc.record({ name: fc.constantFrom('a', 'node-b'), resourceVersion: fc.constant('1') }),
      status: fc.record({ capacity: quantities, allocatable: quantities }, { requiredKeys: [] }),
    },
    { requiredKeys: ['metadata'], noNullPrototype: true },
  )

  it('gives the same record as JSON does', () => {
    fc.assert(
      fc.property(node, (json) => {
        const read = readMessage(new UnreadBytes(encodeNode(json as NodeJson)), nodeCapacity)
        expect(decodeNodeCapacity(read)).toEqual(decodeNodeCapacity(json))
      }),
    )
  })

  it('that is cut off or changed is a SyntaxError at most', () => {
    fc.assert(
      fc.property(node, fc.nat(), fc.nat({ max: 255 }), fc.nat(), (json, at, value, cut) => {
        const bytes = encodeNode(json as NodeJson)
        bytes[at % bytes.length] = value
        try {
          readMessage(new UnreadBytes(bytes, 0, cut % (bytes.length + 1)), nodeCapacity)
        } catch (error) {
          expect(error).toBeInstanceOf(SyntaxError)
        }
      }),
    )
  })
})

it('an API server that refuses the nodes is reported in one warning, which says what follows', async () => {
  const status = { kind: 'Status', status: 'Failure', reason: 'Forbidden', message: 'nodes is forbidden', code: 403 }
  const server = await new ScriptServer((response) =>
    response.writeHead(403, { 'content-type': 'application/json' }).end(JSON.stringify(status)),
  ).start()
  cleanups.push(() => server.stop())
  const lines: string[] = []
  // The client keeps its own time, so that a busy machine does not look like a server that does not answer.
  const clock = fastClock(20)
  const client = clientTo(connectionTo(server.url), systemClock)
  cleanups.push(() => client.close())
  let isSynced = false
  const sink = { put: () => {}, drop: () => {}, synced: () => (isSynced = true), problem: () => {} }
  const log = createLogger({ format: 'text', verbosity: 0, vmodule: [], write: (line) => void lines.push(line) })
  const stop = new AbortController()
  const running = new Reflector({ ...nodeCapacities, client, clock, log, sink }).run(stop.signal)
  cleanups.push(() => {
    stop.abort()
    return running
  })
  await until('it has asked several times', () => server.seen.length >= 6)
  expect(lines).toHaveLength(1)
  expect(lines[0]).toMatch(
    /Cannot read from the API server; will retry.*kind="?Node"?.*before the first answer they are equal/,
  )
  expect(isSynced).toBe(false)
})
