import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { isolate } from '../../../src/backend/iptables-kit/isolate.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

/** A kernel that refuses some numbers, and tells which one or not. */
function kernel(bad: ReadonlySet<number>, tells: boolean, broken = false) {
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
      // The first table goes in whatever the second one says.
      written = all
      const culprit = all.find((one) => bad.has(one))
      if (culprit === undefined && !broken) {
        for (const one of some) accepted.add(one)
        return undefined
      }
      return { error: new ProxyError('iptables-refused', 'no'), lines: tells ? [String(culprit)] : [] }
    },
  }
}

describe('isolate', () => {
  it('refuses exactly what is refused, gets all others in, and leaves nothing half-written', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.nat(40)),
        fc.uniqueArray(fc.nat(40)),
        fc.boolean(),
        async (all, bad, tells) => {
          const one = kernel(new Set(bad), tells)
          const culprits = await isolate(all, one)
          const refused = all.filter((n) => bad.includes(n))
          expect(culprits.map((culprit) => culprit.item).toSorted()).toEqual(refused.toSorted())
          expect([...one.accepted].toSorted()).toEqual(all.filter((n) => !bad.includes(n)).toSorted())
          expect(one.written().toSorted()).toEqual([...one.accepted].toSorted())
        },
      ),
    )
  })

  it('needs few attempts when the culprit is told', async () => {
    const one = kernel(new Set([7]), true)
    await isolate([...Array(1000).keys()], one)
    expect(one.attempts()).toBeLessThanOrEqual(4)
  })

  it('throws, and does not try one by one, if something else is at fault', async () => {
    for (const tells of [true, false]) {
      const one = kernel(new Set(), tells, true)
      await expect(isolate([...Array(1000).keys()], one)).rejects.toThrow('no')
      expect(one.attempts()).toBeLessThanOrEqual(3)
    }
    await expect(isolate([], kernel(new Set(), false, true))).rejects.toThrow('no')
  })
})
