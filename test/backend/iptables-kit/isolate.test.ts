import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { isolate } from '../../../src/backend/iptables-kit/isolate.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

/** A kernel that refuses some numbers, and may name the first of them in its error. */
function createKernel(bad: ReadonlySet<number>, namesLine: boolean, isBroken = false) {
  const accepted = new Set<number>()
  let written: readonly number[] = []
  let attempts = 0
  return {
    accepted,
    written: () => written,
    attempts: () => attempts,
    mentions: (one: number, line: string) => line === String(one),
    async attempt(some: readonly number[]) {
      attempts++
      const all = [...accepted, ...some]
      // The first table is written even if the second one is refused.
      written = all
      const refused = all.find((one) => bad.has(one))
      if (refused === undefined && !isBroken) {
        for (const one of some) accepted.add(one)
        return undefined
      }
      return { error: new ProxyError('iptables-refused', 'no'), lines: namesLine ? [String(refused)] : [] }
    },
  }
}

describe('isolate', () => {
  it('returns exactly what is refused, writes all others, and leaves nothing half written', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.nat(40)),
        fc.uniqueArray(fc.nat(40)),
        fc.boolean(),
        async (all, bad, namesLine) => {
          const kernel = createKernel(new Set(bad), namesLine)
          const refusals = await isolate(all, kernel)
          const refused = all.filter((n) => bad.includes(n))
          expect(refusals.map((refusal) => refusal.item).toSorted()).toEqual(refused.toSorted())
          expect([...kernel.accepted].toSorted()).toEqual(all.filter((n) => !bad.includes(n)).toSorted())
          expect(kernel.written().toSorted()).toEqual([...kernel.accepted].toSorted())
        },
      ),
    )
  })

  it('needs few attempts when the error names the line', async () => {
    const kernel = createKernel(new Set([7]), true)
    await isolate([...Array(1000).keys()], kernel)
    expect(kernel.attempts()).toBeLessThanOrEqual(4)
  })

  it('throws, and does not try one by one, if something else is the cause', async () => {
    for (const namesLine of [true, false]) {
      const kernel = createKernel(new Set(), namesLine, true)
      await expect(isolate([...Array(1000).keys()], kernel)).rejects.toThrow('no')
      expect(kernel.attempts()).toBeLessThanOrEqual(3)
    }
    await expect(isolate([], createKernel(new Set(), false, true))).rejects.toThrow('no')
  })
})
