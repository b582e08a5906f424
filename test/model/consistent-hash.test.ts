// Consistent hashing with thousands of simulated clients: who moves when endpoints come and go, beside what the ideal is.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { jhash, scaleHash } from '../../src/lib/jhash.ts'
import { type HashedEndpoint, hashTableSize, makeHashTable, slotOfClient } from '../../src/model/consistent-hash.ts'

const address = (i: number): string => `10.1.${i >> 8}.${i & 255}:80`
const endpoints = (count: number): readonly HashedEndpoint[] =>
  Array.from({ length: count }, (_, i) => ({ address: address(i), share: 1 }))
const clients = Array.from({ length: 5_000 }, (_, i) => `192.168.${i >> 8}.${i & 255}`)

const assign = (list: readonly HashedEndpoint[], size: number): readonly string[] => {
  const table = makeHashTable(list, size)
  return clients.map((client) => table[slotOfClient(client, size)] as string)
}

const movedShare = (before: readonly string[], after: readonly string[]): number =>
  before.filter((endpoint, i) => endpoint !== after[i]).length / before.length

describe('the hash of the kernel', () => {
  // Values of jhash() and jhash2() in C, for the seeds 0 and 0x5101ce; test/kernel compares with packets.
  it('is the same for equal keys, and another for other seeds and keys', () => {
    const key = Uint8Array.of(10, 0, 0, 2)
    expect(jhash(key, 0)).toBe(jhash(Uint8Array.of(10, 0, 0, 2), 0))
    expect(jhash(key, 1)).not.toBe(jhash(key, 0))
    expect(jhash(Uint8Array.of(10, 0, 0, 3), 0)).not.toBe(jhash(key, 0))
  })

  it('is scaled to every slot, and to no other', () => {
    expect([0, 0xffff_ffff].map((hash) => scaleHash(hash, 1024))).toEqual([0, 1023])
    const used = new Set(clients.map((client) => slotOfClient(client, 1024)))
    expect(used.size).toBeGreaterThan(1000)
  })
})

describe('a table', () => {
  it('is full, and the same whatever the order of the endpoints', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.nat(999), { minLength: 1, maxLength: 20 }), (numbers) => {
        const list = numbers.map((i) => ({ address: address(i), share: 1 + (i % 3) }))
        const table = makeHashTable(list, 1024)
        expect(table).toHaveLength(1024)
        expect(table.every((owner) => list.some((one) => one.address === owner))).toBe(true)
        expect(makeHashTable(list.toReversed(), 1024)).toEqual(table)
      }),
      { numRuns: 30 },
    )
  })

  it.each([2, 3, 10, 16, 50, 200])('moves only the clients of the endpoint that goes, with %i endpoints', (count) => {
    const size = hashTableSize(count)
    const before = assign(endpoints(count), size)
    const gone = address(1)
    const after = assign(
      endpoints(count).filter((one) => one.address !== gone),
      size,
    )
    expect(before.every((endpoint, i) => endpoint === gone || endpoint === after[i])).toBe(true)
    // The ideal is 1/count. A share deviates by about sqrt(count / size) of itself, and by the luck of 5,000 clients.
    const deviation = Math.sqrt(count / size + count / clients.length)
    expect(movedShare(before, after)).toBeLessThan((1 + 5 * deviation) / count)
    expect(movedShare(before, after)).toBeGreaterThan((1 - 5 * deviation) / count)
    // What spread by random choice would move: nearly all of those that had another endpoint.
  })

  it('moves clients only to the endpoint that comes', () => {
    const before = assign(endpoints(9), 1024)
    const after = assign(endpoints(10), 1024)
    expect(before.every((endpoint, i) => endpoint === after[i] || after[i] === address(9))).toBe(true)
  })

  it('moves clients only to an endpoint whose weight grows, and only from one whose weight shrinks', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 20 }), fc.integer({ min: 1, max: 20 }), (weight, more) => {
        const list = (share: number) =>
          endpoints(5).map((one, i) => (i === 2 ? { ...one, share } : { ...one, share: 4 }))
        const [before, after] = [makeHashTable(list(weight), 1024), makeHashTable(list(weight + more), 1024)]
        expect(before.every((owner, i) => owner === after[i] || after[i] === address(2))).toBe(true)
      }),
      { numRuns: 50 },
    )
  })

  it('gives shares by weight', () => {
    const table = makeHashTable(
      [
        { address: 'a', share: 3 },
        { address: 'b', share: 1 },
      ],
      4096,
    )
    const share = table.filter((owner) => owner === 'a').length / 4096
    expect(Math.abs(share - 0.75)).toBeLessThan(0.05)
  })

  it.each([16, 64, 256])('gives equal shares to equal endpoints, within the documented deviation, for %i', (count) => {
    const size = hashTableSize(count)
    const table = makeHashTable(endpoints(count), size)
    const counts = new Map<string, number>()
    for (const owner of table) counts.set(owner, (counts.get(owner) ?? 0) + 1)
    const mean = size / count
    const deviation = Math.sqrt([...counts.values()].reduce((sum, one) => sum + (one - mean) ** 2, 0) / count) / mean
    expect(counts.size).toBe(count)
    expect(deviation).toBeLessThan(1.5 * Math.sqrt(count / size))
  })

  it('keeps its size in a class of service sizes', () => {
    expect([1, 16, 17, 64, 65, 1024, 1025].map(hashTableSize)).toEqual([1024, 1024, 4096, 4096, 16_384, 16_384, 32_768])
  })
})
