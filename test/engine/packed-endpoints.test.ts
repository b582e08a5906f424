// Checks that packed endpoints are what was packed, and that equal parts are kept once.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PackedEndpoints, TraitsTable } from '../../src/engine/packed-endpoints.ts'
import { deepEqual } from '../../src/lib/equal.ts'
import type { EndpointRecord } from '../../src/model/types.ts'
import { endpoint } from './engine-harness.ts'

const names = fc.array(fc.constantFrom('a', 'b'), { maxLength: 2 })

const endpoints: fc.Arbitrary<EndpointRecord[]> = fc.array(
  fc.record({
    ip: fc.constantFrom('10.0.0.1', '10.0.0.2', 'fd00::1'),
    node: fc.constantFrom('', 'one', 'two'),
    ready: fc.boolean(),
    serving: fc.boolean(),
    terminating: fc.boolean(),
    zoneHints: names,
    nodeHints: names,
  }),
  { maxLength: 6 },
)

describe('packed endpoints', () => {
  it('are the endpoints that were packed, also as JSON', () => {
    const table = new TraitsTable()
    fc.assert(
      fc.property(endpoints, (list) => {
        const packed = PackedEndpoints.pack(list, table)
        expect([...packed]).toEqual(list)
        expect(packed.length).toBe(list.length)
        expect(JSON.stringify(packed)).toBe(JSON.stringify(list))
      }),
      { numRuns: 300 },
    )
  })

  it('are replaced if and only if something differs', () => {
    const table = new TraitsTable()
    fc.assert(
      fc.property(endpoints, endpoints, (old, now) => {
        const before = PackedEndpoints.pack(old, table)
        const after = PackedEndpoints.pack(now, table, before)
        expect([...after]).toEqual(now)
        expect(after === before).toBe(deepEqual(old, now))
        expect(deepEqual(after, before)).toBe(deepEqual(old, now))
        expect(PackedEndpoints.pack(structuredClone(now), new TraitsTable(), after)).toBe(after)
      }),
      { numRuns: 300 },
    )
  })

  it('stay right when a table has more nodes or traits than it keeps', () => {
    const table = new TraitsTable()
    const list = Array.from({ length: 25_000 }, (_, i) => endpoint('10.0.0.1', { node: `node-${i}` }))
    const hinted = Array.from({ length: 100 }, (_, i) => endpoint('10.0.0.1', { zoneHints: [`zone-${i}`] }))
    for (const some of [list, hinted, list]) expect([...PackedEndpoints.pack(some, table)]).toEqual(some)
  })

  it('of one node share what does not differ', () => {
    const table = new TraitsTable()
    const first = table.share(endpoint('10.0.0.1', { node: 'one', zoneHints: ['a'] }))
    expect(table.share(endpoint('10.0.0.2', { node: 'one', zoneHints: ['a'] }))).toBe(first)
    expect(table.share(endpoint('10.0.0.2', { node: 'one', zoneHints: ['b'] }))).not.toBe(first)
    expect(table.share(endpoint('10.0.0.2', { node: 'two', zoneHints: ['a'] }))).not.toBe(first)
  })
})
