import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { declareSet, SetCodec } from '../../../../src/backend/nftables/commit/set-codec.ts'
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

function encodeKey(codec: SetCodec, text: string, edge: 'first' | 'last' = 'first'): Buffer {
  const bytes = Buffer.alloc(codec.keyLength)
  codec.writeKey(text, bytes, edge)
  return bytes
}

describe('keys and values of our sets', () => {
  it.each(Object.keys(keys) as (keyof typeof keys)[])('are the same after encoding and decoding: %s', (name) => {
    const input = family.chain((of) => fc.tuple(fc.constant(of), keys[name](of)))
    fc.assert(
      fc.property(input, ([of, text]) => {
        const codec = new SetCodec(name, of)
        const key = encodeKey(codec, text)
        expect(key.length).toBe(declareSet({ name: 'x', shape: name, comment: '' }, of, false).keyLength)
        const decoded = codec.readKey(key, encodeKey(codec, text, 'last'))
        expect(name.includes('slot') ? `${decoded} ${codec.readSlot(key)}` : decoded).toBe(text)
      }),
    )
  })

  it('are the same after encoding and decoding endpoints', () => {
    const input = family.chain((of) => fc.tuple(fc.constant(of), address(of), port))
    fc.assert(
      fc.property(input, ([of, ip, number]) => {
        const codec = new SetCodec('protocol . port . slot : address . port', of)
        const text = hostPort(ip, number)
        const bytes = Buffer.alloc(codec.endpointLength)
        codec.writeEndpoint(text, bytes)
        expect(codec.readEndpoint(bytes)).toBe(text)
      }),
    )
  })

  it('leave the slot alone if the text has none, and write a given one', () => {
    const codec = new SetCodec('protocol . port . slot : address . port', 4)
    const bytes = encodeKey(codec, 'tcp 80 7')
    codec.writeKey('tcp 81', bytes)
    expect([codec.readKey(bytes), codec.readSlot(bytes)]).toEqual(['tcp 81', 7])
    codec.writeSlot(0x4000_0001, bytes)
    expect([codec.readKey(bytes), codec.readSlot(bytes)]).toEqual(['tcp 81', 0x4000_0001])
  })

  it.each([
    [4, '10.0.0 tcp 80'],
    [4, '10.0.0.1 tcp 0'],
    [4, '10.0.0.1 tcp 65536'],
    [4, '10.0.0.1 tcp x'],
    [4, '10.0.0.1 tcp'],
    [6, '10.0.0.1 tcp 80'],
    [6, 'fd00:::1 tcp 80'],
  ] as const)('are refused if they are not valid: IPv%i %s', (of, text) => {
    expect(() => encodeKey(new SetCodec('address . protocol . port', of), text)).toThrow('is not a valid')
  })

  it('never throw on foreign bytes, and report ranges that are not CIDRs', () => {
    const name = 'address . protocol . port . range'
    fc.assert(
      fc.property(family, fc.uint8Array({ maxLength: 48 }), fc.uint8Array({ maxLength: 48 }), (of, key, end) => {
        const codec = new SetCodec(name, of)
        const text = codec.readKey(Buffer.from(key), Buffer.from(end))
        if (key.length !== codec.keyLength) expect(text).toBeUndefined()
      }),
    )
    const codec = new SetCodec(name, 4)
    const first = encodeKey(codec, '1.2.3.4 tcp 80 10.0.0.0/32')
    const last = encodeKey(codec, '1.2.3.4 tcp 80 10.0.0.2/32')
    expect(codec.readKey(first, last)).toBeUndefined()
  })
})

describe('a set of affinity clients', () => {
  it('states no size: the kernel would reserve room for all of 65,535, a megabyte for each endpoint', () => {
    const declared = declareSet({ name: 'affinity-x', shape: 'affinity', comment: '', timeoutSeconds: 30 }, 4, false)
    expect(declared).toMatchObject({ timeoutMs: 30_000 })
    expect(declared).not.toHaveProperty('size')
  })
})
