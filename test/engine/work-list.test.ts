// Checks that a work list can change while it is drained.

import { describe, expect, it } from 'vitest'
import { WorkList } from '../../src/engine/work-list.ts'
import { runAtOnce } from '../support/run-at-once.ts'

function drain(
  list: WorkList,
  handle: (item: string) => void = () => {},
  accepts: (item: string) => boolean = () => true,
) {
  const handled: string[] = []
  runAtOnce(
    list.drain(accepts, (item) => {
      handled.push(item)
      handle(item)
    }),
  )
  return handled.join(' ')
}

function listOf(...items: string[]): WorkList {
  const list = new WorkList()
  for (const item of items) list.add(item)
  return list
}

describe('WorkList', () => {
  it('holds each item once, in the order of arrival', () => {
    const list = listOf('a', 'b', 'a', 'c')
    expect(drain(list)).toBe('a b c')
    expect(drain(list)).toBe('')
  })

  it('handles items that are added while it is drained, also items that were handled before', () => {
    const list = listOf('a', 'b')
    const more: Record<string, string[]> = { a: ['c', 'b'], b: ['a'] }
    const add = (item: string) => {
      for (const other of more[item] ?? []) list.add(other)
      delete more[item]
    }
    expect(drain(list, add)).toBe('a b c a')
  })

  it('keeps items that are not accepted, in their order and before items that are added later', () => {
    const list = listOf('x1', 'a', 'x2')
    expect(
      drain(
        list,
        () => list.add('x3'),
        (item) => !item.startsWith('x'),
      ),
    ).toBe('a')
    list.add('x1')
    expect(drain(list)).toBe('x1 x2 x3')
  })

  it('keeps the rest if the run is abandoned or fails', () => {
    const list = listOf('a', 'b', 'c')
    const steps = list.drain(
      () => true,
      () => {},
    )
    steps.next()
    steps.return()
    const fail = () => {
      throw new Error('no')
    }
    expect(() => drain(list, fail)).toThrow('no')
    expect(drain(list)).toBe('c')
  })

  it('lets namespaces take turns', () => {
    const list = listOf('a/1', 'a/2', 'a/3', 'b/1', 'c/1', 'b/2')
    expect(drain(list)).toBe('a/1 b/1 c/1 a/2 b/2 a/3')
  })

  it('handles so many items at most, but all urgent ones, and goes on with the namespace whose turn it is', () => {
    const list = listOf('a/1', 'a/2', 'a/3', 'b/1')
    const part = (most: number) => {
      const handled: string[] = []
      const handle = (item: string) => {
        handled.push(item)
        if (item === 'a/1') for (const other of ['b/7', 'a/8']) list.addUrgent(other)
      }
      runAtOnce(list.drain(() => true, handle, { most }))
      return handled.join(' ')
    }
    expect(part(1)).toBe('a/1 b/7 a/8')
    list.add('c/1')
    expect(part(2)).toBe('b/1 a/2')
    expect(part(0)).toBe('')
    expect(part(9)).toBe('c/1 a/3')
    expect(list.isEmpty).toBe(true)
  })

  it('handles a few items, and all urgent ones, when the time is over', () => {
    const list = listOf(...Array.from({ length: 20 }, (_, i) => `a/${i}`))
    const handled: string[] = []
    const handle = (item: string) => {
      handled.push(item)
      if (item === 'a/9') list.addUrgent('b/1')
    }
    const isOver = () => handled.length > 2
    runAtOnce(list.drain(() => true, handle, { isOver }))
    expect(handled).toEqual([...Array.from({ length: 10 }, (_, i) => `a/${i}`), 'b/1'])
    expect([list.has('a/10'), list.isEmpty]).toEqual([true, false])
  })

  it('has an item until its last step is done', () => {
    const list = listOf('a')
    const steps = list.drain(
      () => true,
      function* () {
        yield
      },
    )
    steps.next()
    expect([list.has('a'), list.isEmpty]).toEqual([true, false])
    steps.return()
    expect(drain(list)).toBe('a')
    expect([list.has('a'), list.isEmpty]).toEqual([false, true])
  })
})
