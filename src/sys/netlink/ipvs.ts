// IPVS's messages: virtual servers, their destinations and statistics, as the kernel reads and sends them. Pure.
//
// Integers are in host order, ports and addresses in network order. Answers hold addresses in 16 bytes, IPv4 in the first four.

import type { Family } from '../../lib/ip.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import { genericHeader, writeGeneric } from './generic-netlink.ts'
import { type AttributeReader, littleEndian, type MessageReader } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

export const ipvsFamilyName = 'IPVS'
const version = 1

export const command = {
  newService: 1,
  setService: 2,
  deleteService: 3,
  getService: 4,
  newDestination: 5,
  setDestination: 6,
  deleteDestination: 7,
  getDestination: 8,
  setConfig: 12,
} as const

const TOP = { service: 1, destination: 2, tcpTimeout: 4, tcpFinTimeout: 5, udpTimeout: 6 } as const
const SERVICE = {
  family: 1,
  protocol: 2,
  address: 3,
  port: 4,
  mark: 5,
  scheduler: 6,
  flags: 7,
  timeout: 8,
  netmask: 9,
  stats: 10,
  stats64: 12,
} as const
const DESTINATION = {
  address: 1,
  port: 2,
  method: 3,
  weight: 4,
  upper: 5,
  lower: 6,
  active: 7,
  inactive: 8,
  persistent: 9,
  family: 11,
} as const
const STATS = { connections: 1, packetsIn: 2, packetsOut: 3, bytesIn: 4, bytesOut: 5 } as const

const AF_INET = 2
const AF_INET6 = 10
export const protocolNumbers = { tcp: 6, udp: 17, sctp: 132 } as const
const protocolNames: ReadonlyMap<number, IpvsProtocol> = new Map(
  Object.entries(protocolNumbers).map(([name, number]) => [number, name as IpvsProtocol]),
)

export type IpvsProtocol = keyof typeof protocolNumbers

export const flag = {
  persistent: 1,
  /** Set by the kernel on every server that is in its table. */
  hashed: 2,
  /** For the scheduler `mh`: the source port counts too. */
  schedulerPort: 0x10,
} as const

/** What names a virtual server. */
export interface ServiceKey {
  readonly family: Family
  readonly protocol: IpvsProtocol
  readonly ip: string
  readonly port: number
}

export interface Service extends ServiceKey {
  readonly scheduler: string
  /** Without `hashed`. */
  readonly flags: number
  /** Seconds of persistence; 0: none. */
  readonly timeout: number
}

export interface Statistics {
  readonly connections: number
  readonly packetsIn: number
  readonly packetsOut: number
  readonly bytesIn: number
  readonly bytesOut: number
}

export interface ServiceSeen extends Service {
  readonly statistics: Statistics
}

/** Packets are always translated (`masquerading` in the words of ipvsadm). */
export interface Destination {
  readonly ip: string
  readonly port: number
  readonly weight: number
}

export interface DestinationSeen extends Destination {
  /** Forwarded otherwise than by translation: not ours. */
  readonly method: number
  readonly active: number
  readonly inactive: number
}

// ---- Requests. ----

export function writeService(writer: MessageWriter, what: number, service: Service): void {
  writeGeneric(writer, what, version)
  const at = writer.open(TOP.service)
  writeKey(writer, service)
  writer.text(SERVICE.scheduler, service.scheduler)
  writer.raw(SERVICE.flags, flagBytes(service.flags))
  writer.hostU32(SERVICE.timeout, service.timeout)
  writer.hostU32(SERVICE.netmask, service.family === 4 ? 0xffffffff : 128)
  writer.close(at)
}

/** For what concerns one server as a whole: delete, get, list its destinations. */
export function writeServiceKey(writer: MessageWriter, what: number, key: ServiceKey): void {
  writeGeneric(writer, what, version)
  const at = writer.open(TOP.service)
  writeKey(writer, key)
  writer.close(at)
}

/** Without a server named: all of them. */
export function writeAll(writer: MessageWriter, what: number): void {
  writeGeneric(writer, what, version)
}

export function writeDestination(writer: MessageWriter, what: number, key: ServiceKey, destination: Destination): void {
  writeServiceKey(writer, what, key)
  const at = writer.open(TOP.destination)
  writer.raw(DESTINATION.address, addressBytes(destination.ip))
  writer.u16(DESTINATION.port, destination.port)
  writer.hostU32(DESTINATION.method, 0)
  writer.hostU32(DESTINATION.weight, destination.weight)
  writer.hostU32(DESTINATION.upper, 0)
  writer.hostU32(DESTINATION.lower, 0)
  writer.hostU16(DESTINATION.family, key.family === 4 ? AF_INET : AF_INET6)
  writer.close(at)
}

/** Seconds; 0 leaves a timeout as it is. */
export interface Timeouts {
  readonly tcp: number
  readonly tcpFin: number
  readonly udp: number
}

export function writeTimeouts(writer: MessageWriter, { tcp, tcpFin, udp }: Timeouts): void {
  writeGeneric(writer, command.setConfig, version)
  writer.hostU32(TOP.tcpTimeout, tcp)
  writer.hostU32(TOP.tcpFinTimeout, tcpFin)
  writer.hostU32(TOP.udpTimeout, udp)
}

function writeKey(writer: MessageWriter, { family, protocol, ip, port }: ServiceKey): void {
  writer.hostU16(SERVICE.family, family === 4 ? AF_INET : AF_INET6)
  writer.hostU16(SERVICE.protocol, protocolNumbers[protocol])
  writer.raw(SERVICE.address, addressBytes(ip))
  writer.u16(SERVICE.port, port)
}

/** The flags, and a mask that says which of them are meant: all. */
function flagBytes(flags: number): Uint8Array {
  const words = Uint32Array.of(flags, 0xffffffff)
  return new Uint8Array(words.buffer)
}

// ---- Answers. ----

/** Undefined for servers by firewall mark and for protocols that we do not know: never ours. */
export function decodeService(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
): ServiceSeen | undefined {
  if (!enterTop(message, reader, TOP.service)) return undefined
  const seen = { family: 0, protocol: 0, port: 0, mark: 0, scheduler: '', flags: 0, timeout: 0, at: -1 }
  let statistics: Statistics | undefined
  while (reader.next()) {
    if (reader.type === SERVICE.family) seen.family = reader.hostU16()
    else if (reader.type === SERVICE.protocol) seen.protocol = reader.hostU16()
    else if (reader.type === SERVICE.address) seen.at = reader.start
    else if (reader.type === SERVICE.port) seen.port = reader.u16()
    else if (reader.type === SERVICE.mark) seen.mark = reader.hostU32()
    else if (reader.type === SERVICE.scheduler) seen.scheduler = reader.text()
    else if (reader.type === SERVICE.flags) seen.flags = reader.hostU32()
    else if (reader.type === SERVICE.timeout) seen.timeout = reader.hostU32()
    else if (reader.type === SERVICE.stats64) statistics = decodeStatistics(reader, true)
    else if (reader.type === SERVICE.stats && statistics === undefined) statistics = decodeStatistics(reader, false)
  }
  const protocol = protocolNames.get(seen.protocol)
  if (reader.error !== undefined || seen.at < 0 || seen.mark !== 0 || protocol === undefined) return undefined
  const { port, scheduler, timeout } = seen
  const family = seen.family === AF_INET6 ? 6 : 4
  const ip = family === 6 ? cache.ipv6(message.bytes, seen.at) : cache.ipv4(message.bytes, seen.at)
  const flags = seen.flags & ~flag.hashed
  return { family, protocol, ip, port, scheduler, flags, timeout, statistics: statistics ?? noStatistics }
}

/** `family` is that of the server; kernels before 3.18 do not tell that of the destination. */
export function decodeDestination(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
  family: Family,
): DestinationSeen | undefined {
  if (!enterTop(message, reader, TOP.destination)) return undefined
  const seen = { at: -1, port: 0, method: 0, weight: 0, active: 0, inactive: 0 }
  let own = family
  while (reader.next()) {
    if (reader.type === DESTINATION.address) seen.at = reader.start
    else if (reader.type === DESTINATION.port) seen.port = reader.u16()
    else if (reader.type === DESTINATION.method) seen.method = reader.hostU32() & 7
    else if (reader.type === DESTINATION.weight) seen.weight = reader.hostU32()
    else if (reader.type === DESTINATION.active) seen.active = reader.hostU32()
    else if (reader.type === DESTINATION.inactive) seen.inactive = reader.hostU32()
    else if (reader.type === DESTINATION.family) own = reader.hostU16() === AF_INET6 ? 6 : 4
  }
  if (reader.error !== undefined || seen.at < 0) return undefined
  const { at, ...rest } = seen
  return { ip: own === 6 ? cache.ipv6(message.bytes, at) : cache.ipv4(message.bytes, at), ...rest }
}

const noStatistics: Statistics = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

function decodeStatistics(reader: AttributeReader, wide: boolean): Statistics {
  const found = { ...noStatistics }
  reader.enter()
  while (reader.next()) {
    const number = () => (wide || reader.length === 8 ? hostU64(reader) : reader.hostU32())
    if (reader.type === STATS.connections) found.connections = number()
    else if (reader.type === STATS.packetsIn) found.packetsIn = number()
    else if (reader.type === STATS.packetsOut) found.packetsOut = number()
    else if (reader.type === STATS.bytesIn) found.bytesIn = number()
    else if (reader.type === STATS.bytesOut) found.bytesOut = number()
  }
  reader.leave()
  return found
}

/** Exact up to 2^53: at 100 Gbit/s a century of bytes. */
function hostU64(reader: AttributeReader): number {
  if (reader.length < 8) {
    reader.fail(`attribute ${reader.type} has ${reader.length} bytes, needs 8`)
    return 0
  }
  const { bytes, start } = reader
  return Number(littleEndian ? bytes.readBigUInt64LE(start) : bytes.readBigUInt64BE(start))
}

function enterTop(message: MessageReader, reader: AttributeReader, type: number): boolean {
  message.attributes(genericHeader, reader)
  while (reader.next()) {
    if (reader.type !== type) continue
    reader.enter()
    return true
  }
  return false
}
