import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { formatIp, parseIp } from '../../../../src/lib/ip.ts'
import { addressBytes, putAddress } from '../../../../src/sys/netlink/address-codec.ts'
import { packFields, unpackFields } from '../../../../src/sys/netlink/nft/key.ts'
import { intervalElements, mergeRanges } from '../../../../src/sys/netlink/nft/ranges.ts'
import { describeSet, type Field } from '../../../../src/sys/netlink/nft/userdata.ts'

const ipv4 = fc.uint8Array({ minLength: 4, maxLength: 4 }).map(formatIp)
const ipv6 = fc
  .uint8Array({ minLength: 16, maxLength: 16 })
  .map((bytes) => formatIp(Uint8Array.from([0xfd, ...bytes.slice(1)])))

describe('addresses', () => {
  it('have the bytes that the library says', () => {
    fc.assert(
      fc.property(fc.oneof(ipv4, ipv6), (ip) => {
        expect([...addressBytes(ip)]).toEqual([...(parseIp(ip) ?? [])])
      }),
    )
  })

  it('keep the length of their spelling, mapped ones too', () => {
    expect(addressBytes('::ffff:1.2.3.4')).toEqual(Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4))
  })

  it.each(['', '1.2.3', '1.2.3.4.5', '1.2.3.256', '1..3.4', 'a.b.c.d', '1.2.3.4/8', 'fd00::g', '1.2.3.0004'])(
    'are refused if they are none: %j',
    (text) => {
      expect(() => putAddress(new Uint8Array(16), 0, text)).toThrow('no IP address')
    },
  )
})

describe('keys', () => {
  it('lie as nft sends them', () => {
    const fields: Field[] = ['ip daddr', 'meta l4proto', 'th dport', { slots: 5 }]
    expect(packFields(fields, ['172.30.0.41', 6, 80, 1]).toString('hex')).toBe('ac1e0029060000000050000001000000')
    expect(packFields(['ip daddr', 'th dport'], ['10.0.0.2', 8080]).toString('hex')).toBe('0a0000021f900000')
    expect(() => packFields(fields, ['172.30.0.41'])).toThrow('1 values for 4 fields')
  })

  it('are as long as their set says, and read back', () => {
    const field = fc.constantFrom<Field>('ip saddr', 'ip6 daddr', 'meta l4proto', 'th dport', 'meta mark', { slots: 9 })
    const value = (field: Field): fc.Arbitrary<string | number> => {
      if (field === 'ip saddr') return ipv4
      if (field === 'ip6 daddr') return ipv6
      return fc.nat(field === 'meta l4proto' ? 255 : field === 'th dport' ? 65535 : 0xffffffff)
    }
    const arbitrary = fc
      .array(field, { minLength: 2, maxLength: 5 })
      .chain((fields) => fc.tuple(fc.constant(fields), fc.tuple(...fields.map(value))))
    fc.assert(
      fc.property(arbitrary, ([fields, values]) => {
        const key = packFields(fields, values)
        expect(key.length).toBe(describeSet({ key: fields }).keyLength)
        expect(unpackFields(fields, key)).toEqual(values)
      }),
    )
  })
})

describe('ranges', () => {
  it('are sorted, and joined where they overlap or touch', () => {
    expect(mergeRanges(['203.0.113.0/25', '192.168.0.0/24', '1.2.3.4', '192.168.0.128/25', '192.168.1.0/24'])).toEqual([
      { first: '1.2.3.4', last: '1.2.3.4' },
      { first: '192.168.0.0', last: '192.168.1.255' },
      { first: '203.0.113.0', last: '203.0.113.127' },
    ])
    expect(mergeRanges(['::/0', 'fd00::/8'])).toEqual([
      { first: '::', last: 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff' },
    ])
    expect(mergeRanges([])).toEqual([])
    expect(() => mergeRanges(['10.0.0.0/33'])).toThrow('no CIDR')
  })

  it('cover the same addresses as the CIDRs, whatever these are', () => {
    // Eight addresses, so that every one can be asked.
    const cidr = fc.integer({ min: 29, max: 32 }).chain((bits) => fc.nat(7).map((last) => `10.0.0.${last}/${bits}`))
    fc.assert(
      fc.property(fc.array(cidr, { maxLength: 6 }), (cidrs) => {
        const covered = (last: number) =>
          cidrs.some((cidr) => {
            const [ip, bits] = cidr.split('/')
            const size = 2 ** (32 - Number(bits))
            return Math.floor(Number(ip?.split('.')[3]) / size) === Math.floor(last / size)
          })
        const ranges = mergeRanges(cidrs)
        const inRange = (last: number) =>
          ranges.some(
            ({ first, last: end }) => Number(first.split('.')[3]) <= last && last <= Number(end.split('.')[3]),
          )
        for (let last = 0; last < 8; last++) expect(inRange(last)).toBe(covered(last))
        for (let i = 1; i < ranges.length; i++) {
          expect(Number(ranges[i]?.first.split('.')[3])).toBeGreaterThan(Number(ranges[i - 1]?.last.split('.')[3]) + 1)
        }
      }),
    )
  })

  it('become starts and ends of an interval set; the last address has no end', () => {
    expect(intervalElements([{ first: '1.2.3.4', last: '1.2.3.4' }])).toEqual([
      { key: Uint8Array.of(1, 2, 3, 4) },
      { key: Uint8Array.of(1, 2, 3, 5), intervalEnd: true },
    ])
    expect(intervalElements([{ first: '240.0.0.0', last: '255.255.255.255' }])).toEqual([
      { key: Uint8Array.of(240, 0, 0, 0) },
    ])
    expect(intervalElements([{ first: '::', last: '::ffff' }])[1]?.key[13]).toBe(1)
  })
})
