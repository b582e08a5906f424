import { describe, expect, it } from 'vitest'
import { ChangeFilter } from '../../../src/kube/reflect/change-filter.ts'
import { readOrigin } from '../../../src/kube/reflect/object-origin.ts'
import { services } from '../../../src/kube/reflect/watched-resources.ts'

const managed = (...entries: readonly (readonly [manager: string, time: string, more?: object])[]) => ({
  metadata: {
    resourceVersion: '8812',
    managedFields: entries.map(([manager, time, more]) => ({ manager, time, operation: 'Update', ...more })),
  },
})
const [early, late] = ['2026-11-17T03:12:06Z', '2026-11-17T03:12:07Z']

describe('the origin of an object', () => {
  it('is the manager of the latest time, wherever it is in the list', () => {
    const object = managed(['a', early], ['b', late, { operation: 'Apply', subresource: 'status' }], ['c', early])
    expect(readOrigin(object, false)).toEqual({
      resourceVersion: '8812',
      manager: 'b',
      operation: 'Apply',
      subresource: 'status',
    })
  })

  it('names all managers of the same second', () => {
    expect(readOrigin(managed(['a', late], ['b', late]), false).manager).toBe('a or b')
  })

  it('does not name anyone for a deleted object', () => {
    expect(readOrigin(managed(['a', late]), true)).toMatchObject({ resourceVersion: '8812', manager: '' })
  })

  it.each([
    undefined,
    null,
    7,
    {},
    { metadata: 7 },
    { metadata: { managedFields: 'x' } },
    { metadata: { managedFields: [7, null] } },
    { metadata: { managedFields: [{ manager: 7, time: {} }] } },
    { metadata: { managedFields: [Buffer.from('ffff', 'hex')] } },
  ])('is unknown for %j', (object) => {
    expect(readOrigin(object, false)).toEqual({ resourceVersion: '', manager: '', operation: '', subresource: '' })
  })

  it('is bounded', () => {
    const many = managed(...Array.from({ length: 500 }, (_, i) => [`m${i}`.padEnd(300, 'x'), late] as const))
    expect(readOrigin(many, false).manager.length).toBeLessThanOrEqual(140)
  })

  it('reaches the sink with each change, and with a deletion', () => {
    const got: unknown[] = []
    const filter = new ChangeFilter(services, {
      put: (key, _, json) => got.push(['put', key, readOrigin(json, false).manager]),
      drop: (key, json) => got.push(['drop', key, readOrigin(json, true).resourceVersion]),
      synced: () => {},
      problem: () => {},
    })
    const { metadata } = managed(['a', late])
    const spec = { clusterIP: '10.96.0.1', ports: [{ port: 80 }] }
    const object = { metadata: { ...metadata, name: 'web', namespace: 'ns' }, spec }
    filter.put(object)
    filter.drop(object)
    expect(got).toEqual([
      ['put', 'ns/web', 'a'],
      ['drop', 'ns/web', '8812'],
    ])
  })
})
