// The watch of all nodes exists only while weights follow from it, and a change of a node touches only the services that depend on it.

import { describe, expect, it } from 'vitest'
import { NodeCapacity } from '../../../src/daemon/resilience/node-capacity.ts'
import { SyncJournal } from '../../../src/engine/journal.ts'
import { Store } from '../../../src/engine/store.ts'
import type { RecordSink } from '../../../src/kube/reflect/change-filter.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import type { NodeCapacityRecord, ServiceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function open(weights: 'none' | 'node-capacity' = 'none') {
  const clock = new FakeClock()
  const journal = new SyncJournal({ log: silentLogger })
  const causes: string[] = []
  journal.subscribe({ cause: (family, kind, _, text) => causes.push(`${family} ${kind} ${text}`) })
  const store = new Store({ families: [4, 6], clock, journal })
  const watches: { sink: RecordSink<NodeCapacityRecord>; until: AbortSignal; resource: string; selector: unknown }[] =
    []
  const settings: { weights: string } = { weights }
  const capacity = new NodeCapacity({
    settings: settings as never,
    reflect: ({ resource, fieldSelector }, sink, until) =>
      watches.push({ sink, until, resource, selector: fieldSelector }),
    journal,
    clock,
    log: silentLogger,
  })
  const touched: string[] = []
  const touch = (key: string, family: 4 | 6) => touched.push(`${family} ${key}`)
  capacity.follow({
    store: Object.assign(Object.create(store), {
      records: () => store.records(),
      service: (key: string) => store.service(key),
      slicesOf: (key: string, family: 4 | 6) => store.slicesOf(key, family),
      touch,
    }),
    families: [4, 6],
  })
  const services = capacity.readServices(store.services)
  const put = (name: string, nodes: readonly string[], given: Partial<ServiceRecord> = {}, weight?: number) => {
    services.put(`ns/${name}`, service({ key: `ns/${name}`, ...given }))
    const endpoints = nodes.map((node, i) => endpoint(`10.0.0.${i + 1}`, node))
    const record = slice(endpoints, {
      key: `ns/${name}-a`,
      service: `ns/${name}`,
      ...(weight === undefined ? {} : { weight }),
    })
    store.slices.put(record.key, record)
  }
  const weigh = (name: string) => {
    const record = store.service(`ns/${name}`) as ServiceRecord
    const found = capacity.weigh(record, store.slicesOf(`ns/${name}`, 4), 4)
    return found && Object.fromEntries(found.byNode)
  }
  const setNode = (name: string, milliCpu: number | undefined) => watches.at(-1)?.sink.put(name, { name, milliCpu })
  const complete = (nodes: Readonly<Record<string, number>>) => {
    for (const [name, milliCpu] of Object.entries(nodes)) setNode(name, milliCpu)
    watches.at(-1)?.sink.synced()
  }
  return { capacity, settings, clock, watches, touched, causes, services, put, weigh, setNode, complete }
}

const wanting = { nodeCapacity: true }

describe('the watch of all nodes', () => {
  it('is not there while nothing wants it, and neither is a timer', () => {
    const { put, watches, clock, weigh } = open()
    put('plain', ['a'])
    put('weighted', ['a'], { weights: { a: 3 } })
    expect([watches.length, clock.armed, weigh('plain')]).toEqual([0, 0, undefined])
  })

  it('is there while a service wants it, and asks for all nodes', () => {
    const { put, services, watches } = open()
    put('one', ['a'], wanting)
    put('two', ['a'], wanting)
    expect(watches).toMatchObject([{ resource: '/api/v1/nodes', selector: undefined }])
    put('one', ['a'])
    expect(watches[0]?.until.aborted).toBe(false)
    services.drop('ns/two')
    expect([watches.length, watches[0]?.until.aborted]).toEqual([1, true])
    put('one', ['a'], wanting)
    expect(watches.map(({ until }) => until.aborted)).toEqual([true, false])
  })

  it('is there while the settings want it, also after a change of them', () => {
    const { capacity, settings, watches } = open('node-capacity')
    expect(watches).toHaveLength(1)
    settings.weights = 'none'
    capacity.update()
    expect(watches[0]?.until.aborted).toBe(true)
    settings.weights = 'node-capacity'
    capacity.update()
    expect(watches).toHaveLength(2)
    capacity.close()
    expect(watches[1]?.until.aborted).toBe(true)
  })

  it('leaves weights equal until the list is complete, and when it has ended', async () => {
    const { put, weigh, setNode, complete, watches, clock, touched } = open()
    put('one', ['a', 'b'], wanting)
    setNode('a', 6_000)
    await clock.advance(1_000)
    expect([weigh('one'), touched]).toEqual([undefined, []])
    complete({ b: 2_000 })
    expect(weigh('one')).toEqual({ a: 12, b: 4 })
    const [first] = watches
    put('one', ['a', 'b'])
    put('one', ['a', 'b'], wanting)
    expect(weigh('one')).toBeUndefined()
    // What the watch that ended still delivers is not used.
    first?.sink.put('a', { name: 'a', milliCpu: 1_000 })
    expect(clock.armed).toBe(0)
  })
})

describe('a change of a node', () => {
  it('touches the services that want weights and have endpoints there, once for changes at one time', async () => {
    const { put, complete, setNode, clock, touched, causes } = open()
    put('here', ['a', 'b'], wanting)
    put('elsewhere', ['c'], wanting)
    put('plain', ['a'])
    complete({ a: 2_000, b: 2_000, c: 2_000 })
    await clock.advance(100)
    expect(touched.splice(0)).toEqual(['4 ns/here', '4 ns/elsewhere'])
    setNode('a', 8_000)
    setNode('b', 8_000)
    await clock.advance(100)
    expect(touched.splice(0)).toEqual(['4 ns/here'])
    expect(causes).toEqual(['4 capacity a, b, c', '4 capacity a, b'])
    setNode('d', 8_000)
    await clock.advance(100)
    expect([touched, causes.length]).toEqual([[], 2])
  })

  it('that is only a heartbeat touches nothing, and arms no timer', async () => {
    const { put, complete, setNode, clock, touched } = open()
    put('here', ['a'], wanting)
    complete({ a: 2_000 })
    await clock.advance(100)
    touched.splice(0)
    setNode('a', 2_000)
    setNode('a', 2_010)
    expect([clock.armed, touched]).toEqual([0, []])
  })

  it('touches all services but those with weights of their own if the settings want weights', async () => {
    const { put, complete, clock, touched, weigh } = open('node-capacity')
    put('plain', ['a'])
    put('weighted', ['a'], { weights: { a: 3 } })
    put('slice', ['a'], {}, 5)
    put('both', ['a'], { weights: { a: 3 }, nodeCapacity: true })
    complete({ a: 2_000 })
    await clock.advance(100)
    expect(touched).toEqual(['4 ns/plain', '4 ns/both'])
    expect(['plain', 'weighted', 'slice', 'both'].map(weigh)).toEqual([{ a: 4 }, undefined, undefined, { a: 4 }])
  })

  it('that makes it unknown leaves the others as they are', async () => {
    const { put, complete, setNode, clock, touched, weigh } = open()
    put('here', ['a', 'b'], wanting)
    complete({ a: 2_000, b: 6_000 })
    await clock.advance(100)
    setNode('a', undefined)
    await clock.advance(100)
    expect([touched.length, weigh('here')]).toEqual([2, { b: 12 }])
  })
})
