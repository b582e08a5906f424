// Versions, history, group commit, and failed writes of the registry.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Change } from '../../../src/apiserver/store/collection.ts'
import { Registry } from '../../../src/apiserver/store/registry.ts'
import { createMemoryLog, openLog, type WriteAheadLog } from '../../../src/apiserver/store/write-ahead-log.ts'
import { folder } from '../test-server.ts'

const thing = (name: string, value: unknown, namespace = 'default') => ({ metadata: { name, namespace }, value })
const valuesOf = (registry: Registry) =>
  [...registry.list('things')].map(({ object }) => [(object.metadata as { name: string }).name, object.value])

describe('the registry', () => {
  it('gives every change the next version, and publishes it only when it is on disk', async () => {
    const steps: string[] = []
    let release = () => {}
    const slow: WriteAheadLog = {
      ...createMemoryLog(),
      append: () =>
        new Promise((resolve) => {
          release = resolve
        }),
    }
    const registry = new Registry({ writeAheadLog: slow })
    registry.subscribe('things', (changes) => steps.push(`published ${changes.map(({ version }) => version).join()}`))
    const first = registry.put('things', thing('a', 1))
    const settled = registry.settled().then(() => steps.push('settled'))
    registry.put('things', thing('b', 2))
    await new Promise((resolve) => setImmediate(resolve))
    expect(steps).toEqual([])
    expect(registry.version).toBe(1)
    release()
    await settled
    expect(steps).toEqual(['published 2,3', 'settled'])
    expect([first.version, registry.version, registry.head]).toEqual([2, 3, 3])
  })

  it('undoes changes in reverse order when they cannot be written, and continues', async () => {
    let broken = false
    const errors: unknown[] = []
    const writeAheadLog: WriteAheadLog = {
      ...createMemoryLog(),
      append: async () => {
        if (broken) throw new Error('disk full')
      },
    }
    const registry = new Registry({ writeAheadLog, onStorageError: (error) => errors.push(error) })
    const published: Change[] = []
    const index = new Map<string, unknown>()
    registry.index(({ name, next }) => (next === undefined ? index.delete(name) : index.set(name, next.object.value)))
    registry.subscribe('things', (changes) => published.push(...changes))
    registry.put('things', thing('a', 1))
    await registry.settled()
    broken = true
    registry.put('things', thing('a', 2))
    registry.put('things', thing('b', 1))
    registry.remove('things', 'default', 'a')
    const outcome = registry.settled()
    await expect(outcome).rejects.toThrow('disk full')
    expect(valuesOf(registry)).toEqual([['a', 1]])
    expect([...index]).toEqual([['a', 1]])
    expect(registry.failing).toBe(true)
    expect(registry.changesSince('things', 1)).toHaveLength(1)
    broken = false
    registry.put('things', thing('c', 3))
    await registry.settled()
    expect(valuesOf(registry)).toEqual([
      ['a', 1],
      ['c', 3],
    ])
    expect(published.map(({ name }) => name)).toEqual(['a', 'c'])
    expect(errors).toHaveLength(1)
  })

  it('lists the objects of any version that has not expired', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.record({ name: fc.constantFrom('a', 'b', 'c', 'd'), drop: fc.boolean(), value: fc.nat(9) }), {
          maxLength: 40,
        }),
        async (steps) => {
          const registry = new Registry({ writeAheadLog: createMemoryLog() })
          const seen: { version: number; state: unknown }[] = [{ version: registry.head, state: [] }]
          for (const { name, drop, value } of steps) {
            if (drop) registry.remove('things', 'default', name)
            else registry.put('things', thing(name, value))
            seen.push({ version: registry.head, state: valuesOf(registry) })
          }
          await registry.settled()
          for (const { version, state } of seen) {
            const then = registry.listAt('things', undefined, version)
            expect(then?.map(({ object }) => [(object.metadata as { name: string }).name, object.value])).toEqual(state)
          }
        },
      ),
      { numRuns: 200 },
    )
  })

  it('drops the oldest changes first, for each resource separately', async () => {
    const registry = new Registry({ writeAheadLog: createMemoryLog(), historyLimits: { changes: 10, size: 1 << 20 } })
    const other = registry.put('others', thing('x', 0))
    for (let i = 0; i < 30; i++) registry.put('things', thing('a', i))
    await registry.settled()
    expect(registry.changesSince('things', other.version)).toBeUndefined()
    expect(registry.changesSince('others', other.version)).toEqual([])
    expect(registry.changesSince('things', registry.version - 5)).toHaveLength(5)
    registry.compactHistory()
    expect(registry.changesSince('others', other.version)).toBeUndefined()
  })

  it('has the same state after each restart, with several snapshots', async () => {
    const state = folder()
    const path = `${state.path}/registry`
    let expected: unknown = []
    let head = 0
    try {
      for (let round = 0; round < 4; round++) {
        const { writeAheadLog, recovered } = await openLog(path, 2_000)
        const registry = new Registry({ writeAheadLog, recovered })
        expect(valuesOf(registry)).toEqual(expected)
        expect(registry.head).toBeGreaterThanOrEqual(head)
        for (let i = 0; i < 200; i++) {
          registry.put('things', thing(`n${i % 17}`, `${round}.${i}`))
          if (i % 5 === 0) registry.remove('things', 'default', `n${(i + 3) % 17}`)
          if (i % 20 === 0) await registry.settled()
        }
        await registry.settled()
        expected = valuesOf(registry)
        head = registry.head
        await registry.close()
      }
    } finally {
      state.remove()
    }
  })
})
