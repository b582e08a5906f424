// Which notifications of connection tracking the kernel passes on: those that say something new about endpoints, those of a share of all
// flows, or those of translated flows. Pure.
//
// A notification in doubt is passed on, because the reader looks again.

import { familyNumber, protocolNumbers } from '../ip-numbers.ts'
import { NLM_F_CREATE } from '../netlink/message.ts'
import { familyAt, flagsAt, SocketFilter, typeAt } from '../netlink/socket-filter.ts'
import {
  CTA,
  CTA_PROTO,
  CTA_PROTOINFO_TCP,
  CTA_PROTOINFO_TCP_STATE,
  CTA_TUPLE,
  IPS_ASSURED,
  IPS_DST_NAT,
  IPS_SEEN_REPLY,
} from './conntrack-tuple.ts'

/** The lower byte of IPCTNL_MSG_CT_DELETE. */
const deleted = 2
const createFlag = NLM_F_CREATE >> 8
/** TCP_CONNTRACK_SYN_SENT. */
const synSent = 1

/** More ports than that are covered by ranges, which have other ports in them. Each range costs every notification a comparison. */
const maxRanges = 60

/**
 * Passes on TCP connections to endpoints with these ports: when they begin with a SYN, when they are answered, and when they end without an
 * answer. A connection has a reply and is not assured only while it opens. Afterwards come all changes of its state, and its end: those are
 * most notifications. A connection that the kernel begins to track later, by another packet than a SYN, does not wait for an answer.
 */
export function filterConnections(ports: Iterable<number>): Uint8Array {
  const filter = new SocketFilter()
    .load(typeAt, 1)
    .compare('=', deleted, { ifTrue: 'deleted' })
    .load(flagsAt, 1)
    .compare('has bits', createFlag, { ifTrue: 'created' })
    .find([CTA.STATUS], 4, 'selected')
    .compare('has bits', IPS_ASSURED, { ifTrue: 'reject' })
    .compare('has bits', IPS_SEEN_REPLY, { ifTrue: 'selected', ifFalse: 'reject' })
    .label('deleted')
    .find([CTA.STATUS], 4, 'selected')
    .compare('has bits', IPS_SEEN_REPLY, { ifTrue: 'reject', ifFalse: 'selected' })
    .label('created')
    .find([CTA.PROTOINFO, CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE], 1, 'selected')
    .compare('=', synSent, { ifFalse: 'reject' })
    .label('selected')
    .find([CTA.TUPLE_REPLY, CTA_TUPLE.PROTO, CTA_PROTO.NUM], 1, 'accept')
    .compare('=', protocolNumbers.tcp, { ifFalse: 'reject' })
    .find([CTA.TUPLE_REPLY, CTA_TUPLE.PROTO, CTA_PROTO.SRC_PORT], 2, 'accept')
  for (const [first, last] of coverPorts(ports, maxRanges)) {
    filter.compare('>=', first, { ifFalse: 'reject' }).compare('>', last, { ifFalse: 'accept' })
  }
  return filter.label('reject').reject().label('accept').accept().toBytes()
}

/** At most so many ranges, in ascending order, that have all the ports, and as few others as possible. */
export function coverPorts(ports: Iterable<number>, most: number): readonly (readonly [first: number, last: number])[] {
  const sorted = [...new Set(ports)].sort((a, b) => a - b)
  const gaps = sorted.slice(1).map((port, i) => ({ after: i, size: port - (sorted[i] as number) }))
  // The largest gaps stay. Sorting keeps the order of equal gaps.
  const wide = gaps.filter(({ size }) => size > 1).sort((a, b) => b.size - a.size)
  const cuts = wide.slice(0, most - 1).map(({ after }) => after)
  const ends = sorted.length === 0 ? [] : [...cuts.sort((a, b) => a - b), sorted.length - 1]
  return ends.map((end, i) => [sorted[i === 0 ? 0 : (ends[i - 1] as number) + 1] as number, sorted[end] as number])
}

/** Where the source port of the original direction is: the kernel writes this direction first, and always in the same order. */
const sourcePortAt = { 4: 60, 6: 84 } as const

/** Passes on one in `rate` flows, which is a power of two, by the source port without its lowest bit. */
export function filterSamples(rate: number): Uint8Array {
  return new SocketFilter()
    .load(familyAt, 1)
    .compare('=', familyNumber(4), { ifFalse: 'ipv6' })
    .load(sourcePortAt[4], 2)
    .shiftRight(1)
    .compare('has bits', rate - 1, { ifTrue: 'reject', ifFalse: 'accept' })
    .label('ipv6')
    .load(sourcePortAt[6], 2)
    .shiftRight(1)
    .compare('has bits', rate - 1, { ifFalse: 'accept' })
    .label('reject')
    .reject()
    .label('accept')
    .accept()
    .toBytes()
}

/** Passes on flows whose destination is translated. */
export const filterTranslated = (): Uint8Array =>
  new SocketFilter()
    .find([CTA.STATUS], 4, 'accept')
    .compare('has bits', IPS_DST_NAT, { ifTrue: 'accept' })
    .reject()
    .label('accept')
    .accept()
    .toBytes()
