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
})
