// Writes requests to IPVS, and reads virtual servers, their destinations and statistics from its answers. Pure.
//
// Integers are in host order; ports and addresses are in network order. Answers have 16 bytes for every address; IPv4 uses the first four.

import type { Family } from '../../lib/ip.ts'
import { AF_INET6, familyNumber, type IpProtocol, protocolNumbers, protocolOfNumber } from '../ip-numbers.ts'
import { type AddressCache, addressBytes } from './address-codec.ts'
import { type AttributeReader, littleEndian, type MessageReader } from './message.ts'
import { genericHeader, type MessageWriter, writeGenericHeader } from './message-writer.ts'

export const ipvsFamilyName = 'IPVS'
const version = 1

/** IPVS_CMD_*. */
export const ipvsCommand = {
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

// Attribute numbers, one object per enum of linux/ip_vs.h: IPVS_SVC_ATTR.AF is IPVS_SVC_ATTR_AF.
const IPVS_CMD_ATTR = { SERVICE: 1, DEST: 2, TIMEOUT_TCP: 4, TIMEOUT_TCP_FIN: 5, TIMEOUT_UDP: 6 } as const
const IPVS_SVC_ATTR = {
  AF: 1,
  PROTOCOL: 2,
  ADDR: 3,
  PORT: 4,
  FWMARK: 5,
  SCHED_NAME: 6,
  FLAGS: 7,
  TIMEOUT: 8,
  NETMASK: 9,
  STATS: 10,
  STATS64: 12,
} as const
const IPVS_DEST_ATTR = {
  ADDR: 1,
  PORT: 2,
  FWD_METHOD: 3,
  WEIGHT: 4,
  U_THRESH: 5,
  L_THRESH: 6,
  ACTIVE_CONNS: 7,
  INACT_CONNS: 8,
  ADDR_FAMILY: 11,
  STATS64: 12,
} as const
const IPVS_STATS_ATTR = { CONNS: 1, INPKTS: 2, OUTPKTS: 3, INBYTES: 4, OUTBYTES: 5 } as const

const IP_VS_CONN_F_MASQ = 0
/** The bits of the flags that are the forwarding method. */
const IP_VS_CONN_F_FWD_MASK = 7

/** IP_VS_SVC_F_*. */
export const ipvsFlag = {
  persistent: 1,
  /** The kernel sets it on every server that is in its table. */
  hashed: 2,
  /** Makes the scheduler `mh` use the source port too. */
  schedulerPort: 0x10,
} as const

/** Identifies a virtual server. */
export interface VirtualServerKey {
  readonly family: Family
  readonly protocol: IpProtocol
  readonly ip: string
  readonly port: number
}

export interface VirtualServer extends VirtualServerKey {
  readonly scheduler: string
  /** Flags without `hashed`. */
  readonly flags: number
  /** Seconds of persistence; 0 means none. */
  readonly timeout: number
}

export interface ServerStatistics {
  readonly connections: number
  readonly packetsIn: number
  readonly packetsOut: number
  readonly bytesIn: number
  readonly bytesOut: number
}

/** A virtual server as the kernel lists it. */
export interface ListedServer extends VirtualServer {
  readonly statistics: ServerStatistics
}

/** A destination to which packets are translated; ipvsadm calls this masquerading. */
export interface Destination {
  readonly ip: string
  readonly port: number
  readonly weight: number
}

/** A destination as the kernel lists it. */
export interface ListedDestination extends Destination {
  /** The forwarding method. We use only 0, translation. */
  readonly method: number
  readonly active: number
  readonly inactive: number
  readonly statistics: ServerStatistics
}

// ---- Requests. ----

export function writeServer(writer: MessageWriter, command: number, server: VirtualServer): void {
  writeGenericHeader(writer, command, version)
  const at = writer.open(IPVS_CMD_ATTR.SERVICE)
  writeKey(writer, server)
  writer.text(IPVS_SVC_ATTR.SCHED_NAME, server.scheduler)
  writer.raw(IPVS_SVC_ATTR.FLAGS, flagBytes(server.flags))
  writer.hostU32(IPVS_SVC_ATTR.TIMEOUT, server.timeout)
  writer.hostU32(IPVS_SVC_ATTR.NETMASK, server.family === 4 ? 0xffffffff : 128)
  writer.close(at)
}

/** Writes the body of requests about one server as a whole: delete, get, list its destinations. */
export function writeServerKey(writer: MessageWriter, command: number, key: VirtualServerKey): void {
  writeGenericHeader(writer, command, version)
  const at = writer.open(IPVS_CMD_ATTR.SERVICE)
  writeKey(writer, key)
  writer.close(at)
}

/** Writes the body of requests about all servers. */
export function writeAllServers(writer: MessageWriter, command: number): void {
  writeGenericHeader(writer, command, version)
}

export function writeDestination(
  writer: MessageWriter,
  command: number,
  key: VirtualServerKey,
  destination: Destination,
): void {
  writeServerKey(writer, command, key)
  const at = writer.open(IPVS_CMD_ATTR.DEST)
  writer.raw(IPVS_DEST_ATTR.ADDR, addressBytes(destination.ip))
  writer.u16(IPVS_DEST_ATTR.PORT, destination.port)
  writer.hostU32(IPVS_DEST_ATTR.FWD_METHOD, IP_VS_CONN_F_MASQ)
  writer.hostU32(IPVS_DEST_ATTR.WEIGHT, destination.weight)
  writer.hostU32(IPVS_DEST_ATTR.U_THRESH, 0)
  writer.hostU32(IPVS_DEST_ATTR.L_THRESH, 0)
  writer.hostU16(IPVS_DEST_ATTR.ADDR_FAMILY, familyNumber(key.family))
  writer.close(at)
}

/** Timeouts in seconds; 0 leaves a timeout unchanged. */
export interface IpvsTimeouts {
  readonly tcp: number
  readonly tcpFin: number
  readonly udp: number
}

export function writeTimeouts(writer: MessageWriter, { tcp, tcpFin, udp }: IpvsTimeouts): void {
  writeGenericHeader(writer, ipvsCommand.setConfig, version)
  writer.hostU32(IPVS_CMD_ATTR.TIMEOUT_TCP, tcp)
  writer.hostU32(IPVS_CMD_ATTR.TIMEOUT_TCP_FIN, tcpFin)
  writer.hostU32(IPVS_CMD_ATTR.TIMEOUT_UDP, udp)
}

function writeKey(writer: MessageWriter, { family, protocol, ip, port }: VirtualServerKey): void {
  writer.hostU16(IPVS_SVC_ATTR.AF, familyNumber(family))
  writer.hostU16(IPVS_SVC_ATTR.PROTOCOL, protocolNumbers[protocol])
  writer.raw(IPVS_SVC_ATTR.ADDR, addressBytes(ip))
  writer.u16(IPVS_SVC_ATTR.PORT, port)
}

/** The flags, followed by a mask of the flags to set: all. */
function flagBytes(flags: number): Uint8Array {
  const words = Uint32Array.of(flags, 0xffffffff)
  return new Uint8Array(words.buffer)
}

// ---- Answers. ----

/** Undefined for servers by firewall mark and for protocols that Services do not have: they are never ours. */
export function decodeServer(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
): ListedServer | undefined {
  if (!enterAttribute(message, reader, IPVS_CMD_ATTR.SERVICE)) return undefined
  const found: ServerAttributes = {
    family: 0,
    protocol: 0,
    addressAt: -1,
    port: 0,
    mark: 0,
    scheduler: '',
    flags: 0,
    timeout: 0,
    statistics: undefined,
  }
  while (reader.next()) serverReaders[reader.type]?.(reader, found)
  const { addressAt, port, scheduler, timeout, statistics = noStatistics } = found
  const protocol = protocolOfNumber(found.protocol)
  if (reader.error !== undefined || addressAt < 0 || found.mark !== 0 || protocol === undefined) return undefined
  const family = found.family === AF_INET6 ? 6 : 4
  const ip = cache.text(family, message.bytes, addressAt)
  return { family, protocol, ip, port, scheduler, flags: found.flags & ~ipvsFlag.hashed, timeout, statistics }
}

interface ServerAttributes {
  family: number
  protocol: number
  /** The position of the address in the message. */
  addressAt: number
  port: number
  mark: number
  scheduler: string
  flags: number
  timeout: number
  statistics: ServerStatistics | undefined
}

const serverReaders: Readonly<Record<number, (reader: AttributeReader, server: ServerAttributes) => void>> = {
  [IPVS_SVC_ATTR.AF]: (reader, server) => {
    server.family = reader.hostU16()
  },
  [IPVS_SVC_ATTR.PROTOCOL]: (reader, server) => {
    server.protocol = reader.hostU16()
  },
  [IPVS_SVC_ATTR.ADDR]: (reader, server) => {
    server.addressAt = reader.start
  },
  [IPVS_SVC_ATTR.PORT]: (reader, server) => {
    server.port = reader.u16()
  },
  [IPVS_SVC_ATTR.FWMARK]: (reader, server) => {
    server.mark = reader.hostU32()
  },
  [IPVS_SVC_ATTR.SCHED_NAME]: (reader, server) => {
    server.scheduler = reader.text()
  },
  [IPVS_SVC_ATTR.FLAGS]: (reader, server) => {
    server.flags = reader.hostU32()
  },
  [IPVS_SVC_ATTR.TIMEOUT]: (reader, server) => {
    server.timeout = reader.hostU32()
  },
  [IPVS_SVC_ATTR.STATS64]: (reader, server) => {
    server.statistics = readStatistics(reader, true)
  },
  [IPVS_SVC_ATTR.STATS]: (reader, server) => {
    server.statistics ??= readStatistics(reader, false)
  },
}

/** `family` is that of the server. Kernels before 3.18 do not send the family of the destination. */
export function decodeDestination(
  message: MessageReader,
  reader: AttributeReader,
  cache: AddressCache,
  family: Family,
): ListedDestination | undefined {
  if (!enterAttribute(message, reader, IPVS_CMD_ATTR.DEST)) return undefined
  const found = { port: 0, method: 0, weight: 0, active: 0, inactive: 0 }
  let statistics = noStatistics
  let addressAt = -1
  let ownFamily = family
  while (reader.next()) {
    switch (reader.type) {
      case IPVS_DEST_ATTR.ADDR:
        addressAt = reader.start
        break
      case IPVS_DEST_ATTR.PORT:
        found.port = reader.u16()
        break
      case IPVS_DEST_ATTR.FWD_METHOD:
        found.method = reader.hostU32() & IP_VS_CONN_F_FWD_MASK
        break
      case IPVS_DEST_ATTR.WEIGHT:
        found.weight = reader.hostU32()
        break
      case IPVS_DEST_ATTR.ACTIVE_CONNS:
        found.active = reader.hostU32()
        break
      case IPVS_DEST_ATTR.INACT_CONNS:
        found.inactive = reader.hostU32()
        break
      case IPVS_DEST_ATTR.ADDR_FAMILY:
        ownFamily = reader.hostU16() === AF_INET6 ? 6 : 4
        break
      case IPVS_DEST_ATTR.STATS64:
        statistics = readStatistics(reader, true)
        break
    }
  }
  if (reader.error !== undefined || addressAt < 0) return undefined
  return { ip: cache.text(ownFamily, message.bytes, addressAt), ...found, statistics }
}

const noStatistics: ServerStatistics = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

/** `isWide`: the numbers have 64 bits. */
function readStatistics(reader: AttributeReader, isWide: boolean): ServerStatistics {
  const found = { ...noStatistics }
  reader.enter()
  while (reader.next()) {
    const number = () => (isWide || reader.length === 8 ? hostU64(reader) : reader.hostU32())
    if (reader.type === IPVS_STATS_ATTR.CONNS) found.connections = number()
    else if (reader.type === IPVS_STATS_ATTR.INPKTS) found.packetsIn = number()
    else if (reader.type === IPVS_STATS_ATTR.OUTPKTS) found.packetsOut = number()
    else if (reader.type === IPVS_STATS_ATTR.INBYTES) found.bytesIn = number()
    else if (reader.type === IPVS_STATS_ATTR.OUTBYTES) found.bytesOut = number()
  }
  reader.leave()
  return found
}

/** Exact up to 2^53, which is nine petabytes. */
function hostU64(reader: AttributeReader): number {
  if (reader.length < 8) {
    reader.fail(`attribute ${reader.type} has ${reader.length} bytes, needs 8`)
    return 0
  }
  const { bytes, start } = reader
  return Number(littleEndian ? bytes.readBigUInt64LE(start) : bytes.readBigUInt64BE(start))
}

/** Descends into the attribute of that type; returns false if the message has none. */
function enterAttribute(message: MessageReader, reader: AttributeReader, type: number): boolean {
  message.attributes(genericHeader, reader)
  while (reader.next()) {
    if (reader.type !== type) continue
    reader.enter()
    return true
  }
  return false
}
