// Checks that nested source ranges are found by look-ups: the number of operations grows with the number of ranges, not with its square.

import { expect, it, vi } from 'vitest'
import { removeNested } from '../../../src/backend/nftables/plan.ts'

const calls = vi.hoisted(() => ({ count: 0 }))

vi.mock('../../../src/lib/ip.ts', async (original) => {
  const real = await original<typeof import('../../../src/lib/ip.ts')>()
  return {
    ...real,
    formatIp: (...args: Parameters<typeof real.formatIp>) => {
      calls.count++
      return real.formatIp(...args)
    },
  }
})

it('4,000 ranges of three lengths take a few operations each', () => {
  const ranges = Array.from({ length: 4000 }, (_, i) => `10.${i >> 8}.${i & 255}.0/${[24, 25, 26][i % 3]}`)
  calls.count = 0
  expect(removeNested([...ranges, '10.0.0.0/16'])).toHaveLength(4000 - 256 + 1)
  expect(calls.count).toBeLessThan(10 * ranges.length)
})
