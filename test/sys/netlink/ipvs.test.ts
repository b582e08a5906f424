// Messages of IPVS and generic netlink: golden bytes, round trips through an answer that we make, and broken input.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../src/lib/ip.ts'
import { AddressCache } from '../../../src/sys/netlink/address-codec.ts'
import { writeFamilyRequest } from '../../../src/sys/netlink/generic-netlink.ts'
import {
  decodeDestination,
  decodeServer,
  ipvsCommand,
  type VirtualServer,
  writeAllServers,
  writeDestination,
  writeServer,
  writeServerKey,
  writeTimeouts,
} from '../../../src/sys/netlink/ipvs.ts'
import { AttributeReader, MessageReader } from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'

const hex = (text: string) => Buffer.from(text.replace(/\s+/g, ''), 'hex')

function payload(write: (writer: MessageWriter) => void): Buffer {
  return message(write).subarray(16)
}

function message(write: (writer: MessageWriter) => void): Buffer {
  const writer = new MessageWriter(64, 7)
  writer.begin(0x1f, 5)
  write(writer)
  writer.end()
  return writer.toBytes()
}

const web: VirtualServer = {
  family: 4,
  protocol: 'tcp',
  ip: '172.30.0.41',
  port: 80,
  scheduler: 'rr',
  flags: 1,
  timeout: 10_800,
}

describe('requests', () => {
  it('requests a family by name', () => {
    expect(payload((writer) => writeFamilyRequest(writer, 'IPVS'))).toEqual(hex('03010000 0900 0200 49505653 00000000'))
  })

  it('makes a persistent server', () => {
    expect(payload((writer) => writeServer(writer, ipvsCommand.newService, web))).toEqual(
      hex(`01010000 4800 0180
        0600 0100 0200 0000   0600 0200 0600 0000   0800 0300 ac1e0029   0600 0400 0050 0000
        0700 0600 727200 00   0c00 0700 01000000 ffffffff   0800 0800 302a0000   0800 0900 ffffffff`),
    )
  })

  it('identifies an IPv6 server', () => {
    const key = { family: 6, protocol: 'udp', ip: 'fd00:172:30::41', port: 53 } as const
    expect(payload((writer) => writeServerKey(writer, ipvsCommand.deleteService, key))).toEqual(
      hex(`03010000 3000 0180
        0600 0100 0a00 0000   0600 0200 1100 0000   1400 0300 fd000172003000000000000000000041   0600 0400 0035 0000`),
    )
  })

  it('adds a destination', () => {
    const one = { ip: '10.180.0.1', port: 8080, weight: 3 }
    expect(payload((writer) => writeDestination(writer, ipvsCommand.newDestination, web, one))).toEqual(
      hex(`05010000 2400 0180
        0600 0100 0200 0000   0600 0200 0600 0000   0800 0300 ac1e0029   0600 0400 0050 0000
        3c00 0280
        0800 0100 0ab40001   0600 0200 1f90 0000   0800 0300 00000000   0800 0400 03000000
        0800 0500 00000000   0800 0600 00000000   0600 0b00 0200 0000`),
    )
  })

  it('sets timeouts and requests all servers', () => {
    expect(payload((writer) => writeTimeouts(writer, { tcp: 900, tcpFin: 0, udp: 300 }))).toEqual(
      hex('0c010000 0800 0400 84030000 0800 0500 00000000 0800 0600 2c010000'),
    )
    expect(payload((writer) => writeAllServers(writer, ipvsCommand.getService))).toEqual(hex('04010000'))
  })
})

const read = (bytes: Buffer) => {
  const reader = new AttributeReader()
  const one = new MessageReader(bytes)
  one.next()
  return { one, reader }
}

describe('answers', () => {
  it('reads a server with its statistics', () => {
    const bytes = message((writer) => {
      writer.header(hex('01010000'))
      const at = writer.open(1)
      writer.hostU16(1, 2)
      writer.hostU16(2, 6)
      // The kernel sends 16 bytes in both families.
      writer.raw(3, hex('ac1e0029 000000000000000000000000'))
      writer.u16(4, 80)
      writer.text(6, 'wlc')
      writer.raw(7, hex('03000000 ffffffff'))
      writer.hostU32(8, 10_800)
      const stats = writer.open(10)
      writer.hostU32(1, 1)
      writer.close(stats)
      const wide = writer.open(12)
      for (const [type, value] of [7, 20, 10, 3000, 2000].entries()) {
        const words = Buffer.alloc(8)
        words.writeBigUInt64LE(BigInt(value))
        writer.raw(type + 1, words)
      }
      writer.close(wide)
      writer.close(at)
    })
    const { one, reader } = read(bytes)
    expect(decodeServer(one, reader, new AddressCache())).toEqual({
      ...web,
      scheduler: 'wlc',
      flags: 1,
      statistics: { connections: 7, packetsIn: 20, packetsOut: 10, bytesIn: 3000, bytesOut: 2000 },
    })
  })

  it('ignores servers by firewall mark', () => {
    const bytes = message((writer) => {
      writer.header(hex('01010000'))
      const at = writer.open(1)
      writer.hostU16(1, 2)
      writer.hostU32(5, 9)
      writer.text(6, 'rr')
      writer.close(at)
    })
    const { one, reader } = read(bytes)
    expect(decodeServer(one, reader, new AddressCache())).toBeUndefined()
    expect(reader.error).toBeUndefined()
  })

  const anyIp = fc
    .oneof(fc.uint8Array({ minLength: 4, maxLength: 4 }), fc.uint8Array({ minLength: 16, maxLength: 16 }))
    .filter((bytes) => bytes.length === 4 || bytes[0] !== 0)
    .map((bytes) => formatIp(bytes))
  const port = fc.integer({ min: 1, max: 65_535 })

  it('reads back every server and destination that is written', () => {
    const services = fc.record({
      ip: anyIp,
      port,
      protocol: fc.constantFrom('tcp' as const, 'udp' as const, 'sctp' as const),
      scheduler: fc.constantFrom('rr', 'wlc', 'mh'),
      flags: fc.constantFrom(0, 1, 0x10, 0x11),
      timeout: fc.nat(86_400),
    })
    fc.assert(
      fc.property(services, anyIp, port, fc.nat(65_535), (given, ip, number, weight) => {
        const service: VirtualServer = { ...given, family: given.ip.includes(':') ? 6 : 4 }
        const written = read(message((writer) => writeServer(writer, ipvsCommand.newService, service)))
        const { statistics: _, ...seen } = decodeServer(written.one, written.reader, new AddressCache())!
        expect(seen).toEqual(service)
        const key = { ...service, family: ip.includes(':') ? 6 : 4 } as VirtualServer
        const one = { ip, port: number, weight }
        const destination = read(
          message((writer) => writeDestination(writer, ipvsCommand.newDestination, { ...key, ip }, one)),
        )
        const decoded = decodeDestination(destination.one, destination.reader, new AddressCache(), key.family)
        expect(decoded).toMatchObject({ ...one, method: 0, active: 0, inactive: 0, statistics: { connections: 0 } })
      }),
    )
  })

  it('survives any bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 120 }), (bytes) => {
        const framed = Buffer.concat([Buffer.from([16 + bytes.length, 0, 0, 0]), Buffer.alloc(12), bytes])
        const { one, reader } = read(framed)
        decodeServer(one, reader, new AddressCache())
        decodeDestination(one, reader, new AddressCache(), 4)
      }),
    )
  })
})
