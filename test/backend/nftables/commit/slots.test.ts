import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { placeEndpoints } from '../../../../src/backend/nftables/commit/slots.ts'

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
})
