// Writes requests to conntrack, and reads flows from its dumps. Pure.
//
// A DELETE without a tuple empties the whole table. Every DELETE that this file writes has one.

import type { Family } from '../../lib/ip.ts'
import {
  CTA,
  CTA_IP,
  CTA_PROTO,
  CTA_TUPLE,
  clearTuple,
  IPS_DST_NAT,
  IPS_SEEN_REPLY,
  makeTuple,
  readTuple,
  type TuplePositions,
} from '../conntrack/conntrack-tuple.ts'
import { familyNumber } from '../ip-numbers.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import { AttributeReader, type MessageReader } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

const CTA_FILTER = { ORIG_FLAGS: 1, REPLY_FLAGS: 2 } as const
/** Bits of a filter, CTA_FILTER_F_*: the fields of the tuple that must be equal. In host order, unlike all other numbers of conntrack. */
const CTA_FILTER_F = { IP_SRC: 1, IP_DST: 2, PROTO_NUM: 8, PROTO_SRC_PORT: 0x10, PROTO_DST_PORT: 0x20 } as const

/** One direction of a flow. An absent field is not written. */
interface Tuple {
  readonly family: Family
  readonly protocol: number
  readonly source?: string | undefined
  readonly sourcePort?: number | undefined
  readonly destination?: string | undefined
  readonly destinationPort?: number | undefined
  readonly zone?: number | undefined
}

/** The original direction identifies a flow. The source of its replies is the real destination. Addresses are canonical. */
export interface TrackedFlow {
  readonly family: Family
  readonly protocol: number
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource: string
  readonly replySourcePort: number
  /** Distinguishes this flow from a later one with the same addresses; 0 if unknown. */
  readonly id: number
  /** 0 is the default zone. */
  readonly zone: number
  /** The zone of the original direction alone. */
  readonly originalZone: number
}

export interface FlowFilter {
  readonly family: Family
  /** The IP protocol number: 17 for UDP. Absent: all protocols. */
  readonly protocol?: number
  /** Selects flows by their original destination port, before anything is allocated for the flow. Absent: all ports. */
  readonly destinationPorts?: ReadonlySet<number>
  /** Selects flows in which no reply was seen. */
  readonly unreplied?: boolean
  /** Selects flows whose destination is translated, if the kernel can; the caller compares again. */
  readonly translated?: boolean
  /** Selects flows by who answers them, if the kernel can; the caller compares again. */
  readonly replySource?: string
}

/** Matches flows whose fields equal all given ones. */
export interface FlowMatch {
  readonly family: Family
  readonly protocol: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource?: string
  readonly replySourcePort?: number
}

/** The direction of the replies of one flow: from who answers, to the client. */
export interface ReplyTuple {
  readonly family: Family
  readonly protocol: number
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
}

/** Writes the body of a request for one flow. */
export function writeFind(writer: MessageWriter, reply: ReplyTuple): void {
  writer.netfilter(familyNumber(reply.family))
  writeTuple(writer, CTA.TUPLE_REPLY, reply)
}

/** Writes the body of a dump request. If `filtered`, the kernel leaves out other protocols (Linux 5.8) and, if it is newer, flows with replies. */
export function writeDump(writer: MessageWriter, filter: FlowFilter, filtered: boolean): void {
  const { family, protocol, unreplied, translated, replySource } = filter
  writer.netfilter(familyNumber(family))
  if (!filtered) return
  if (protocol !== undefined) {
    writeTuple(writer, CTA.TUPLE_ORIG, { family, protocol })
    // In IPv6 the kernel inverts the comparison of addresses (seen on 6.18).
    const source = family === 4 ? replySource : undefined
    if (source !== undefined) writeTuple(writer, CTA.TUPLE_REPLY, { family, protocol, source })
    writeFilter(writer, CTA_FILTER_F.PROTO_NUM, source === undefined ? 0 : CTA_FILTER_F.PROTO_NUM | CTA_FILTER_F.IP_SRC)
  }
  if (unreplied !== true && translated !== true) return
  writer.u32(CTA.STATUS, translated === true ? IPS_DST_NAT : 0)
  writer.u32(CTA.STATUS_MASK, (unreplied === true ? IPS_SEEN_REPLY : 0) | (translated === true ? IPS_DST_NAT : 0))
}

/** Writes the body of a request that deletes one flow. */
export function writeDelete(writer: MessageWriter, flow: TrackedFlow): void {
  writer.netfilter(familyNumber(flow.family))
  writeTuple(writer, CTA.TUPLE_ORIG, { ...flow, zone: flow.originalZone })
  if (flow.id !== 0) writer.u32(CTA.ID, flow.id)
  if (flow.zone !== 0) writer.u16(CTA.ZONE, flow.zone)
}

/** Writes the body of a request that deletes all flows that match. */
export function writeMatch(writer: MessageWriter, match: FlowMatch): void {
  const { family, protocol, replySource, replySourcePort } = match
  writer.netfilter(familyNumber(family))
  const { destination, destinationPort } = match
  writeTuple(writer, CTA.TUPLE_ORIG, { family, protocol, destination, destinationPort })
  let reply = 0
  if (replySource !== undefined || replySourcePort !== undefined) {
    reply = CTA_FILTER_F.PROTO_NUM
    if (replySource !== undefined) reply |= CTA_FILTER_F.IP_SRC
    if (replySourcePort !== undefined) reply |= CTA_FILTER_F.PROTO_SRC_PORT
    writeTuple(writer, CTA.TUPLE_REPLY, { family, protocol, source: replySource, sourcePort: replySourcePort })
  }
  writeFilter(writer, CTA_FILTER_F.IP_DST | CTA_FILTER_F.PROTO_NUM | CTA_FILTER_F.PROTO_DST_PORT, reply)
}

function writeTuple(writer: MessageWriter, type: number, tuple: Tuple): void {
  const { source, destination } = tuple
  const outer = writer.open(type)
  if (source !== undefined || destination !== undefined) {
    const ip = writer.open(CTA_TUPLE.IP)
    const isIpv4 = tuple.family === 4
    if (source !== undefined) writer.raw(isIpv4 ? CTA_IP.V4_SRC : CTA_IP.V6_SRC, addressBytes(source))
    if (destination !== undefined) writer.raw(isIpv4 ? CTA_IP.V4_DST : CTA_IP.V6_DST, addressBytes(destination))
    writer.close(ip)
  }
  const protocol = writer.open(CTA_TUPLE.PROTO)
  writer.u8(CTA_PROTO.NUM, tuple.protocol)
  if (tuple.sourcePort !== undefined) writer.u16(CTA_PROTO.SRC_PORT, tuple.sourcePort)
  if (tuple.destinationPort !== undefined) writer.u16(CTA_PROTO.DST_PORT, tuple.destinationPort)
  writer.close(protocol)
  if (tuple.zone) writer.u16(CTA_TUPLE.ZONE, tuple.zone)
  writer.close(outer)
}

function writeFilter(writer: MessageWriter, original: number, reply: number): void {
  const filter = writer.open(CTA.FILTER)
  writer.hostU32(CTA_FILTER.ORIG_FLAGS, original)
  writer.hostU32(CTA_FILTER.REPLY_FLAGS, reply)
  writer.close(filter)
}

/** Reads the flows of one dump. Its tuples are used again for each flow, because a dump may have a million. */
export class FlowDecoder {
  readonly #filter: FlowFilter
  readonly #addresses: AddressCache
  readonly #reader = new AttributeReader()
  readonly #original = makeTuple()
  readonly #reply = makeTuple()

  constructor(filter: FlowFilter, addresses: AddressCache) {
    this.#filter = filter
    this.#addresses = addresses
  }

  /** What is wrong with the last message. */
  get error(): string | undefined {
    return this.#reader.error
  }

  /** Undefined if the filter leaves the flow out, or if `error` is set. */
  decode(message: MessageReader): TrackedFlow | undefined {
    const reader = this.#reader
    const { family, unreplied = false } = this.#filter
    const [original, reply] = [this.#original, this.#reply]
    clearTuple(original)
    clearTuple(reply)
    let [id, zone, status] = [0, 0, 0]
    message.attributes(4, reader)
    while (reader.next()) {
      if (reader.type === CTA.TUPLE_ORIG) {
        readTuple(reader, original, family)
        if (!this.#selects(original)) return undefined
      } else if (reader.type === CTA.TUPLE_REPLY) readTuple(reader, reply, family)
      else if (reader.type === CTA.STATUS) status = reader.u32()
      else if (reader.type === CTA.ID) id = reader.u32()
      else if (reader.type === CTA.ZONE) zone = reader.u16()
    }
    if (unreplied && (status & IPS_SEEN_REPLY) !== 0) return undefined
    const hasAddresses = original.source !== 0 && original.destination !== 0 && reply.source !== 0
    if (!hasAddresses) reader.fail('a flow without addresses')
    return reader.error === undefined ? this.#makeFlow(message.bytes, id, zone) : undefined
  }

  #selects(original: TuplePositions): boolean {
    const { protocol = original.protocol, destinationPorts } = this.#filter
    return original.protocol === protocol && destinationPorts?.has(original.destinationPort) !== false
  }

  #makeFlow(bytes: Buffer, id: number, zone: number): TrackedFlow {
    const { family } = this.#filter
    const [original, reply, addresses] = [this.#original, this.#reply, this.#addresses]
    return {
      family,
      protocol: original.protocol,
      source: addresses.text(family, bytes, original.source),
      sourcePort: original.sourcePort,
      destination: addresses.text(family, bytes, original.destination),
      destinationPort: original.destinationPort,
      replySource: addresses.text(family, bytes, reply.source),
      replySourcePort: reply.sourcePort,
      id,
      zone,
      originalZone: original.zone,
    }
  }
}
