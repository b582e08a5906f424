// Writes requests to ipset and reads its lists. Members are the text that ipset itself prints: `10.0.0.1,tcp:80`. Pure.
//
// No request has NLM_F_EXCL, which means "-exist": adding a member that exists and deleting one that does not exist both succeed.

import type { Family } from '../../lib/ip.ts'
import { AF_INET, familyNumber, familyOfNumber, protocolNumbers, protocolOfNumber } from '../ip-numbers.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import { type AttributeReader, type MessageReader, NLA_F_NET_BYTEORDER } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

const NFNL_SUBSYS_IPSET = 6
/** Kernels since 4.20 speak version 7, and all speak version 6. */
const IPSET_PROTOCOL = 6
const NFPROTO_UNSPEC = 0
const IPSET_FLAG_LIST_HEADER = 4

/** IPSET_CMD_*. */
export const ipsetCommand = { create: 2, destroy: 3, flush: 4, list: 7, add: 9, delete: 10 } as const

// Attribute numbers by the names in linux/netfilter/ipset/ip_set.h. All are IPSET_ATTR_*; the same number has another meaning in a message,
// in a member or set header (CADT), in a set header alone (CREATE), and in a member alone (ADT).
const IPSET_ATTR = {
  PROTOCOL: 1,
  SETNAME: 2,
  TYPENAME: 3,
  REVISION: 4,
  FAMILY: 5,
  FLAGS: 6,
  DATA: 7,
  ADT: 8,
} as const
const IPSET_ATTR_CADT = { IP: 1, PORT: 4, PORT_TO: 5, PROTO: 7 } as const
const IPSET_ATTR_CREATE = { HASHSIZE: 18, MAXELEM: 19, ELEMENTS: 24 } as const
const IPSET_ATTR_ADT = { IP2: 20, CIDR2: 21 } as const
const IPSET_ATTR_IPADDR = { IPV4: 1, IPV6: 2 } as const

/** Revisions that every kernel since 3.19 and every ipset tool since then knows. An older tool might not know a newer one. */
const revisions = {
  'hash:ip': 4,
  'hash:ip,port': 5,
  'hash:ip,port,ip': 5,
  'hash:ip,port,net': 7,
  'bitmap:port': 3,
} as const

export type SetType = keyof typeof revisions

export interface SetSpec {
  readonly name: string
  readonly type: SetType
  readonly family: Family
}

/** A set as the kernel lists it. */
export interface ListedSet {
  readonly name: string
  readonly type: string
  /** Undefined for types without addresses. */
  readonly family: Family | undefined
  /** The number of members. Undefined in all but the first message of a set. */
  readonly elements: number | undefined
}

export const ipsetMessage = (command: number): number => (NFNL_SUBSYS_IPSET << 8) | command

// ---- Requests. ----

export function writeCreate(writer: MessageWriter, { name, type, family }: SetSpec): void {
  const isBitmap = type === 'bitmap:port'
  writeSetName(writer, name)
  writer.text(IPSET_ATTR.TYPENAME, type)
  writer.u8(IPSET_ATTR.REVISION, revisions[type])
  writer.u8(IPSET_ATTR.FAMILY, isBitmap ? NFPROTO_UNSPEC : familyNumber(family))
  const at = writer.open(IPSET_ATTR.DATA)
  if (isBitmap) {
    writer.u16(IPSET_ATTR_CADT.PORT | NLA_F_NET_BYTEORDER, 0)
    writer.u16(IPSET_ATTR_CADT.PORT_TO | NLA_F_NET_BYTEORDER, 65_535)
  } else {
    writer.u32(IPSET_ATTR_CREATE.HASHSIZE | NLA_F_NET_BYTEORDER, 1024)
    writer.u32(IPSET_ATTR_CREATE.MAXELEM | NLA_F_NET_BYTEORDER, 65_536)
  }
  writer.close(at)
}

/** Writes the whole body of requests that concern a set as a whole: destroy, flush. */
export function writeSetName(writer: MessageWriter, name: string): void {
  writer.netfilter(AF_INET)
  writer.u8(IPSET_ATTR.PROTOCOL, IPSET_PROTOCOL)
  writer.text(IPSET_ATTR.SETNAME, name)
}

/** Writes the body of a request that adds or deletes a member. */
export function writeMember(writer: MessageWriter, name: string, member: string): void {
  writeSetName(writer, name)
  const at = writer.open(IPSET_ATTR.DATA)
  const [first = '', second, third] = member.split(',')
  if (/^\d+$/.test(first)) writer.u16(IPSET_ATTR_CADT.PORT | NLA_F_NET_BYTEORDER, Number(first))
  else writeIp(writer, IPSET_ATTR_CADT.IP, first)
  if (second !== undefined) writePort(writer, second)
  if (third !== undefined) writeNetwork(writer, third)
  writer.close(at)
}

/** Writes `tcp:80`. */
function writePort(writer: MessageWriter, text: string): void {
  const [protocol = '', port] = text.split(':')
  const numbers: Readonly<Record<string, number>> = protocolNumbers
  writer.u16(IPSET_ATTR_CADT.PORT | NLA_F_NET_BYTEORDER, Number(port))
  writer.u8(IPSET_ATTR_CADT.PROTO, numbers[protocol] ?? 0)
}

/** Writes the last part of a member: an address, perhaps with a prefix length. */
function writeNetwork(writer: MessageWriter, text: string): void {
  const [ip = '', bits] = text.split('/')
  writeIp(writer, IPSET_ATTR_ADT.IP2, ip)
  if (bits !== undefined) writer.u8(IPSET_ATTR_ADT.CIDR2, Number(bits))
}

/** Writes the body of a request for one set with its members, or for the headers of all sets. */
export function writeList(writer: MessageWriter, name: string | undefined): void {
  if (name !== undefined) {
    writeSetName(writer, name)
    return
  }
  writer.netfilter(AF_INET)
  writer.u8(IPSET_ATTR.PROTOCOL, IPSET_PROTOCOL)
  writer.u32(IPSET_ATTR.FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_LIST_HEADER)
}

function writeIp(writer: MessageWriter, type: number, ip: string): void {
  const bytes = addressBytes(ip)
  const at = writer.open(type)
  const attribute = bytes.length === 4 ? IPSET_ATTR_IPADDR.IPV4 : IPSET_ATTR_IPADDR.IPV6
  writer.raw(attribute | NLA_F_NET_BYTEORDER, bytes)
  writer.close(at)
}

// ---- Answers. ----

/** Reads one message of a list. A large set comes in several messages. */
export function decodeSet(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
  visit: (member: string) => void,
): ListedSet | undefined {
  const set: { -readonly [K in keyof ListedSet]: ListedSet[K] } = {
    name: '',
    type: '',
    family: undefined,
    elements: undefined,
  }
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === IPSET_ATTR.SETNAME) set.name = reader.text()
    else if (reader.type === IPSET_ATTR.TYPENAME) set.type = reader.text()
    else if (reader.type === IPSET_ATTR.FAMILY) set.family = familyOfNumber(reader.u8())
    else if (reader.type === IPSET_ATTR.DATA) set.elements = readElementCount(reader)
    else if (reader.type === IPSET_ATTR.ADT) readMembers(reader, cache, visit)
  }
  return reader.error === undefined && set.name !== '' ? set : undefined
}

function readElementCount(reader: AttributeReader): number | undefined {
  let elements: number | undefined
  reader.enter()
  while (reader.next()) if (reader.type === IPSET_ATTR_CREATE.ELEMENTS) elements = reader.u32()
  reader.leave()
  return elements
}

function readMembers(reader: AttributeReader, cache: AddressCache, visit: (member: string) => void): void {
  reader.enter()
  while (reader.next()) if (reader.type === IPSET_ATTR.DATA) visit(readMember(reader, cache))
  reader.leave()
}

function readMember(reader: AttributeReader, cache: AddressCache): string {
  let ip = ''
  let port = -1
  let protocol = ''
  let ip2 = ''
  let bits2 = -1
  reader.enter()
  while (reader.next()) {
    if (reader.type === IPSET_ATTR_CADT.IP) ip = readIp(reader, cache)
    else if (reader.type === IPSET_ATTR_CADT.PORT) port = reader.u16()
    else if (reader.type === IPSET_ATTR_CADT.PROTO) protocol = protocolOfNumber(reader.u8()) ?? String(reader.u8())
    else if (reader.type === IPSET_ATTR_ADT.IP2) ip2 = readIp(reader, cache)
    else if (reader.type === IPSET_ATTR_ADT.CIDR2) bits2 = reader.u8()
  }
  reader.leave()
  if (ip === '') return String(port)
  if (port < 0) return ip
  if (ip2 === '') return `${ip},${protocol}:${port}`
  return `${ip},${protocol}:${port},${ip2}${bits2 < 0 ? '' : `/${bits2}`}`
}

function readIp(reader: AttributeReader, cache: AddressCache): string {
  let ip = ''
  reader.enter()
  while (reader.next()) {
    if (reader.length === 4) ip = cache.ipv4(reader.bytes, reader.start)
    else if (reader.length === 16) ip = cache.ipv6(reader.bytes, reader.start)
    else reader.fail(`an address of ${reader.length} bytes`)
  }
  reader.leave()
  return ip
}

/** The meanings of ipset's own error numbers, IPSET_ERR_*. */
export const ipsetErrors: Readonly<Record<number, string>> = {
  4097: 'this kernel speaks another version of the ipset protocol',
  4098: 'this kernel has no such set type: is its module there?',
  4099: 'the kernel has no room for more sets: raise ip_set max_sets',
  4100: 'the set is in use by a rule',
  4102: 'a set of that name but of another type exists',
  4103: 'it exists already, or it does not exist',
  4352: 'the set is full',
}
