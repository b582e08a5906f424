import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  declare,
  decodeEndpoint,
  decodeKey,
  encodeEndpoint,
  encodeKey,
  shapeOf,
} from '../../../../src/backend/nftables/commit/set-codec.ts'
import type { NftSetShape } from '../../../../src/backend/nftables/entries.ts'
import { type Family, formatIp, hostPort, maskBytes } from '../../../../src/lib/ip.ts'

const family = fc.constantFrom<Family>(4, 6)
const bytes = (of: Family) => fc.uint8Array({ minLength: of === 4 ? 4 : 16, maxLength: of === 4 ? 4 : 16 })
const address = (of: Family) => bytes(of).map((raw) => formatIp(raw))
const port = fc.integer({ min: 1, max: 65_535 })
const protocol = fc.constantFrom('tcp', 'udp', 'sctp')
const slot = fc.oneof(
  fc.nat({ max: 1000 }),
  fc.nat({ max: 1000 }).map((n) => n + 0x4000_0000),
)
const range = (of: Family) =>
  fc
    .tuple(bytes(of), fc.nat({ max: of === 4 ? 32 : 128 }))
    .map(([raw, bits]) => `${formatIp(maskBytes(raw, bits))}/${bits}`)

const keys: Readonly<Record<Exclude<NftSetShape, 'affinity'>, (of: Family) => fc.Arbitrary<string>>> = {
  address,
  'address . address . protocol . port': (of) => words(address(of), address(of), protocol, port),
  'address . protocol . port': (of) => words(address(of), protocol, port),
  'address . protocol . port . range': (of) => words(address(of), protocol, port, range(of)),
  'address . protocol . port : verdict': (of) => words(address(of), protocol, port),
  'protocol . port : verdict': () => words(protocol, port),
  'address . protocol . port . slot : address . port': (of) => words(address(of), protocol, port, slot),
  'protocol . port . slot : address . port': () => words(protocol, port, slot),
}

const words = (...parts: readonly fc.Arbitrary<string | number>[]): fc.Arbitrary<string> =>
  fc.tuple(...parts).map((list) => list.join(' '))

describe('keys and values of our sets', () => {
  it.each(Object.keys(keys) as (keyof typeof keys)[])('survive the way to bytes and back: %s', (name) => {
    const input = family.chain((of) => fc.tuple(fc.constant(of), keys[name](of)))
    fc.assert(
      fc.property(input, ([of, text]) => {
        const shape = shapeOf(name, of)
        const key = encodeKey(shape, of, text)
        expect(key.length).toBe(declare({ name: 'x', shape: name, comment: '' }, of).keyLength)
        const end = name.endsWith('range') ? encodeKey(shape, of, text, true) : undefined
        expect(decodeKey(shape, of, key, end)).toBe(text)
      }),
    )
  })

  it('survive it as endpoints', () => {
    const input = family.chain((of) => fc.tuple(fc.constant(of), address(of), port))
    fc.assert(
      fc.property(input, ([of, ip, number]) => {
        const text = hostPort(ip, number)
        expect(decodeEndpoint(of, encodeEndpoint(of, text))).toBe(text)
      }),
    )
  })

  it('never crash on bytes that are none of ours, and tell ranges that are no CIDRs', () => {
    const name = 'address . protocol . port . range'
    fc.assert(
      fc.property(family, fc.uint8Array({ maxLength: 48 }), fc.uint8Array({ maxLength: 48 }), (of, key, end) => {
        const text = decodeKey(shapeOf(name, of), of, Buffer.from(key), Buffer.from(end))
        if (key.length !== shapeOf(name, of).keyLength) expect(text).toBeUndefined()
      }),
    )
    const shape = shapeOf(name, 4)
    const first = encodeKey(shape, 4, '1.2.3.4 tcp 80 10.0.0.0/32')
    const last = encodeKey(shape, 4, '1.2.3.4 tcp 80 10.0.0.2/32')
    expect(decodeKey(shape, 4, first, last)).toBeUndefined()
  })
})

describe('a set of affinity clients', () => {
  it('names no size: the kernel would reserve room for all of 65,535, a megabyte for each endpoint', () => {
    const declared = declare({ name: 'affinity-x', shape: 'affinity', comment: '', timeoutSeconds: 30 }, 4)
    expect(declared).toMatchObject({ timeoutMs: 30_000 })
    expect(declared).not.toHaveProperty('size')
  })
})
