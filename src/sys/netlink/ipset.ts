// ipset's messages: sets and their members, written and read as the text that people know (`10.0.0.1,tcp:80`). Pure.
//
// Everything is sent without NLM_F_EXCL, which means "-exist": to add what is there and to delete what is not there is no error.

import type { Family } from '../../lib/ip.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import type { AttributeReader, MessageReader } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

const NFNL_SUBSYS_IPSET = 6
const netByteOrder = 0x4000
/** 7 since Linux 4.20; 6 is understood by all. */
const protocolVersion = 6
const AF_INET = 2
const AF_INET6 = 10

export const ipsetCommand = { create: 2, destroy: 3, flush: 4, list: 7, add: 9, delete: 10 } as const

const TOP = { protocol: 1, name: 2, type: 3, revision: 4, family: 5, flags: 6, data: 7, members: 8 } as const
const DATA = { ip: 1, cidr: 3, port: 4, protocol: 7, hashSize: 18, maxElements: 19, ip2: 20, cidr2: 21 } as const
/** In the header of a set, where other numbers mean other things than in members. */
const HEADER = { portTo: 5, elements: 24 } as const
const LIST_HEADER = 4

/** Revisions that every kernel since 3.19 and every ipset tool since then knows; a newer one could be unknown to an older tool. */
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

export interface SetSeen {
  readonly name: string
  readonly type: string
  /** Undefined for types without addresses. */
  readonly family: Family | undefined
  /** Undefined in all but the first message of a set. */
  readonly elements: number | undefined
}

export const ipsetMessage = (command: number): number => (NFNL_SUBSYS_IPSET << 8) | command

const protocols: Readonly<Record<string, number>> = { tcp: 6, udp: 17, sctp: 132 }
const protocolNames = new Map(Object.entries(protocols).map(([name, number]) => [number, name]))

// ---- Requests. ----

export function writeCreate(writer: MessageWriter, { name, type, family }: SetSpec): void {
  const six = family === 6
  begin(writer, name)
  writer.text(TOP.type, type)
  writer.u8(TOP.revision, revisions[type])
  writer.u8(TOP.family, type === 'bitmap:port' ? 0 : six ? AF_INET6 : AF_INET)
  const at = writer.open(TOP.data)
  if (type === 'bitmap:port') {
    writer.u16(DATA.port | netByteOrder, 0)
    writer.u16(HEADER.portTo | netByteOrder, 65_535)
  } else {
    writer.u32(DATA.hashSize | netByteOrder, 1024)
    writer.u32(DATA.maxElements | netByteOrder, 65_536)
  }
  writer.close(at)
}

export function writeSetName(writer: MessageWriter, name: string): void {
  begin(writer, name)
}

/** Adds or deletes, as the command of the message says. The member is text as `formatMember` makes it. */
export function writeMember(writer: MessageWriter, name: string, member: string): void {
  begin(writer, name)
  const at = writer.open(TOP.data)
  const [first, second, third] = member.split(',') as [string, string?, string?]
  if (/^\d+$/.test(first)) writer.u16(DATA.port | netByteOrder, Number(first))
  else writeIp(writer, DATA.ip, first)
  if (second !== undefined) {
    const [protocol, port] = second.split(':') as [string, string]
    writer.u16(DATA.port | netByteOrder, Number(port))
    writer.u8(DATA.protocol, protocols[protocol] ?? 0)
  }
  if (third !== undefined) {
    const [ip, bits] = third.split('/') as [string, string?]
    writeIp(writer, DATA.ip2, ip)
    if (bits !== undefined) writer.u8(DATA.cidr2, Number(bits))
  }
  writer.close(at)
}

/** Lists one set with its members, or the headers of all sets. */
export function writeList(writer: MessageWriter, name: string | undefined): void {
  writer.netfilter(AF_INET)
  writer.u8(TOP.protocol, protocolVersion)
  if (name === undefined) writer.u32(TOP.flags | netByteOrder, LIST_HEADER)
  else writer.text(TOP.name, name)
}

function begin(writer: MessageWriter, name: string): void {
  writer.netfilter(AF_INET)
  writer.u8(TOP.protocol, protocolVersion)
  writer.text(TOP.name, name)
}

function writeIp(writer: MessageWriter, type: number, ip: string): void {
  const bytes = addressBytes(ip)
  const at = writer.open(type)
  writer.raw((bytes.length === 4 ? 1 : 2) | netByteOrder, bytes)
  writer.close(at)
}

// ---- Answers. ----

/** One message of a list; a large set comes in several. */
export function decodeSet(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
  member: (text: string) => void,
): SetSeen | undefined {
  const seen: { name: string; type: string; family: Family | undefined; elements: number | undefined } = {
    name: '',
    type: '',
    family: undefined,
    elements: undefined,
  }
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === TOP.name) seen.name = reader.text()
    else if (reader.type === TOP.type) seen.type = reader.text()
    else if (reader.type === TOP.family) {
      const number = reader.u8()
      seen.family = number === AF_INET6 ? 6 : number === AF_INET ? 4 : undefined
    } else if (reader.type === TOP.data) seen.elements = decodeHeader(reader)
    else if (reader.type === TOP.members) decodeMembers(reader, cache, member)
  }
  return reader.error === undefined && seen.name !== '' ? seen : undefined
}

function decodeMembers(reader: AttributeReader, cache: AddressCache, member: (text: string) => void): void {
  reader.enter()
  while (reader.next()) if (reader.type === TOP.data) member(decodeMember(reader, cache))
  reader.leave()
}

function decodeHeader(reader: AttributeReader): number | undefined {
  let elements: number | undefined
  reader.enter()
  while (reader.next()) if (reader.type === HEADER.elements) elements = reader.u32()
  reader.leave()
  return elements
}

function decodeMember(reader: AttributeReader, cache: AddressCache): string {
  let ip = ''
  let port = -1
  let protocol = ''
  let ip2 = ''
  let bits2 = -1
  reader.enter()
  while (reader.next()) {
    if (reader.type === DATA.ip) ip = decodeIp(reader, cache)
    else if (reader.type === DATA.port) port = reader.u16()
    else if (reader.type === DATA.protocol) protocol = protocolNames.get(reader.u8()) ?? String(reader.u8())
    else if (reader.type === DATA.ip2) ip2 = decodeIp(reader, cache)
    else if (reader.type === DATA.cidr2) bits2 = reader.u8()
  }
  reader.leave()
  if (ip === '') return String(port)
  if (port < 0) return ip
  if (ip2 === '') return `${ip},${protocol}:${port}`
  return `${ip},${protocol}:${port},${ip2}${bits2 < 0 ? '' : `/${bits2}`}`
}

function decodeIp(reader: AttributeReader, cache: AddressCache): string {
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

/** What ipset's own error numbers mean. */
export const ipsetErrors: Readonly<Record<number, string>> = {
  4097: 'this kernel speaks another version of the ipset protocol',
  4098: 'this kernel has no such set type, is its module there?',
  4099: 'no more sets: raise ip_set max_sets',
  4100: 'the set is in use by a rule',
  4102: 'a set of that name but another type exists',
  4103: 'exists already, or does not exist',
  4352: 'the set is full',
}
