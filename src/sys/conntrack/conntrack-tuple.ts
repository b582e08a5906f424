// Reads the two directions of a flow from messages of conntrack; and the numbers of these messages. Pure.

import type { Family } from '../../lib/ip.ts'
import { type AttributeReader, type MessageReader, NLM_F_CREATE } from '../netlink/message.ts'

// Attribute numbers, one object per enum of linux/netfilter/nfnetlink_conntrack.h: CTA_IP.V4_SRC is CTA_IP_V4_SRC.
export const CTA = {
  TUPLE_ORIG: 1,
  TUPLE_REPLY: 2,
  STATUS: 3,
  PROTOINFO: 4,
  COUNTERS_ORIG: 9,
  COUNTERS_REPLY: 10,
  ID: 12,
  ZONE: 18,
  TIMESTAMP: 20,
  FILTER: 25,
  STATUS_MASK: 26,
} as const
export const CTA_TUPLE = { IP: 1, PROTO: 2, ZONE: 3 } as const
export const CTA_IP = { V4_SRC: 1, V4_DST: 2, V6_SRC: 3, V6_DST: 4 } as const
export const CTA_PROTO = { NUM: 1, SRC_PORT: 2, DST_PORT: 3 } as const
export const CTA_PROTOINFO_TCP = 1
export const CTA_PROTOINFO_TCP_STATE = 1

/** Bits of the status: packets were seen in both directions; and, for TCP, a packet followed that acknowledges the reply. */
export const IPS_SEEN_REPLY = 2
export const IPS_ASSURED = 4
/** A bit of the status: another address answers than the one that the client dialled. */
export const IPS_DST_NAT = 0x20

const IPCTNL_MSG_CT_NEW = 0x100
const IPCTNL_MSG_CT_DELETE = 0x102

/** NFNLGRP_CONNTRACK_DESTROY. */
export const endGroup = 3
/** NFNLGRP_CONNTRACK_NEW, _UPDATE and _DESTROY. */
export const notificationGroups = [1, 2, endGroup] as const

export type NotificationKind = 'new' | 'update' | 'destroy'

/** What a notification says about a flow; undefined if it is not about a flow. */
export function notificationKind({ type, flags }: MessageReader): NotificationKind | undefined {
  if (type === IPCTNL_MSG_CT_DELETE) return 'destroy'
  if (type !== IPCTNL_MSG_CT_NEW) return undefined
  return (flags & NLM_F_CREATE) !== 0 ? 'new' : 'update'
}

/** One direction as it is read. Addresses are positions in the message, because most flows are filtered out; 0 if absent. */
export interface TuplePositions {
  protocol: number
  source: number
  sourcePort: number
  destination: number
  destinationPort: number
  zone: number
}

export const makeTuple = (): TuplePositions => ({
  protocol: 0,
  source: 0,
  sourcePort: 0,
  destination: 0,
  destinationPort: 0,
  zone: 0,
})

export function clearTuple(tuple: TuplePositions): void {
  tuple.protocol = tuple.source = tuple.sourcePort = tuple.destination = tuple.destinationPort = tuple.zone = 0
}

/** Reads the direction that is the current attribute. */
export function readTuple(reader: AttributeReader, into: TuplePositions, family: Family): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === CTA_TUPLE.IP) readIp(reader, into, family)
    else if (reader.type === CTA_TUPLE.PROTO) readProtocol(reader, into)
    else if (reader.type === CTA_TUPLE.ZONE) into.zone = reader.u16()
  }
  reader.leave()
}

const ipv4Attributes = [CTA_IP.V4_SRC, CTA_IP.V4_DST, 4] as const
const ipv6Attributes = [CTA_IP.V6_SRC, CTA_IP.V6_DST, 16] as const

function readIp(reader: AttributeReader, into: TuplePositions, family: Family): void {
  const [source, destination, length] = family === 4 ? ipv4Attributes : ipv6Attributes
  reader.enter()
  while (reader.next()) {
    if (reader.type !== source && reader.type !== destination) continue
    if (reader.length !== length) reader.fail(`an address of ${reader.length} bytes`)
    else if (reader.type === source) into.source = reader.start
    else into.destination = reader.start
  }
  reader.leave()
}

function readProtocol(reader: AttributeReader, into: TuplePositions): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === CTA_PROTO.NUM) into.protocol = reader.u8()
    else if (reader.type === CTA_PROTO.SRC_PORT) into.sourcePort = reader.u16()
    else if (reader.type === CTA_PROTO.DST_PORT) into.destinationPort = reader.u16()
  }
  reader.leave()
}
