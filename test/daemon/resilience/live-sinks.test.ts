// Saved objects serve until the live ones come, and the change is a difference.

import fc from 'fast-check'
import { expect, it } from 'vitest'
import { LiveSink } from '../../../src/daemon/resilience/live-sinks.ts'

function makeSink() {
  const held = new Map<string, number>()
  const calls: string[] = []
  const noted: string[] = []
  let live = 0
  const sink = new LiveSink<number>(
    {
      put(key, record) {
        calls.push(`put ${key}`)
        held.set(key, record)
      },
      drop(key) {
        calls.push(`drop ${key}`)
        held.delete(key)
      },
      synced: () => calls.push('synced'),
      problem: () => {},
    },
    { onChange: (key, record) => noted.push(`${key} ${record}`), onLive: () => live++ },
  )
  return { sink, held, calls, noted, lives: () => live }
}

const keys = fc.constantFrom('a', 'b', 'c', 'd')
const objects = fc.array(fc.tuple(keys, fc.nat(9)))

it('holds exactly the live list when that is complete, whatever was saved and whenever it was fed', () => {
  fc.assert(
    fc.property(objects, objects, fc.nat(9), (saved, live, at) => {
      const { sink, held, calls } = makeSink()
      const stored = new Map(saved)
      const listed = new Map(live)
      const dropped: string[] = []
      for (const [i, [key, record]] of [...listed].entries()) {
        if (i === at) sink.feed(stored)
        sink.put(key, record)
      }
      if (at >= listed.size) sink.feed(stored)
      for (const call of calls) if (call.startsWith('drop ')) dropped.push(call)
      // Nothing is taken away before the list is complete.
      expect(dropped).toEqual([])
      sink.synced()
      expect([...held].sort()).toEqual([...listed].sort())
      // What is in both is never dropped: the change is a difference.
      for (const key of listed.keys()) expect(calls).not.toContain(`drop ${key}`)
    }),
  )
})

it('never replaces a live object by a saved one, and ignores a saved state that comes too late', () => {
  const { sink, held } = makeSink()
  sink.put('a', 2)
  sink.drop('b')
  sink.feed(
    new Map([
      ['a', 1],
      ['b', 1],
      ['c', 1],
    ]),
  )
  expect([...held]).toEqual([
    ['a', 2],
    ['c', 1],
  ])
  sink.synced()
  sink.feed(new Map([['c', 1]]))
  expect([...held]).toEqual([['a', 2]])
})

it('notes only live changes, and says once that the list is complete', () => {
  const { sink, noted, lives } = makeSink()
  sink.feed(new Map([['a', 1]]))
  expect([noted, lives()]).toEqual([[], 0])
  sink.put('a', 2)
  sink.synced()
  sink.drop('a')
  expect([noted, lives()]).toEqual([['a 2', 'a undefined'], 1])
})
