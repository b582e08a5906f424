import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { describeMessages } from '../../../src/sys/netlink/debug.ts'
import {
  AttributeReader,
  decodeAnswer,
  MessageReader,
  NLM_F_REQUEST,
  NLMSG_DONE,
  NLMSG_ERROR,
} from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'

const hex = (text: string) => Buffer.from(text.replace(/\s+/g, ''), 'hex')

interface Tree {
  readonly type: number
  readonly value: Buffer | readonly Tree[]
}

const type = fc.integer({ min: 1, max: 0x3fff })
const { tree } = fc.letrec<{ tree: Tree }>((tie) => ({
  tree: fc.record({
    type,
    value: fc.oneof(
      { depthSize: 'small' },
      fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
      fc.array(tie('tree'), { maxLength: 4 }),
    ),
  }),
}))

function write(writer: MessageWriter, trees: readonly Tree[]): void {
  for (const { type, value } of trees) {
    if (Buffer.isBuffer(value)) {
      writer.raw(type, value)
      continue
    }
    const at = writer.open(type)
    write(writer, value as readonly Tree[])
    writer.close(at)
  }
}

/** Reads a tree of attributes with the knowledge of what was written. */
function read(reader: AttributeReader, shape: readonly Tree[]): Tree[] {
  const found: Tree[] = []
  while (reader.next()) {
    const { value } = shape[found.length] as Tree
    const type = reader.type
    if (Buffer.isBuffer(value)) found.push({ type, value: reader.raw() })
    else {
      reader.enter()
      found.push({ type, value: read(reader, value as readonly Tree[]) })
      reader.leave()
    }
  }
  return found
}

describe('messages', () => {
  it('are the same after writing and reading any tree of attributes, also if the buffer has to grow', () => {
    fc.assert(
      fc.property(fc.array(fc.array(tree, { maxLength: 5 }), { maxLength: 4 }), fc.nat(0xffff), (bodies, flags) => {
        const writer = new MessageWriter(16, 7)
        for (const body of bodies) {
          writer.begin(0x0a01, flags)
          writer.netfilter(10, 0x1234)
          write(writer, body)
          writer.end()
        }
        const message = new MessageReader(writer.toBytes())
        for (const [i, body] of bodies.entries()) {
          expect(message.next()).toBe(true)
          expect(message).toMatchObject({ type: 0x0a01, flags, sequence: 7 + i, port: 0 })
          const reader = message.attributes(4)
          expect(read(reader, body)).toEqual(body)
          expect(reader.error).toBeUndefined()
        }
        expect(message.next()).toBe(false)
        expect(message.error).toBeUndefined()
      }),
    )
  })

  it('contain values in the byte order of their kind', () => {
    const writer = new MessageWriter(8)
    writer.u8(1, 17)
    writer.u16(2, 0x1234)
    writer.u32(3, -4)
    writer.u64(4, 10_800_000)
    writer.hostU32(5, 0x01020304)
    writer.text(6, 'tüv')
    expect(writer.toBytes()).toEqual(
      hex(
        '0500010011000000 0600020012340000 08000300fffffffc 0c0004000000000000a4cb80 0800050004030201 0900060074c3bc7600000000',
      ),
    )
    const reader = new AttributeReader().reset(writer.toBytes(), 0, writer.length)
    const values: unknown[] = []
    const readers = [
      () => reader.u8(),
      () => reader.u16(),
      () => reader.i32(),
      () => reader.u64(),
      () => reader.hostU32(),
      () => reader.text(),
    ]
    while (reader.next()) values.push(readers[values.length]?.())
    expect(values).toEqual([17, 0x1234, -4, 10_800_000, 0x01020304, 'tüv'])
  })

  it('cannot contain an attribute that is too long for the format', () => {
    const writer = new MessageWriter()
    const at = writer.open(3)
    for (let i = 0; i < 20; i++) writer.raw(1, Buffer.alloc(4000))
    expect(() => writer.close(at)).toThrow('65535')
  })

  it('do not reuse sequence numbers after clear', () => {
    const writer = new MessageWriter(64, 0xffffffff)
    expect(writer.begin(1, NLM_F_REQUEST)).toBe(0xffffffff)
    writer.end()
    writer.clear()
    expect(writer.begin(1, NLM_F_REQUEST)).toBe(1)
    expect(writer.count).toBe(1)
  })
})

describe('answers', () => {
  const read = (bytes: Buffer) => {
    const message = new MessageReader(bytes)
    expect(message.next()).toBe(true)
    return decodeAnswer(message)
  }
  const header = (length: number, type: number, flags: number) => {
    const bytes = Buffer.alloc(16)
    bytes.writeUInt32LE(length, 0)
    bytes.writeUInt16LE(type, 4)
    bytes.writeUInt16LE(flags, 6)
    return bytes
  }
  const words = hex('12000100 4e6f20737563682066696c6500000000 08000200 24000000'.replace('12', '11'))

  it('may be an acknowledgement', () => {
    expect(read(Buffer.concat([header(36, NLMSG_ERROR, 0x100), Buffer.alloc(4), header(20, 0x102, 5)]))).toEqual({
      errno: 0,
      text: '',
      offset: -1,
      about: 0x102,
    })
  })

  it('have errno, description and offset, whether the message at fault is quoted whole or not', () => {
    const errno = Buffer.alloc(4)
    errno.writeInt32LE(-2)
    const expected = { errno: 2, text: 'No such file', offset: 0x24, about: 0xa02 }
    const cut = [errno, header(40, 0xa02, 5), words]
    expect(read(Buffer.concat([header(36 + words.length, NLMSG_ERROR, 0x300), ...cut]))).toEqual(expected)
    const whole = [errno, header(40, 0xa02, 5), Buffer.alloc(24, 0xff), words]
    expect(read(Buffer.concat([header(60 + words.length, NLMSG_ERROR, 0x200), ...whole]))).toEqual(expected)
  })

  it('may end a dump with an error', () => {
    const errno = Buffer.alloc(4)
    errno.writeInt32LE(-4)
    expect(read(Buffer.concat([header(20, NLMSG_DONE, 2), errno])).errno).toBe(4)
    expect(read(header(16, NLMSG_DONE, 2)).errno).toBe(0)
  })
})

describe('hostile bytes', () => {
  const readAll = (bytes: Buffer) => {
    const message = new MessageReader(bytes)
    let seen = 0
    while (message.next()) {
      seen++
      expect(message.end).toBeLessThanOrEqual(bytes.length)
      decodeAnswer(message)
      const reader = message.attributes(4)
      const deep = (depth: number) => {
        while (reader.next()) {
          seen++
          expect(reader.end).toBeLessThanOrEqual(message.end)
          reader.u8()
          reader.text()
          if (depth < 4) {
            reader.enter()
            deep(depth + 1)
            reader.leave()
          }
        }
      }
      deep(0)
      reader.u64()
    }
    describeMessages('test', bytes, bytes.length)
    return seen
  }

  it('never throw, never read outside, always end: random bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        readAll(Buffer.from(bytes))
      }),
      { numRuns: 1000 },
    )
  })

  it('never throw, never read outside, always end: real messages with changed bytes and missing ends', () => {
    const writer = new MessageWriter()
    writer.begin(NLMSG_ERROR, 0x300)
    writer.netfilter(2)
    write(writer, [{ type: 1, value: [{ type: 2, value: Buffer.alloc(9) }] }])
    writer.end()
    writer.begin(0x100, 2)
    writer.netfilter(2)
    write(writer, [{ type: 1, value: [{ type: 1, value: [{ type: 1, value: Buffer.alloc(4) }] }] }])
    writer.end()
    const good = writer.toBytes()
    expect(readAll(good)).toBeGreaterThan(5)
    fc.assert(
      fc.property(
        fc.nat(good.length),
        fc.array(fc.tuple(fc.nat(good.length - 1), fc.nat(255)), { maxLength: 6 }),
        (cut, changes) => {
          const bytes = Buffer.from(good)
          for (const [at, value] of changes) bytes[at] = value
          readAll(bytes.subarray(0, cut))
        },
      ),
      { numRuns: 2000 },
    )
  })

  it('are reported with the first error', () => {
    const short = new MessageReader(hex('10000000 0100 0000 01000000 00000000 ffff'))
    expect(short.next()).toBe(true)
    expect(short.next()).toBe(false)
    expect(short.error).toBe('2 bytes left, too few for a message header')
    const reader = new AttributeReader().reset(hex('0300010000000000'), 0, 8)
    expect(reader.next()).toBe(false)
    expect(reader.error).toBe('attribute of 3 bytes where 8 are left')
    expect(reader.next()).toBe(false)
    expect(reader.text()).toBe('')
  })
})

it('prints messages in readable form', () => {
  const writer = new MessageWriter(64, 3)
  writer.begin(0x0a00, 1)
  writer.netfilter(2)
  writer.text(1, 'kube-proxy')
  const at = writer.open(4)
  writer.u32(1, 5)
  writer.close(at)
  writer.end()
  expect(describeMessages('send', writer.bytes, writer.length)).toBe(
    [
      'send type=0xa00 flags=0x1 seq=3 32 bytes',
      '  header 02000000',
      '  [1] 6b7562652d70726f787900 "kube-proxy"',
      '  [4]',
      '    [1] 00000005',
      '',
    ].join('\n'),
  )
})
