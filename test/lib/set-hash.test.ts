import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { SetHash } from '../../src/lib/set-hash.ts'

const hashOf = (elements: readonly (readonly string[])[]): SetHash => {
  const hash = new SetHash()
  for (const parts of elements) {
    for (const part of parts) hash.extend(part)
    hash.finish()
  }
  return hash
}

const base32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'
/** Chain names as kube-proxy makes them: all of the same length. */
const chain = (prefix: string) =>
  fc
    .array(fc.constantFrom(...base32), { minLength: 16, maxLength: 16 })
    .map((letters) => `${prefix}${letters.join('')}`)
const rule = fc.tuple(chain('KUBE-SVC-'), chain('KUBE-SEP-'))
const element = fc.array(fc.string(), { minLength: 1, maxLength: 3 })

describe('SetHash', () => {
  it('does not depend on the order', () => {
    fc.assert(
      fc.property(fc.array(element), (elements) => {
        expect(hashOf(elements).equals(hashOf(elements.toReversed()))).toBe(true)
      }),
    )
  })

  it('forgets an element that was added and removed', () => {
    fc.assert(
      fc.property(fc.array(element), fc.string(), (elements, text) => {
        const hash = hashOf(elements)
        hash.add(text, 0, text.length)
        expect(hash.equals(hashOf(elements))).toBe(false)
        hash.add(text, 0, text.length, -1)
        expect(hash.equals(hashOf(elements))).toBe(true)
      }),
    )
  })

  it('sees that two rules exchanged their targets, in each half of the checksum', () => {
    fc.assert(
      fc.property(rule, rule, ([a, toA], [b, toB]) => {
        fc.pre(a !== b && toA !== toB)
        const before = String(
          hashOf([
            [a, toA],
            [b, toB],
          ]),
        )
        const after = String(
          hashOf([
            [a, toB],
            [b, toA],
          ]),
        )
        expect(before.slice(8, 16)).not.toBe(after.slice(8, 16))
        expect(before.slice(16)).not.toBe(after.slice(16))
      }),
      { numRuns: 20_000 },
    )
  })

  it('sees that many rules exchanged their targets in a circle', () => {
    fc.assert(
      fc.property(fc.uniqueArray(rule, { minLength: 2, maxLength: 20, selector: ([, target]) => target }), (rules) => {
        const turned = rules.map(([from], i) => [from, (rules[(i + 1) % rules.length] as [string, string])[1]])
        fc.pre(new Set(rules.map(([from]) => from)).size > 1)
        expect(hashOf(rules).equals(hashOf(turned))).toBe(false)
      }),
      { numRuns: 2000 },
    )
  })

  it('tells the parts of an element apart', () => {
    expect(hashOf([['ab', 'c']]).equals(hashOf([['a', 'bc']]))).toBe(false)
    expect(hashOf([['abc']]).equals(hashOf([['a'], ['bc']]))).toBe(false)
    expect(hashOf([['']]).equals(hashOf([]))).toBe(false)
  })

  it('is printed as count and checksum', () => {
    expect(String(hashOf([]))).toBe('0'.repeat(24))
    expect(String(hashOf([['a'], ['b']]))).toMatch(/^00000002[0-9a-f]{16}$/)
  })
})
