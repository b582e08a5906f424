// Tests that a namespace with very many events does not keep those of others waiting, and that no event is lost by it.

import fc from 'fast-check'
import { afterEach, describe, expect, it } from 'vitest'
import { DeferredEvents, readInTurns } from '../../../src/kube/reflect/deferred-events.ts'
import type { ReflectorOptions } from '../../../src/kube/reflect/reflector.ts'
import { nextTurn } from '../../../src/lib/time.ts'
import { until } from '../../support/until.ts'
import { bookmark } from '../fake-api.ts'
import { ReflectorHarness } from '../reflector-harness.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** Short events of one namespace that are not held back. */
const prompt = 127

const shiftAll = (deferred: DeferredEvents): string[] => {
  const all: string[] = []
  for (let one = deferred.shift(); one !== undefined; one = deferred.shift()) all.push(String(one))
  return all
}

/** Holds events of these namespaces back from now on. */
function flooded(...namespaces: readonly string[]): { deferred: DeferredEvents; clock: { now: number } } {
  const clock = { now: 0 }
  const deferred = new DeferredEvents({ monotonic: () => clock.now })
  for (const namespace of namespaces) for (let i = 0; i < prompt; i++) deferred.take(namespace, `n${i}`, '')
  return { deferred, clock }
}

describe('events of a namespace that has very many', () => {
  it('are held back after the first ones of a second, also if they are few and long; others are not', () => {
    const { deferred, clock } = flooded()
    const taken = Array.from({ length: 200 }, (_, i) => deferred.take('many', `n${i}`, 'short'))
    expect(taken.indexOf(true)).toBe(prompt)
    expect(deferred.take('long', 'a', 'x'.repeat(250 << 10))).toBe(false)
    expect(deferred.take('long', 'b', 'x'.repeat(250 << 10))).toBe(true)
    expect(deferred.take('other', 'a', 'x')).toBe(false)
    expect(deferred.take('huge', 'a', 'x'.repeat(300 << 10))).toBe(false)
    shiftAll(deferred)
    clock.now = 1000
    expect(deferred.take('many', 'n0', 'short')).toBe(false)
  })

  it('wait as long as one of them waits: no event overtakes another of its object', () => {
    const { deferred, clock } = flooded('ns')
    expect(deferred.take('ns', 'a', 'first')).toBe(true)
    clock.now = 5000
    expect(deferred.take('ns', 'a', 'second')).toBe(true)
    expect(shiftAll(deferred)).toEqual(['second'])
    expect(deferred.take('ns', 'a', 'third')).toBe(false)
  })

  it('take turns with those of another such namespace', () => {
    const { deferred } = flooded('x', 'y')
    for (const name of ['1', '2', '3']) deferred.take('x', name, `x${name}`)
    deferred.take('y', '1', 'y1')
    expect(shiftAll(deferred)).toEqual(['x1', 'y1', 'x2', 'x3'])
    expect(deferred.isEmpty).toBe(true)
  })

  it('use a bounded amount of memory: a repeated object counts once, and a frame does not keep its buffer', () => {
    const { deferred } = flooded('ns')
    const chunk = Buffer.alloc(200 << 10)
    for (let i = 0; i < 100; i++) deferred.take('ns', 'same', chunk)
    expect(deferred.isFull).toBe(false)
    deferred.take('ns', 'part', chunk.subarray(0, 10))
    deferred.shift()
    expect((deferred.shift() as Buffer).buffer.byteLength).toBeLessThan(chunk.length)
    for (let i = 0; i < 21; i++) deferred.take('ns', `n${i}`, 'x'.repeat(200 << 10))
    expect(deferred.isFull).toBe(true)
    shiftAll(deferred)
    expect(deferred.isFull).toBe(false)
  })

  it('end with the last event of every object, in whichever order they are applied', () => {
    const event = fc.record({ namespace: fc.constantFrom('x', 'y'), name: fc.constantFrom('a', 'b', 'c') })
    const step = fc.oneof(
      { weight: 5, arbitrary: event },
      fc.constant('apply' as const),
      fc.integer({ min: 1, max: 900 }),
    )
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const { deferred, clock } = flooded('x')
        const [applied, wanted] = [new Map<string, string>(), new Map<string, string>()]
        const apply = (text: string) => applied.set(text.slice(0, 3), text)
        const take = ({ namespace, name }: { namespace: string; name: string }, i: number) => {
          const text = `${namespace}/${name} ${i}`
          wanted.set(text.slice(0, 3), text)
          if (!deferred.take(namespace, name, text)) apply(text)
        }
        for (const [i, one] of steps.entries()) {
          if (typeof one === 'number') clock.now += one
          else if (one === 'apply') for (const text of [deferred.shift() ?? []].flat()) apply(String(text))
          else take(one, i)
        }
        for (const text of shiftAll(deferred)) apply(text)
        expect(applied).toEqual(wanted)
      }),
    )
  })
})

describe('reading in turns', () => {
  const batchesOf = (list: readonly string[][], wait: () => Promise<void>) =>
    (async function* () {
      for (const batch of list) {
        yield batch
        await wait()
      }
    })()

  it('offers time while no batch is there and events are held back, and none otherwise', async () => {
    const state = { isEmpty: true, isOverdue: false }
    const turns = async () => {
      for (let i = 0; i < 3; i++) await nextTurn()
    }
    const read: (readonly unknown[] | undefined)[] = []
    for await (const batch of readInTurns(batchesOf([['a'], ['b'], ['c']], turns), state)) {
      read.push(batch)
      if (batch?.[0] === 'b') state.isEmpty = false
      if (batch === undefined) state.isEmpty = true
    }
    expect(read).toEqual([['a'], ['b'], undefined, ['c']])
  })

  it('takes turns with batches that are there if events have been held back for long', async () => {
    const state = { isEmpty: false, isOverdue: true }
    const read: (readonly unknown[] | undefined)[] = []
    for await (const batch of readInTurns(
      batchesOf([['a'], ['b']], async () => {}),
      state,
    ))
      read.push(batch)
    expect(read).toEqual([['a'], undefined, ['b'], undefined])
  })
})

describe('a reflector', () => {
  const makeLine = (type: string, [namespace, name]: readonly [string, string], version: number) =>
    JSON.stringify({
      type,
      object: { metadata: { namespace, name, resourceVersion: String(version) }, value: version },
    })
  const flood = (type: string, count: number, version: number) =>
    Array.from({ length: count }, (_, i) => makeLine(type, ['many', `n${i}`], version + i))
  const emptySnapshot = [bookmark(100, true)]

  /** A reflector whose first watch has these batches, and all later ones an empty snapshot. */
  const reflect = (...batches: readonly (readonly string[])[]) => reflectWith({}, ...batches)

  function reflectWith(
    more: Partial<ReflectorOptions<number>>,
    ...batches: readonly (readonly string[])[]
  ): ReflectorHarness {
    let watches = 0
    const client: ReflectorOptions<number>['client'] = {
      request: () => Promise.reject(new Error('nothing is listed')),
      async stream({ signal }) {
        const isFirst = watches++ === 0
        const made = (async function* () {
          yield* isFirst ? batches : [emptySnapshot]
          await new Promise((resolve) => signal?.addEventListener('abort', resolve))
        })()
        // A generator that waits cannot be ended; a stream can.
        const end = async () => ({ done: true, value: undefined }) as const
        return { next: () => made.next(), return: end, [Symbol.asyncIterator]: () => made }
      },
    }
    const made = new ReflectorHarness('http://127.0.0.1:9', 1, { client, ...more })
    cleanups.push(() => made.stop())
    return made
  }

  it('delivers a change of one namespace before thousands of another that came first', async () => {
    const made = reflect(emptySnapshot, [...flood('ADDED', 3000, 200), makeLine('ADDED', ['other', 'one'], 5000)])
    await until('all objects', () => made.state.size === 3001)
    expect(made.calls.indexOf('put other/one=5000')).toBeLessThan(200)
    expect(made.duplicates).toEqual([])
    expect(made.reflector.status().resourceVersion).toBe('5000')
  })

  /** In the form of the API server, in which the object can be seen without reading all of the message. */
  const makeApiLine = (name: string, version: number, rest = `"value":${version}`) =>
    `{"type":"ADDED","object":{"kind":"Thing","apiVersion":"v1","metadata":{"name":"${name}","namespace":"many","uid":"u","resourceVersion":"${version}"},${rest}}}`
  const apiFlood = (count: number, version: number) =>
    Array.from({ length: count }, (_, i) => makeApiLine(`n${i}`, version + i))

  it('reads events that follow others of their namespace when it applies them, and only the last one of an object', async () => {
    const other = makeLine('ADDED', ['other', 'one'], 9000)
    // Messages that nothing follows would be reported as malformed if they were read.
    const superseded = Array.from({ length: 50 }, (_, i) => makeApiLine('n999', 7000 + i, 'not JSON'))
    const made = reflect(emptySnapshot, [...apiFlood(1000, 200), ...superseded, makeApiLine('n999', 8000), other])
    await until('all objects', () => made.state.size === 1001)
    expect(made.calls.indexOf('put other/one=9000')).toBeLessThan(200)
    expect(made.state.get('many/n999')).toBe(8000)
    expect(made.problems).toEqual([])
    expect(made.reflector.status().resourceVersion).toBe('9000')
  })

  it('asks for a snapshot if an event that it held back cannot be read: the watch has gone on', async () => {
    const made = reflect(emptySnapshot, [...apiFlood(1000, 200), makeApiLine('bad', 8000, 'not JSON')])
    await until('another snapshot, which has none of them', () => made.calls.includes('drop many/n0'))
    expect(made.state.size).toBe(0)
  })

  it('decodes a large event in steps, once, whether it is held back or not', async () => {
    const decoded: string[] = []
    const decodeInSteps: NonNullable<ReflectorOptions<number>['decodeInSteps']> = function* (json) {
      const { metadata, value } = json as { metadata: { namespace: string; name: string }; value: number }
      yield
      decoded.push(metadata.name)
      return { key: `${metadata.namespace}/${metadata.name}`, record: value, problems: [] }
    }
    const filler = `"filler":"${'x'.repeat(300 << 10)}"`
    const prompt = makeApiLine('prompt', 150, `"value":150,${filler}`)
    const late = makeApiLine('late', 8000, `"value":8000,${filler}`)
    const made = reflectWith({ decodeInSteps }, emptySnapshot, [prompt], [...apiFlood(1000, 200), late])
    await until('all objects', () => made.state.size === 1002)
    expect(decoded).toEqual(['prompt', 'late'])
    expect([made.state.get('many/prompt'), made.state.get('many/late')]).toEqual([150, 8000])
  })

  it('applies what it holds back before it goes on with another connection', async () => {
    const failed = { type: 'ERROR', object: { kind: 'Status', status: 'Failure', code: 500, reason: 'InternalError' } }
    const events = [...flood('ADDED', 2000, 200), ...flood('DELETED', 1000, 3000)]
    const made = reflect(emptySnapshot, [...events, JSON.stringify(failed)])
    await until('another snapshot, which has none of them', () => made.calls.includes('drop many/n1999'))
    expect(made.duplicates).toEqual([])
    expect(made.calls.indexOf('put many/n1999=2199')).toBeLessThan(made.calls.indexOf('drop many/n1999'))
    expect(made.calls.indexOf('put many/n1999=2199')).toBeGreaterThan(0)
    expect(made.calls).not.toContain('put many/n500=700')
  })
})
