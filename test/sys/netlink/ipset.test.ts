// Messages of ipset: golden bytes, members that are written and read again, and broken input.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { AddressCache } from '../../../src/sys/netlink/address-codec.ts'
import { decodeSet, writeCreate, writeList, writeMember } from '../../../src/sys/netlink/ipset.ts'
import { AttributeReader, MessageReader } from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'

const hex = (text: string) => Buffer.from(text.replace(/\s+/g, ''), 'hex')

function message(write: (writer: MessageWriter) => void): Buffer {
  const writer = new MessageWriter(64, 7)
  writer.begin(0x602, 5)
  write(writer)
  writer.end()
  return writer.toBytes()
}

const payload = (write: (writer: MessageWriter) => void) => message(write).subarray(16)

describe('ipset requests', () => {
  it('makes a hash set', () => {
    const set = { name: 'KUBE-CLUSTER-IP', type: 'hash:ip,port', family: 4 } as const
    expect(payload((writer) => writeCreate(writer, set))).toEqual(
      hex(`02000000 0500 0100 06000000  1400 0200 ${Buffer.from('KUBE-CLUSTER-IP\0').toString('hex')}
        1100 0300 ${Buffer.from('hash:ip,port\0').toString('hex')} 000000  0500 0400 05000000  0500 0500 02000000
        1400 0780 0800 1240 00000400 0800 1340 00010000`),
    )
  })

  it('makes a bitmap of all ports', () => {
    const bytes = payload((writer) => writeCreate(writer, { name: 'P', type: 'bitmap:port', family: 6 }))
    expect(bytes.subarray(-20)).toEqual(hex('1400 0780 0600 0440 0000 0000 0600 0540 ffff 0000'))
  })

  it('adds address, protocol, port and range', () => {
    const bytes = payload((writer) => writeMember(writer, 'S', '1.2.3.4,tcp:80,203.0.113.0/25'))
    expect(bytes.subarray(12 + 8)).toEqual(
      hex(`3400 0780 0c00 0180 0800 0140 01020304  0600 0440 0050 0000  0500 0700 06000000
        0c00 1480 0800 0140 cb007100  0500 1500 19000000`),
    )
  })

  it('lists one set, or the headers of all', () => {
    expect(payload((writer) => writeList(writer, undefined))).toEqual(
      hex('02000000 0500 0100 06000000 0800 0640 00000004'),
    )
    expect(payload((writer) => writeList(writer, 'S'))).toEqual(hex('02000000 0500 0100 06000000 0600 0200 53000000'))
  })
})

/** Makes a list as the kernel sends it, with members in the form in which we write them. */
function listOf(members: readonly string[]): Buffer {
  return message((writer) => {
    writer.netfilter(2)
    writer.text(2, 'S')
    writer.text(3, 'hash:ip')
    writer.u8(5, 2)
    const header = writer.open(7)
    writer.u32(24 | 0x4000, members.length)
    writer.close(header)
    const list = writer.open(8)
    for (const member of members) {
      const inner = payload((one) => writeMember(one, 'S', member))
      writer.raw(7 | 0x8000, inner.subarray(24))
    }
    writer.close(list)
  })
}

describe('ipset answers', () => {
  it.each(['80', '1.2.3.4', 'fd00::1', '1.2.3.4,udp:53', '10.0.0.1,sctp:80,10.0.0.1', 'fd00::1,tcp:80,fd00:1::/32'])(
    'reads back %s',
    (member) => {
      const reader = new AttributeReader()
      const one = new MessageReader(listOf([member, member]))
      one.next()
      const members: string[] = []
      const set = decodeSet(one, reader, new AddressCache(), (text) => members.push(text))
      expect(set).toEqual({ name: 'S', type: 'hash:ip', family: 4, elements: 2 })
      expect(members).toEqual([member, member])
    },
  )

  it('survives any bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 120 }), (bytes) => {
        const framed = Buffer.concat([Buffer.from([16 + bytes.length, 0, 0, 0]), Buffer.alloc(12), bytes])
        const one = new MessageReader(framed)
        if (one.next()) decodeSet(one, new AttributeReader(), new AddressCache(), () => undefined)
      }),
    )
  })
})
