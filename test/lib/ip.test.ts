// Checks addresses and CIDRs against ipaddr.js.

import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'
import {
  canonicalIp,
  contains,
  familyOf,
  formatIp,
  hostPort,
  isLinkLocal6,
  isLoopback,
  isUnspecified,
  parseCidr,
  parseIp,
  splitHostPort,
} from '../../src/lib/ip.ts'

const bytes = (length: number) => fc.uint8Array({ minLength: length, maxLength: length })
/** Addresses with many zero groups, so that tests reach the compression. */
const sparse6 = fc
  .array(fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.integer({ min: 0, max: 0xffff })), {
    minLength: 8,
    maxLength: 8,
  })
  .map((groups) => Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff])))
const mapped = (b: Uint8Array) => b.subarray(0, 10).every((byte) => byte === 0) && b[10] === 0xff && b[11] === 0xff
const long = (b: Uint8Array) => (Buffer.from(b).toString('hex').match(/.{4}/g) ?? []).join(':')
const plain6 = sparse6.filter((b) => !mapped(b))

describe('addresses', () => {
  it('formats and parses IPv4 like ipaddr.js', () => {
    fc.assert(
      fc.property(bytes(4), (b) => {
        const text = formatIp(b)
        expect(text).toBe(ipaddr.fromByteArray([...b]).toString())
        expect(parseIp(text)).toEqual(b)
      }),
    )
  })

  it('formats IPv6 as RFC 5952 demands, like ipaddr.js', () => {
    fc.assert(
      fc.property(plain6, (b) => {
        const text = formatIp(b)
        expect(text).toBe(new ipaddr.IPv6([...b]).toRFC5952String())
        expect(parseIp(text)).toEqual(b)
      }),
      { numRuns: 1000 },
    )
  })

  it('parses every spelling of an IPv6 address to the same bytes', () => {
    fc.assert(
      fc.property(plain6, (b) => {
        const address = new ipaddr.IPv6([...b])
        for (const text of [address.toNormalizedString(), long(b), address.toString()]) {
          expect(parseIp(text)).toEqual(b)
          expect(parseIp(text.toUpperCase())).toEqual(b)
        }
      }),
    )
  })

  it('agrees with ipaddr.js on which texts are IPv6 addresses', () => {
    const piece = fc.constantFrom('0', '1', 'ffff', '12345', 'g', '', ':', '::', '1.2.3.4', '%eth0')
    fc.assert(
      fc.property(fc.array(piece, { minLength: 1, maxLength: 9 }), (parts) => {
        const text = parts.join(':')
        if (!text.includes(':') || text.includes('%')) return
        expect(parseIp(text) !== undefined, text).toBe(ipaddr.IPv6.isValid(text))
      }),
      { numRuns: 2000 },
    )
  })

  it('C14: leading zeros are decimal', () => {
    expect(canonicalIp('172.30.0.041')).toBe('172.30.0.41')
    expect(canonicalIp('1.2.3.004')).toBe('1.2.3.4')
    expect(canonicalIp('010.180.00.001')).toBe('10.180.0.1')
  })

  it('parses an IPv4-mapped address as IPv4', () => {
    expect(canonicalIp('::ffff:10.0.0.1')).toBe('10.0.0.1')
    expect(canonicalIp('::FFFF:a00:1')).toBe('10.0.0.1')
    expect(canonicalIp('64:ff9b::10.0.0.1')).toBe('64:ff9b::a00:1')
  })

  it.each([
    '',
    ' 1.2.3.4',
    '1.2.3',
    '1.2.3.4.5',
    '1.2.3.256',
    '1.2.3.-4',
    '1.2.3.4a',
    '0x1.2.3.4',
    '1e1.2.3.4',
    '1..3.4',
    ':',
    ':::',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '1::2::3',
    '12345::',
    'g::',
    '::1.2.3',
    '1.2.3.4::',
    'fe80::1%eth0',
    '1:2:3:4:5:6:7:1.2.3.4',
    '::1 ',
  ])('refuses %j', (text) => {
    expect(parseIp(text)).toBeUndefined()
  })

  it('detects special addresses', () => {
    expect(['127.0.0.1', '127.9.9.9', '::1'].map(isLoopback)).toEqual([true, true, true])
    expect(['128.0.0.1', '12.7.0.1', '::', '::10', '1::1'].map(isLoopback)).toEqual([false, false, false, false, false])
    expect(['0.0.0.0', '::', '0.0.0.1'].map(isUnspecified)).toEqual([true, true, false])
    expect(['fe80::1', 'febf::1', 'fec0::1', 'fe8::1', '::fe80:1'].map(isLinkLocal6)).toEqual([
      true,
      true,
      false,
      false,
      false,
    ])
    expect([familyOf('1.2.3.4'), familyOf('::')]).toEqual([4, 6])
  })
})

describe('host and port', () => {
  it('formats and parses any address', () => {
    fc.assert(
      fc.property(fc.oneof(bytes(4), plain6), fc.integer({ min: 0, max: 65_535 }), (b, port) => {
        const host = formatIp(b)
        expect(splitHostPort(hostPort(host, port))).toEqual({ host, port })
      }),
    )
  })

  it('accepts names and the empty host, and refuses text without a valid port', () => {
    expect(splitHostPort('localhost:80')).toEqual({ host: 'localhost', port: 80 })
    expect(splitHostPort(':80')).toEqual({ host: '', port: 80 })
    for (const text of ['', '80', 'a:', 'a:65536', 'a:-1', 'a:8x', '::1:80', '[::1]', '[::1]80', 'a:123456']) {
      expect(splitHostPort(text), text).toBeUndefined()
    }
  })
})

describe('CIDRs', () => {
  it('masks host bits and contains exactly what ipaddr.js matches', () => {
    const pair = fc.oneof(
      fc.tuple(bytes(4), bytes(4), fc.integer({ min: 0, max: 32 })),
      fc.tuple(plain6, plain6, fc.integer({ min: 0, max: 128 })),
    )
    fc.assert(
      fc.property(pair, fc.boolean(), ([network, other, bits], near) => {
        const cidr = parseCidr(`${formatIp(network)}/${bits}`)
        if (cidr === undefined) throw new Error('must parse')
        expect(cidr).toMatchObject({ bits, text: `${cidr.ip}/${bits}`, family: network.length === 4 ? 4 : 6 })
        // The other address differs in one bit, so that both results occur.
        const probe = near ? Uint8Array.from([...network.slice(0, -1), (network.at(-1) as number) ^ 1]) : other
        const address = ipaddr.parse(formatIp(probe))
        const range: [ipaddr.IPv4 | ipaddr.IPv6, number] = [ipaddr.parse(formatIp(network)), bits]
        expect(contains(cidr, formatIp(probe))).toBe(address.kind() === range[0].kind() && address.match(range))
        expect(contains(cidr, cidr.ip)).toBe(true)
        expect(parseCidr(cidr.text)).toEqual(cidr)
      }),
      { numRuns: 1000 },
    )
  })

  it('C8, C14: parses leading zeros as decimal', () => {
    expect(parseCidr('203.0.113.000/025')?.text).toBe('203.0.113.0/25')
    expect(parseCidr('10.1.2.3/8')?.text).toBe('10.0.0.0/8')
    expect(parseCidr('FD00:0::5/16')?.text).toBe('fd00::/16')
    expect(parseCidr('::ffff:10.1.2.3/104')?.text).toBe('10.0.0.0/8')
  })

  it('never matches across families', () => {
    expect(contains({ family: 6, ip: '::', bits: 0, text: '::/0' }, '10.0.0.1')).toBe(false)
    expect(contains({ family: 4, ip: '0.0.0.0', bits: 0, text: '0.0.0.0/0' }, '::1')).toBe(false)
  })

  it.each([
    '10.0.0.0',
    '10.0.0.0/',
    '10.0.0.0/33',
    '10.0.0.0/-1',
    '::/129',
    '/8',
    'x/8',
    '10.0.0.0/8/8',
    '10.0.0.0/ 8',
  ])('refuses %j', (text) => {
    expect(parseCidr(text)).toBeUndefined()
  })
})
