// Reads flows with their state and counters from messages of conntrack. Pure.

import type { Family } from '../../lib/ip.ts'
import {
  CTA,
  CTA_PROTOINFO_TCP,
  CTA_PROTOINFO_TCP_STATE,
  IPS_SEEN_REPLY,
  makeTuple,
  readTuple,
  type TuplePositions,
} from '../conntrack/conntrack-tuple.ts'
import { familyOfNumber, type IpProtocol, protocolOfNumber } from '../ip-numbers.ts'
import { AddressCache } from '../netlink/address-codec.ts'
import { AttributeReader, type MessageReader } from '../netlink/message.ts'

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const CTA_COUNTERS = { PACKETS: 1, BYTES: 2 } as const
const CTA_TIMESTAMP_START = 1

/** How far a flow has come. `closed`: both sides have said goodbye. `reset`: one side has broken it off. */
export type FlowStage = 'opening' | 'open' | 'closed' | 'reset'

/** By the number of the TCP state, TCP_CONNTRACK_*. Once one side has closed, the flow is still open for the other. */
const stages: readonly FlowStage[] = [
  'opening',
  'opening',
  'opening',
  'open',
  'open',
  'open',
  'open',
  'closed',
  'reset',
  'opening',
]

/** Packets and bytes that the client sent and received. */
export interface FlowTraffic {
  readonly packetsIn: number
  readonly bytesIn: number
  readonly packetsOut: number
  readonly bytesOut: number
}

/** Addresses are canonical. */
export interface ObservedFlow {
  readonly id: number
  readonly family: Family
  readonly protocol: IpProtocol
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
  /** The address that replies: the endpoint, if the flow is translated. */
  readonly replySource: string
  readonly replySourcePort: number
  /** The address to which the endpoint replies: another address than the source if the source is translated. */
  readonly replyDestination: string
  /** A reply was seen. */
  readonly replied: boolean
  readonly stage: FlowStage
  /** Undefined if the kernel does not count (nf_conntrack_acct). */
  readonly traffic: FlowTraffic | undefined
  /** Unix ms; undefined if the kernel does not note it (nf_conntrack_timestamp). */
  readonly startedAt: number | undefined
}

interface Counted {
  packets: number
  bytes: number
}

/** What is read of one message. */
interface Found {
  id: number
  status: number
  state: number
  startedAt: number
  sent: Counted | undefined
  received: Counted | undefined
  readonly family: Family
  readonly original: TuplePositions
  readonly reply: TuplePositions
}

const readers: Readonly<Record<number, (reader: AttributeReader, found: Found) => void>> = {
  [CTA.TUPLE_ORIG]: (reader, { original, family }) => readTuple(reader, original, family),
  [CTA.TUPLE_REPLY]: (reader, { reply, family }) => readTuple(reader, reply, family),
  [CTA.STATUS]: (reader, found) => {
    found.status = reader.u32()
  },
  [CTA.ID]: (reader, found) => {
    found.id = reader.u32()
  },
  [CTA.PROTOINFO]: (reader, found) => {
    found.state = readTcpState(reader)
  },
  [CTA.COUNTERS_ORIG]: (reader, found) => {
    found.sent = readCounters(reader)
  },
  [CTA.COUNTERS_REPLY]: (reader, found) => {
    found.received = readCounters(reader)
  },
  [CTA.TIMESTAMP]: (reader, found) => {
    found.startedAt = readStart(reader)
  },
}

/** Reads flows whose destination port is selected. */
export class ObservedFlowDecoder {
  readonly #selects: (port: number) => boolean
  readonly #addresses = new AddressCache()
  readonly #reader = new AttributeReader()

  constructor(selects: (port: number) => boolean) {
    this.#selects = selects
  }

  /** Undefined if the flow is not selected, or the message is not that of a flow. */
  decode(message: MessageReader): ObservedFlow | undefined {
    const family = familyOfNumber(message.bytes[message.start] ?? 0)
    if (family === undefined) return undefined
    const reader = this.#reader
    const [original, reply] = [makeTuple(), makeTuple()]
    const found: Found = {
      id: 0,
      status: 0,
      state: -1,
      startedAt: 0,
      sent: undefined,
      received: undefined,
      family,
      original,
      reply,
    }
    message.attributes(4, reader)
    while (reader.next()) {
      const { type } = reader
      readers[type]?.(reader, found)
      // The original direction comes first: most flows of a busy node are left here.
      if (type === CTA.TUPLE_ORIG && !this.#selects(original.destinationPort)) return undefined
    }
    const protocol = protocolOfNumber(original.protocol)
    const isWhole = original.source !== 0 && original.destination !== 0 && reply.source !== 0
    if (reader.error !== undefined || protocol === undefined || !isWhole) return undefined
    return { ...this.#describe(message.bytes, found), protocol, stage: stageOf(protocol, found.state) }
  }

  #describe(bytes: Buffer, found: Found): Omit<ObservedFlow, 'protocol' | 'stage'> {
    const { id, family, status, original, reply, sent, received, startedAt } = found
    const text = (at: number) => this.#addresses.text(family, bytes, at)
    return {
      id,
      family,
      source: text(original.source),
      sourcePort: original.sourcePort,
      destination: text(original.destination),
      destinationPort: original.destinationPort,
      replySource: text(reply.source),
      replySourcePort: reply.sourcePort,
      replyDestination: text(reply.destination),
      replied: (status & IPS_SEEN_REPLY) !== 0,
      traffic: sent === undefined || received === undefined ? undefined : joinCounters(sent, received),
      startedAt: startedAt === 0 ? undefined : startedAt,
    }
  }
}

const stageOf = (protocol: IpProtocol, state: number): FlowStage =>
  protocol === 'tcp' ? (stages[state] ?? 'open') : 'open'

const joinCounters = (sent: Counted, received: Counted): FlowTraffic => ({
  packetsIn: sent.packets,
  bytesIn: sent.bytes,
  packetsOut: received.packets,
  bytesOut: received.bytes,
})

function readTcpState(reader: AttributeReader): number {
  let state = -1
  reader.enter()
  while (reader.next()) {
    if (reader.type !== CTA_PROTOINFO_TCP) continue
    reader.enter()
    while (reader.next()) if (reader.type === CTA_PROTOINFO_TCP_STATE) state = reader.u8()
    reader.leave()
  }
  reader.leave()
  return state
}

function readCounters(reader: AttributeReader): Counted {
  const found = { packets: 0, bytes: 0 }
  reader.enter()
  while (reader.next()) {
    if (reader.type === CTA_COUNTERS.PACKETS) found.packets = reader.u64()
    else if (reader.type === CTA_COUNTERS.BYTES) found.bytes = reader.u64()
  }
  reader.leave()
  return found
}

/** The kernel counts nanoseconds of Unix time. */
function readStart(reader: AttributeReader): number {
  let start = 0
  reader.enter()
  while (reader.next()) if (reader.type === CTA_TIMESTAMP_START) start = Math.floor(reader.u64() / 1e6)
  reader.leave()
  return start
}
