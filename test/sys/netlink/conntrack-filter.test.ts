// The kernel itself runs the filters, on a pair of Unix sockets that carry messages as connection tracking sends them.

import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ConnectionDecoder } from '../../../src/sys/conntrack/conntrack-events.ts'
import { coverPorts, filterConnections, filterSamples } from '../../../src/sys/conntrack/conntrack-filter.ts'
import { isSampled } from '../../../src/sys/flows/flow-events.ts'
import * as libc from '../../../src/sys/libc.ts'
import { addressBytes } from '../../../src/sys/netlink/address-codec.ts'
import { MessageReader } from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'

const [AF_UNIX, SOCK_DGRAM] = [1, 2]
const [SEEN_REPLY, ASSURED, CONFIRMED, DST_NAT] = [2, 4, 8, 32]
const [SYN_SENT, ESTABLISHED] = [1, 3]
const kinds = { new: [0x100, 0x600], update: [0x100, 0], destroy: [0x102, 0] } as const

interface Notification {
  readonly kind: keyof typeof kinds
  readonly family: 4 | 6
  readonly protocol: number
  readonly status: number | undefined
  /** The TCP state. */
  readonly state?: number | undefined
  readonly sourcePort: number
  readonly endpointPort: number
  readonly isTranslated: boolean
}

const opening: Notification = {
  kind: 'new',
  family: 4,
  protocol: 6,
  status: CONFIRMED | DST_NAT,
  state: SYN_SENT,
  sourcePort: 40_000,
  endpointPort: 8080,
  isTranslated: true,
}

const addresses = { 4: ['10.0.0.9', '172.30.0.1', '10.1.0.1'], 6: ['fd00::9', 'fd00:30::1', 'fd00:1::1'] } as const

function writeTuple(writer: MessageWriter, type: number, { family, protocol }: Notification, ends: readonly Ends[]) {
  const outer = writer.open(type)
  const ip = writer.open(1)
  for (const [i, { ip }] of ends.entries()) writer.raw((family === 4 ? 1 : 3) + i, addressBytes(ip))
  writer.close(ip)
  const proto = writer.open(2)
  writer.u8(1, protocol)
  for (const [i, { port }] of ends.entries()) writer.u16(2 + i, port)
  writer.close(proto)
  writer.close(outer)
}

interface Ends {
  readonly ip: string
  readonly port: number
}

/** The parts in the order of the kernel. */
const parts: readonly ((writer: MessageWriter, notification: Notification) => void)[] = [
  (writer, notification) => {
    const [client, service, endpoint] = addresses[notification.family]
    const { sourcePort, endpointPort, isTranslated } = notification
    const dialled = isTranslated ? { ip: service, port: 80 } : { ip: endpoint, port: endpointPort }
    writeTuple(writer, 1, notification, [{ ip: client, port: sourcePort }, dialled])
  },
  (writer, notification) => {
    const [client, , endpoint] = addresses[notification.family]
    const { sourcePort, endpointPort } = notification
    writeTuple(writer, 2, notification, [
      { ip: endpoint, port: endpointPort },
      { ip: client, port: sourcePort },
    ])
  },
  (writer) => writer.u16(18, 3),
  (writer) => writer.u32(12, 77),
  (writer, { status }) => void (status !== undefined && writer.u32(3, status)),
  (writer) => writer.u32(7, 120),
  (writer, { state }) => {
    if (state === undefined) return
    const info = writer.open(4)
    const tcp = writer.open(1)
    writer.u8(1, state)
    writer.close(tcp)
    writer.close(info)
  },
]

function encode(notification: Notification, order: readonly number[] = [0, 1, 3, 4, 5, 6]): Buffer {
  const writer = new MessageWriter()
  const [type, flags] = kinds[notification.kind]
  writer.begin(type, flags)
  writer.netfilter(notification.family === 4 ? 2 : 10)
  for (const i of order) parts[i]?.(writer, notification)
  writer.end()
  return writer.toBytes()
}

let receiver = -1
let sender = -1

beforeAll(() => {
  receiver = libc.socket(AF_UNIX, SOCK_DGRAM | libc.SOCK_CLOEXEC, 0)
  sender = libc.socket(AF_UNIX, SOCK_DGRAM | libc.SOCK_CLOEXEC, 0)
  // The kernel chooses a name that is not a file.
  expect(libc.bind(receiver, Uint8Array.of(AF_UNIX, 0))).toBe(0)
  const name = Buffer.alloc(32)
  const length = libc.getsockname(receiver, name)
  expect(libc.connect(sender, name.subarray(0, length))).toBe(0)
})

afterAll(() => {
  libc.close(receiver)
  libc.close(sender)
})

const attach = (program: Uint8Array): void => expect(libc.attachFilter(receiver, program)).toBe(0)

const inbox = Buffer.alloc(4096)

/** Whether the filter lets the bytes pass. */
function passes(bytes: Uint8Array): boolean {
  libc.send(sender, bytes, bytes.length)
  const length = libc.recv(receiver, inbox, libc.MSG_DONTWAIT)
  if (length >= 0) expect(inbox.subarray(0, length)).toEqual(Buffer.from(bytes))
  return length >= 0
}

const notifications = fc.record({
  kind: fc.constantFrom('new' as const, 'update' as const, 'destroy' as const),
  family: fc.constantFrom(4 as const, 6 as const),
  protocol: fc.constantFrom(6, 6, 6, 17, 132, 1),
  status: fc.option(fc.nat(0xffff), { nil: undefined }),
  state: fc.option(fc.nat(9), { nil: undefined }),
  sourcePort: fc.nat(65_535),
  endpointPort: fc.constantFrom(80, 443, 8080, 8081, 9090),
  isTranslated: fc.boolean(),
})

/** What says something new about an endpoint. What lacks an attribute may. */
function matters({ kind, status, state }: Notification): boolean {
  if (kind === 'new') return state === undefined || state === SYN_SENT
  if (status === undefined) return true
  if (kind === 'destroy') return (status & SEEN_REPLY) === 0
  return (status & SEEN_REPLY) !== 0 && (status & ASSURED) === 0
}

const linux = describe.runIf(process.platform === 'linux')

linux('the filter for connections to endpoints', () => {
  it.each([4, 6] as const)('lets two notifications of a healthy connection pass in IPv%i', (family) => {
    attach(filterConnections([8080]))
    const replied = CONFIRMED | DST_NAT | SEEN_REPLY
    const life: readonly Notification[] = [
      { ...opening, family },
      { ...opening, family, kind: 'update', status: replied },
      // Established, both sides close, and the kernel forgets it.
      ...[1, 2, 3, 4].map((): Notification => ({ ...opening, family, kind: 'update', status: replied | ASSURED })),
      { ...opening, family, kind: 'destroy', status: replied | ASSURED },
    ]
    expect(life.map((one) => passes(encode(one)))).toEqual([true, true, false, false, false, false, false])
  })

  it.each([4, 6] as const)('lets a refused connection pass in IPv%i', (family) => {
    attach(filterConnections([8080]))
    expect(passes(encode({ ...opening, family, kind: 'destroy' }))).toBe(true)
  })

  it('decides by kind, status, protocol and port, in whatever order the attributes are', () => {
    const watched = [443, 8080]
    attach(filterConnections(watched))
    const orders = fc.shuffledSubarray([0, 1, 2, 3, 4, 5, 6], { minLength: 7, maxLength: 7 })
    fc.assert(
      fc.property(notifications, orders, (one, order) => {
        const expected = matters(one) && one.protocol === 6 && watched.includes(one.endpointPort)
        expect(passes(encode(one, order))).toBe(expected)
      }),
      { numRuns: 2_000 },
    )
  })

  it('lets no connection pass that begins with another packet than a SYN', () => {
    attach(filterConnections([8080]))
    expect(passes(encode(opening))).toBe(true)
    expect(passes(encode({ ...opening, state: ESTABLISHED }))).toBe(false)
  })

  it('lets pass what lacks an attribute', () => {
    attach(filterConnections([1]))
    for (const kind of ['new', 'update', 'destroy'] as const) {
      const one = { ...opening, kind, status: undefined, state: undefined }
      expect(passes(encode(one, [0, 3, 5]))).toBe(true)
      expect(passes(encode(one, []))).toBe(true)
      expect(passes(encode(one))).toBe(false)
      expect(passes(encode({ ...one, endpointPort: 1 }))).toBe(true)
    }
  })

  it('lets all watched ports pass, however many there are, and nothing while there are none', () => {
    const ports = Array.from({ length: 500 }, (_, i) => 1_000 + 7 * i)
    attach(filterConnections(ports))
    for (const endpointPort of ports) expect(passes(encode({ ...opening, endpointPort }))).toBe(true)
    for (const endpointPort of [0, 999, 65_535]) expect(passes(encode({ ...opening, endpointPort }))).toBe(false)
    attach(filterConnections([]))
    expect(passes(encode(opening))).toBe(false)
  })
})

linux('the filter for a share of all flows', () => {
  it.each([1, 2, 8, 1024])('lets one in %i pass, by the port of the client', (rate) => {
    attach(filterSamples(rate))
    fc.assert(
      fc.property(notifications, (one) => {
        expect(passes(encode(one))).toBe(isSampled(one.sourcePort, rate))
      }),
      { numRuns: 500 },
    )
  })
})

it('covers ports with few ranges, in order', () => {
  expect(coverPorts([], 3)).toEqual([])
  expect(coverPorts([80, 8080, 80, 443], 3)).toEqual([
    [80, 80],
    [443, 443],
    [8080, 8080],
  ])
  expect(coverPorts([1, 2, 3, 10, 12, 50], 2)).toEqual([
    [1, 12],
    [50, 50],
  ])
  fc.assert(
    fc.property(fc.array(fc.nat(65_535)), fc.integer({ min: 1, max: 10 }), (ports, most) => {
      const ranges = coverPorts(ports, most)
      expect(ranges.length).toBeLessThanOrEqual(most)
      for (const port of ports) expect(ranges.some(([first, last]) => first <= port && port <= last)).toBe(true)
      const edges = ranges.flat()
      expect(edges).toEqual([...edges].sort((a, b) => a - b))
      expect(edges.every((port) => ports.includes(port))).toBe(true)
    }),
  )
})

describe('what a notification says', () => {
  function decode(bytes: Buffer, ports: readonly number[] = [8080]): readonly (readonly unknown[])[] {
    const calls: (readonly unknown[])[] = []
    const decoder = new ConnectionDecoder({
      opened: (...args) => void calls.push(['opened', ...args]),
      answered: (...args) => void calls.push(['answered', ...args]),
      ended: (...args) => void calls.push(['ended', ...args]),
    })
    decoder.ports = new Set(ports)
    const message = new MessageReader(bytes)
    while (message.next()) decoder.decode(message)
    return calls
  }

  it.each([
    [4, '10.1.0.1:8080'],
    [6, '[fd00:1::1]:8080'],
  ] as const)('a connection begins, is answered, or is refused, in IPv%i', (family, endpoint) => {
    const one = { ...opening, family }
    expect(decode(encode(one))).toEqual([['opened', 77, endpoint, true]])
    expect(decode(encode({ ...one, isTranslated: false }))).toEqual([['opened', 77, endpoint, false]])
    expect(decode(encode({ ...one, kind: 'update', status: SEEN_REPLY }))).toEqual([['answered', 77, endpoint]])
    expect(decode(encode({ ...one, kind: 'destroy' }))).toEqual([['ended', 77, endpoint]])
  })

  it('a connection that is tracked late is answered already', () => {
    const endpoint = '10.1.0.1:8080'
    expect(decode(encode({ ...opening, status: SEEN_REPLY | ASSURED }))).toEqual([
      ['opened', 77, endpoint, true],
      ['answered', 77, endpoint],
    ])
  })

  it('nothing, if it is about something else, or says nothing new', () => {
    for (const other of [
      { ...opening, endpointPort: 80 },
      { ...opening, protocol: 17 },
      { ...opening, kind: 'update' as const },
      { ...opening, kind: 'destroy' as const, status: SEEN_REPLY },
    ]) {
      expect(decode(encode(other))).toEqual([])
    }
  })

  it('is the same in whatever order the attributes are, and never throws', () => {
    const orders = fc.shuffledSubarray([0, 1, 2, 3, 4, 5, 6], { minLength: 7, maxLength: 7 })
    fc.assert(
      fc.property(notifications, orders, fc.nat(), fc.nat(255), (one, order, at, byte) => {
        const bytes = encode(one, order)
        expect(decode(bytes)).toEqual(decode(encode(one)))
        bytes[20 + (at % (bytes.length - 20))] = byte
        decode(bytes)
      }),
    )
  })
})
