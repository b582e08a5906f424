import { describe, expect, it } from 'vitest'
import { DuplicateFilter } from '../../../../src/sys/netlink/nft/duplicate-filter.ts'

const listed = (key: Buffer, last = Buffer.alloc(0), isIntervalEnd = false) => ({
  bytes: Buffer.concat([key, last]),
  keyAt: 0,
  keyEnd: key.length,
  lastAt: key.length,
  lastEnd: key.length + last.length,
  isIntervalEnd,
})

describe('DuplicateFilter', () => {
  it('recognises what came before, and nothing else, among 100,000 similar strings', () => {
    const seen = new DuplicateFilter(1)
    const key = Buffer.alloc(16)
    const fill = (i: number) => {
      key.writeUInt32BE(0x0a600000 + Math.floor(i / 5), 0)
      key[4] = 6
      key.writeUInt16BE(80, 8)
      key.writeUInt32LE(i % 5, 12)
      return listed(key)
    }
    let doubles = 0
    for (let i = 0; i < 100_000; i++) if (!seen.add(fill(i))) doubles++
    expect(doubles).toBe(0)
    for (let i = 0; i < 100_000; i += 997) expect(seen.add(fill(i))).toBe(false)
  })

  it('distinguishes a range from its start, and the end of a range from the start of the next', () => {
    const seen = new DuplicateFilter(2)
    const [from, to] = [Buffer.of(10, 0, 0, 0), Buffer.of(10, 0, 0, 255)]
    expect(seen.add(listed(from))).toBe(true)
    expect(seen.add(listed(from, to))).toBe(true)
    expect(seen.add(listed(Buffer.concat([from, to])))).toBe(true)
    expect(seen.add(listed(from, undefined, true))).toBe(true)
    expect(seen.add(listed(from, to))).toBe(false)
    expect(seen.add(listed(from, undefined, true))).toBe(false)
  })
})
