// The weights of nodes, and which of them changed.

import { describe, expect, it } from 'vitest'
import { NodeCapacities } from '../../../src/engine/balancing/node-capacities.ts'

function open() {
  const calls = { changed: 0 }
  const capacities = new NodeCapacities(() => calls.changed++)
  const put = (name: string, milliCpu: number | undefined) => capacities.put(name, { name, milliCpu })
  return { capacities, put, calls }
}

describe('the capacities of nodes', () => {
  it('are not known before the first list is complete', () => {
    const { capacities, put, calls } = open()
    put('a', 4_000)
    expect([capacities.weightOf('a'), calls.changed]).toEqual([undefined, 0])
    capacities.complete()
    expect([capacities.weightOf('a'), calls.changed]).toEqual([8, 1])
    expect([...capacities.takeChanged()]).toEqual(['a'])
    expect([...capacities.takeChanged()]).toEqual([])
  })

  it('change only if the weight does: a heartbeat and a few millicores are no change', () => {
    const { capacities, put, calls } = open()
    put('a', 4_000)
    put('b', undefined)
    capacities.complete()
    capacities.takeChanged()
    put('a', 4_000)
    put('a', 3_920)
    put('b', undefined)
    capacities.drop('c')
    expect([calls.changed, capacities.takeChanged().size]).toEqual([1, 0])
    put('a', 2_000)
    put('b', 1_000)
    expect([calls.changed, ...capacities.takeChanged()]).toEqual([3, 'a', 'b'])
    expect([capacities.weightOf('a'), capacities.weightOf('b')]).toEqual([4, 2])
  })

  it('are forgotten with the node, or if its capacity is no longer valid', () => {
    const { capacities, put } = open()
    put('a', 4_000)
    put('b', 4_000)
    capacities.complete()
    capacities.takeChanged()
    capacities.drop('a')
    put('b', undefined)
    expect([...capacities.takeChanged()]).toEqual(['a', 'b'])
    expect([capacities.weightOf('a'), capacities.weightOf('b')]).toEqual([undefined, undefined])
  })
})
