import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../src/lib/ip.ts'
import { AddressCache } from '../../../src/sys/netlink/address-codec.ts'
import {
  FlowDecoder,
  type FlowFilter,
  type TrackedFlow,
  writeDelete,
  writeDump,
  writeMatch,
} from '../../../src/sys/netlink/conntrack-codec.ts'
import { MessageReader } from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'

const hex = (text: string) => Buffer.from(text.replace(/\s+/g, ''), 'hex')

const body = (write: (writer: MessageWriter) => void): Buffer => {
  const writer = new MessageWriter(64, 7)
  writer.begin(0x101, 0x301)
  write(writer)
  writer.end()
  return writer.toBytes()
}

/** A flow as the kernel sends it: the translated DNS query of a pod. */
const dns = hex(`
  02 00 00 00
  34 00 01 80  14 00 01 80  08 00 01 00 0a 00 00 02  08 00 02 00 ac 1e 00 2a
               1c 00 02 80  05 00 01 00 11 00 00 00  06 00 02 00 82 64 00 00  06 00 03 00 00 35 00 00
  34 00 02 80  14 00 01 80  08 00 01 00 0a b4 00 01  08 00 02 00 0a 00 00 02
               1c 00 02 80  05 00 01 00 11 00 00 00  06 00 02 00 00 35 00 00  06 00 03 00 82 64 00 00
  08 00 03 00 00 00 01 aa   08 00 08 00 00 00 00 00   08 00 0c 00 37 37 89 61   08 00 0b 00 00 00 00 01   08 00 07 00 00 00 00 1d`)

const dnsFlow: TrackedFlow = {
  family: 4,
  protocol: 17,
  source: '10.0.0.2',
  sourcePort: 33380,
  destination: '172.30.0.42',
  destinationPort: 53,
  replySource: '10.180.0.1',
  replySourcePort: 53,
  id: 0x37378961,
  zone: 0,
  originalZone: 0,
}

function framed(payload: Buffer): Buffer {
  const header = Buffer.alloc(16)
  header.writeUInt32LE(16 + payload.length, 0)
  header.writeUInt16LE(0x100, 4)
  return Buffer.concat([header, payload])
}

function decode(bytes: Buffer, filter: FlowFilter = { family: 4, protocol: 17 }) {
  const message = new MessageReader(bytes)
  const decoder = new FlowDecoder(filter, new AddressCache())
  const flow = message.next() ? decoder.decode(message) : undefined
  return { flow, error: decoder.error ?? message.error }
}

describe('conntrack messages', () => {
  it('requests a dump with bytes that the kernel is known to accept', () => {
    const expected = '14 00 00 00 01 01 01 03 07 00 00 00 00 00 00 00 02 00 00 00'
    expect(body((writer) => writeDump(writer, { family: 4, protocol: 17 }, false))).toEqual(hex(expected))
  })

  it('requests the flows of one protocol only', () => {
    const bytes = body((writer) => writeDump(writer, { family: 6, protocol: 17 }, true)).subarray(16)
    expect(bytes).toEqual(hex('0a000000 10000180 0c000280 0500010011000000 14001980 0800010008000000 0800020000000000'))
  })

  it('reads a flow as the kernel sends it', () => {
    expect(decode(framed(dns))).toEqual({ flow: dnsFlow, error: undefined })
  })

  it('leaves out other protocols and ports', () => {
    expect(decode(framed(dns), { family: 4, protocol: 6 }).flow).toBeUndefined()
    expect(decode(framed(dns), { family: 4, protocol: 17, destinationPorts: new Set([80]) }).flow).toBeUndefined()
    expect(decode(framed(dns), { family: 4, protocol: 17, destinationPorts: new Set([53]) }).flow).toEqual(dnsFlow)
  })

  it('deletes a flow by its tuple and its id', () => {
    const bytes = body((writer) => writeDelete(writer, dnsFlow)).subarray(16)
    expect(bytes).toEqual(Buffer.concat([dns.subarray(0, 4 + 0x34), hex('08000c0037378961')]))
  })

  it('states the zone of a flow that has one', () => {
    const bytes = body((writer) => writeDelete(writer, { ...dnsFlow, zone: 7, originalZone: 9 })).subarray(16)
    expect(bytes.toString('hex')).toContain('0600120000070000')
    expect(bytes.toString('hex')).toContain('0600030000090000')
  })

  it('never writes a deletion without a tuple', () => {
    const address = fc.uint8Array({ minLength: 4, maxLength: 4 }).map(formatIp)
    const port = fc.nat(65535)
    const match = fc.record(
      { destination: address, destinationPort: port, replySource: address, replySourcePort: port },
      { requiredKeys: ['destination', 'destinationPort'] },
    )
    fc.assert(
      fc.property(match, (match) => {
        const message = new MessageReader(body((writer) => writeMatch(writer, { family: 4, protocol: 17, ...match })))
        expect(message.next()).toBe(true)
        const reader = message.attributes(4)
        expect(reader.next()).toBe(true)
        expect(reader.type).toBe(1)
        expect(reader.length).toBeGreaterThan(12)
      }),
    )
  })

  it('reads back what it writes', () => {
    const family = fc.constantFrom(4 as const, 6 as const)
    const arbitrary = family.chain((family) => {
      // With this first byte no IPv6 address is a mapped IPv4 address.
      const address = fc
        .uint8Array({ minLength: family === 4 ? 4 : 16, maxLength: family === 4 ? 4 : 16 })
        .map((bytes) => formatIp(Uint8Array.from([0x20, ...bytes.slice(1)])))
      const port = fc.nat(65535)
      return fc.record({
        family: fc.constant(family),
        protocol: fc.nat(255),
        source: address,
        sourcePort: port,
        destination: address,
        destinationPort: port,
        id: fc.nat(0xffffffff),
        zone: fc.nat(65535),
        originalZone: fc.nat(65535),
      })
    })
    fc.assert(
      fc.property(arbitrary, (flow) => {
        const original = body((writer) => writeDelete(writer, { ...flow, replySource: '', replySourcePort: 0 }))
        // A request has no reply direction, which is another tuple of the same kind.
        const reply = Buffer.from(original.subarray(20, 20 + original.readUInt16LE(20)))
        reply.writeUInt16LE(0x8002, 2)
        const decoded = decode(framed(Buffer.concat([original.subarray(16), reply])), flow)
        expect(decoded.flow).toEqual({ ...flow, replySource: flow.source, replySourcePort: flow.sourcePort })
      }),
    )
  })

  it('survives flows with changed bytes and missing ends', () => {
    const good = framed(dns)
    fc.assert(
      fc.property(
        fc.nat(good.length),
        fc.array(fc.tuple(fc.nat(good.length - 1), fc.nat(255)), { maxLength: 5 }),
        (cut, changes) => {
          const bytes = Buffer.from(good)
          for (const [at, value] of changes) bytes[at] = value
          const { flow } = decode(bytes.subarray(0, cut))
          if (flow !== undefined) expect(flow.destination).not.toBe('')
        },
      ),
      { numRuns: 3000 },
    )
  })
})
