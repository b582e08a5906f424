import { describe, expect, it } from 'vitest'
import { SetCodec } from '../../../src/backend/nftables/commit/set-codec.ts'
import { SlottedFrontends } from '../../../src/backend/nftables/commit/slotted-frontends.ts'

const shape = 'address . protocol . port . slot : address . port'

function keyBytes(codec: SetCodec, text: string): Buffer {
  const bytes = Buffer.alloc(codec.keyLength)
  codec.writeKey(text, bytes)
  return bytes
}

describe('SlottedFrontends', () => {
  it.each([4, 6] as const)(
    'finds one object for all slots of an IPv%d frontend, and another for each frontend',
    (family) => {
      const codec = new SetCodec(shape, family)
      const index = new SlottedFrontends(codec, 1, (key) => ({ key }))
      const found = new Set<unknown>()
      const wrong: string[] = []
      // With this many frontends some have the same hash, which has 30 bits.
      for (let i = 0; i < 100_000; i++) {
        const ip =
          family === 4
            ? `10.${i >> 16}.${(i >> 8) & 255}.${i & 255}`
            : `fd00::${(i >> 16) + 1}:${(i & 0xffff).toString(16)}`
        const key = `${ip} ${i % 2 === 0 ? 'tcp' : 'udp'} ${(i % 3) + 80}`
        const first = index.find(keyBytes(codec, `${key} 0`), 0, codec.keyLength)
        const later = Buffer.concat([Buffer.of(1, 2, 3), keyBytes(codec, `${key} 1073741825`)])
        const isFound = first?.key === key && index.find(later, 3, later.length) === first && !found.has(first)
        if (!isFound) wrong.push(key)
        found.add(first)
      }
      expect(wrong).toEqual([])
    },
  )

  it('finds nothing for bytes that are not a key of the set', () => {
    const codec = new SetCodec(shape, 4)
    const index = new SlottedFrontends(codec, 1, (key) => ({ key }))
    expect(index.find(Buffer.alloc(8), 0, 8)).toBeUndefined()
  })
})
