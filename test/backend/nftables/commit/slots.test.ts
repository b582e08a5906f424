import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { placeEndpoints, placeTable } from '../../../../src/backend/nftables/commit/slots.ts'

const list = fc.uniqueArray(fc.integer({ min: 1, max: 20 }).map(String), { maxLength: 12 })

describe('slots of a frontend', () => {
  it('hold exactly the wanted endpoints, with the fewest writes that can do it', () => {
    fc.assert(
      fc.property(list, list, (current, wanted) => {
        const { slots, written } = placeEndpoints(current, wanted)
        expect(slots.toSorted()).toEqual(wanted.toSorted())
        const differing = slots.flatMap((endpoint, i) => (endpoint === current[i] ? [] : [i]))
        expect(written).toEqual(differing)
        const keepable = current.slice(0, wanted.length).filter((endpoint) => wanted.includes(endpoint)).length
        expect(written.length).toBe(wanted.length - keepable)
      }),
    )
  })

  it('cost one write for a replaced or an added endpoint, at most one for a removed one', () => {
    fc.assert(
      fc.property(list, fc.nat(), (current, at) => {
        fc.pre(current.length > 0)
        const victim = at % current.length
        expect(placeEndpoints(current, [...current, 'new']).written).toEqual([current.length])
        expect(placeEndpoints(current, current.with(victim, 'new').toSorted()).written).toEqual([victim])
        const rest = current.toSpliced(victim, 1).toSorted()
        expect(placeEndpoints(current, rest).written).toEqual(victim === current.length - 1 ? [] : [victim])
      }),
    )
  })

  it('hold an endpoint as often as its weight wants, and one more weight is one write', () => {
    const weighted = fc.array(fc.integer({ min: 1, max: 6 }).map(String), { minLength: 1, maxLength: 20 })
    fc.assert(
      fc.property(weighted, weighted, (current, wanted) => {
        const { slots, written } = placeEndpoints(current, wanted)
        expect(slots.toSorted()).toEqual(wanted.toSorted())
        expect(written).toEqual(slots.flatMap((endpoint, i) => (endpoint === current[i] ? [] : [i])))
        expect(placeEndpoints(current, [...current, current[0] as string].toSorted()).written).toEqual([current.length])
      }),
    )
  })

  it('of a hash are written where the table differs, and nowhere else', () => {
    expect(placeTable(['a', 'b', 'a'], ['a', 'a', 'a', 'b'])).toEqual({ slots: ['a', 'a', 'a', 'b'], written: [1, 3] })
    expect(placeTable(['a', 'b'], ['a', 'b']).written).toEqual([])
  })
})
