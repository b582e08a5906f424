// Checks that the slices of a service stay sorted, and that thousands of them cost no more than their number.

import { describe, expect, it } from 'vitest'
import { SlicesByService } from '../../src/engine/slices-by-service.ts'
import type { SliceRecord } from '../../src/model/types.ts'
import { slice } from './engine-harness.ts'

const numbered = (n: number, given: Partial<SliceRecord> = {}) =>
  slice('ns/web', [`10.0.${n >> 8}.${n & 255}`], { key: `ns/web-${String(n).padStart(5, '0')}`, ...given })
const keys = (slices: SlicesByService) => slices.of('ns/web').map(({ key }) => Number(key.slice(-5)))
const udp = [{ name: 'dns', protocol: 'udp' as const, port: 53 }]

describe('SlicesByService', () => {
  it('sorts what comes, is replaced and goes, whenever it is read', () => {
    const slices = new SlicesByService()
    for (const n of [5, 1, 3]) slices.replace(undefined, numbered(n))
    const before = slices.of('ns/web')
    expect(keys(slices)).toEqual([1, 3, 5])
    slices.replace(numbered(3), undefined)
    for (const n of [4, 0, 9]) slices.replace(undefined, numbered(n))
    slices.replace(numbered(1), numbered(1, { ports: udp }))
    expect(keys(slices)).toEqual([0, 1, 4, 5, 9])
    expect(slices.of('ns/web')[1]?.ports).toEqual(udp)
    expect(before.map(({ key }) => key)).toHaveLength(3)
    for (const one of slices.of('ns/web')) slices.replace(one, undefined)
    expect([...slices.all()]).toEqual([])
  })

  it('knows whether any slice has UDP endpoints', () => {
    const slices = new SlicesByService()
    slices.replace(undefined, numbered(1, { ports: udp }))
    slices.replace(undefined, numbered(2, { ports: udp }))
    slices.replace(numbered(1, { ports: udp }), numbered(1))
    expect(slices.servesUdp('ns/web')).toBe(true)
    slices.replace(numbered(2, { ports: udp }), numbered(2, { ports: udp, endpoints: [] }))
    expect(slices.servesUdp('ns/web')).toBe(false)
  })

  it('looks at each slice a few times, however many there are', () => {
    const count = 2_000
    let looks = 0
    const slices = new SlicesByService()
    for (let n = 0; n < count; n++) {
      const record = numbered(n)
      const { ports, key } = record
      const watched = {
        ...record,
        get ports() {
          looks++
          return ports
        },
        get key() {
          looks++
          return key
        },
      }
      slices.replace(undefined, watched)
    }
    expect(slices.of('ns/web')).toHaveLength(count)
    // Sorting compares each key some log2(2,000) = 11 times.
    expect(looks).toBeLessThan(count * 40)
  })
})
