// Conntrack's messages: a flow as the kernel dumps it, and the requests to dump and to delete. Pure.
//
// A DELETE without a tuple empties the whole table; every DELETE written here has one.

import type { Family } from '../../lib/ip.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import type { AttributeReader, MessageReader } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

const CTA = { original: 1, reply: 2, id: 12, zone: 18, filter: 25 } as const
const TUPLE = { ip: 1, protocol: 2, zone: 3 } as const
const IP = { source4: 1, destination4: 2, source6: 3, destination6: 4 } as const
const PROTOCOL = { number: 1, sourcePort: 2, destinationPort: 3 } as const
const FILTER = { original: 1, reply: 2 } as const
/** Bits of a filter: which fields of the tuple must be equal. In host order, unlike everything else of conntrack. */
const MATCH = { source: 1, destination: 2, protocol: 8, sourcePort: 0x10, destinationPort: 0x20 } as const

/** One direction of a flow. What is absent is not written. */
interface Tuple {
  readonly family: Family
  readonly protocol: number
  readonly source?: string | undefined
  readonly sourcePort?: number | undefined
  readonly destination?: string | undefined
  readonly destinationPort?: number | undefined
  readonly zone?: number | undefined
}

/** The original direction names a flow; where its answers come from says where it really goes. Addresses are canonical. */
export interface TrackedFlow {
  readonly family: Family
  readonly protocol: number
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource: string
  readonly replySourcePort: number
  /** Tells this flow from a later one with the same addresses; 0 if unknown. */
  readonly id: number
  /** 0: the default zone. */
  readonly zone: number
  /** Zone of the original direction alone. */
  readonly originalZone: number
}

export interface FlowFilter {
  readonly family: Family
  /** IP protocol number: 17 for UDP. */
  readonly protocol: number
  /** Only flows whose original destination port is one of these; all if absent. Looked at before anything is allocated. */
  readonly destinationPorts?: ReadonlySet<number>
}

/** All fields given must be equal. */
export interface FlowMatch {
  readonly family: Family
  readonly protocol: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource?: string
  readonly replySourcePort?: number
}

/** Body of a dump. `filtered`: the kernel is asked to leave out other protocols (it can since 5.8). */
export function writeDump(writer: MessageWriter, { family, protocol }: FlowFilter, filtered: boolean): void {
  writer.netfilter(familyNumber(family))
  if (!filtered) return
  writeTuple(writer, CTA.original, { family, protocol })
  writeFilter(writer, MATCH.protocol, 0)
}

/** Body of the deletion of one flow. */
export function writeDelete(writer: MessageWriter, flow: TrackedFlow): void {
  writer.netfilter(familyNumber(flow.family))
  writeTuple(writer, CTA.original, { ...flow, zone: flow.originalZone })
  if (flow.id !== 0) writer.u32(CTA.id, flow.id)
  if (flow.zone !== 0) writer.u16(CTA.zone, flow.zone)
}

/** Body of the deletion of all flows that match. */
export function writeMatch(writer: MessageWriter, match: FlowMatch): void {
  const { family, protocol, replySource, replySourcePort } = match
  writer.netfilter(familyNumber(family))
  const { destination, destinationPort } = match
  writeTuple(writer, CTA.original, { family, protocol, destination, destinationPort })
  let reply = 0
  if (replySource !== undefined || replySourcePort !== undefined) {
    reply = MATCH.protocol
    if (replySource !== undefined) reply |= MATCH.source
    if (replySourcePort !== undefined) reply |= MATCH.sourcePort
    writeTuple(writer, CTA.reply, { family, protocol, source: replySource, sourcePort: replySourcePort })
  }
  writeFilter(writer, MATCH.destination | MATCH.protocol | MATCH.destinationPort, reply)
}

/** Undefined if the filter leaves it out, or if `reader.error` is set. */
export function decodeFlow(
  message: MessageReader,
  reader: AttributeReader,
  filter: FlowFilter,
  addresses: AddressCache,
): TrackedFlow | undefined {
  let id = 0
  let zone = 0
  clear(original)
  clear(reply)
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === CTA.original) {
      readTuple(reader, original, filter.family)
      if (original.protocol !== filter.protocol) return undefined
      if (filter.destinationPorts?.has(original.destinationPort) === false) return undefined
    } else if (reader.type === CTA.reply) readTuple(reader, reply, filter.family)
    else if (reader.type === CTA.id) id = reader.u32()
    else if (reader.type === CTA.zone) zone = reader.u16()
  }
  if (original.source === 0 || original.destination === 0 || reply.source === 0) reader.fail('a flow without addresses')
  if (reader.error !== undefined) return undefined
  const { bytes } = message
  return {
    family: filter.family,
    protocol: original.protocol,
    source: addresses.text(filter.family, bytes, original.source),
    sourcePort: original.sourcePort,
    destination: addresses.text(filter.family, bytes, original.destination),
    destinationPort: original.destinationPort,
    replySource: addresses.text(filter.family, bytes, reply.source),
    replySourcePort: reply.sourcePort,
    id,
    zone,
    originalZone: original.zone,
  }
}

/** One direction as it comes: addresses are where they begin in the message, as most flows of a dump are of no interest. */
interface RawTuple {
  protocol: number
  source: number
  sourcePort: number
  destination: number
  destinationPort: number
  zone: number
}

const makeTuple = (): RawTuple => ({
  protocol: 0,
  source: 0,
  sourcePort: 0,
  destination: 0,
  destinationPort: 0,
  zone: 0,
})

/** Used again for each flow; a dump has a million. */
const original = makeTuple()
const reply = makeTuple()

function clear(tuple: RawTuple): void {
  tuple.protocol = tuple.source = tuple.sourcePort = tuple.destination = tuple.destinationPort = tuple.zone = 0
}

function readTuple(reader: AttributeReader, into: RawTuple, family: Family): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === TUPLE.ip) readIp(reader, into, family)
    else if (reader.type === TUPLE.protocol) readProtocol(reader, into)
    else if (reader.type === TUPLE.zone) into.zone = reader.u16()
  }
  reader.leave()
}

function readIp(reader: AttributeReader, into: RawTuple, family: Family): void {
  const [source, destination, length] = family === 4 ? ipv4Shape : ipv6Shape
  reader.enter()
  while (reader.next()) {
    if (reader.type !== source && reader.type !== destination) continue
    if (reader.length !== length) reader.fail(`an address of ${reader.length} bytes`)
    else if (reader.type === source) into.source = reader.start
    else into.destination = reader.start
  }
  reader.leave()
}

const ipv4Shape = [IP.source4, IP.destination4, 4] as const
const ipv6Shape = [IP.source6, IP.destination6, 16] as const

function readProtocol(reader: AttributeReader, into: RawTuple): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === PROTOCOL.number) into.protocol = reader.u8()
    else if (reader.type === PROTOCOL.sourcePort) into.sourcePort = reader.u16()
    else if (reader.type === PROTOCOL.destinationPort) into.destinationPort = reader.u16()
  }
  reader.leave()
}

function writeTuple(writer: MessageWriter, type: number, tuple: Tuple): void {
  const outer = writer.open(type)
  if (tuple.source !== undefined || tuple.destination !== undefined) {
    const ip = writer.open(TUPLE.ip)
    const four = tuple.family === 4
    if (tuple.source !== undefined) writer.raw(four ? IP.source4 : IP.source6, addressBytes(tuple.source))
    if (tuple.destination !== undefined)
      writer.raw(four ? IP.destination4 : IP.destination6, addressBytes(tuple.destination))
    writer.close(ip)
  }
  const protocol = writer.open(TUPLE.protocol)
  writer.u8(PROTOCOL.number, tuple.protocol)
  if (tuple.sourcePort !== undefined) writer.u16(PROTOCOL.sourcePort, tuple.sourcePort)
  if (tuple.destinationPort !== undefined) writer.u16(PROTOCOL.destinationPort, tuple.destinationPort)
  writer.close(protocol)
  if (tuple.zone) writer.u16(TUPLE.zone, tuple.zone)
  writer.close(outer)
}

function writeFilter(writer: MessageWriter, original: number, reply: number): void {
  const filter = writer.open(CTA.filter)
  writer.hostU32(FILTER.original, original)
  writer.hostU32(FILTER.reply, reply)
  writer.close(filter)
}

const familyNumber = (family: Family): number => (family === 4 ? 2 : 10)
