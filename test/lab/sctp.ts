// SCTP on kernels without SCTP: raw sockets exchange an INIT and an INIT ACK, the first two packets of an association.
// Connection tracking and NAT see real SCTP, checksum and verification tags included.

import koffi from 'koffi'
import { familyOf, formatIp, hostPort } from '../../src/lib/ip.ts'
import * as libc from '../../src/sys/libc.ts'
import type { Answer, Server } from './echo-servers.ts'
import { type Namespace, socketAddress } from './namespace.ts'

const IPPROTO_SCTP = 132
const INIT = 1
const INIT_ACK = 2
const STATE_COOKIE = 7

const native = koffi.load(null)
const connect = native.func('int connect(int fd, const void *address, uint32_t length)')
const recvfrom = native.func(
  'intptr_t recvfrom(int fd, void *bytes, size_t length, int flags, void *from, void *fromLength)',
)
const sendto = native.func(
  'intptr_t sendto(int fd, const void *bytes, size_t length, int flags, const void *to, uint32_t toLength)',
)

interface Packet {
  /** Source address. */
  readonly ip: string
  readonly sourcePort: number
  readonly port: number
  readonly type: number
  /** Tag of the sender, which is the verification tag of the answer. */
  readonly tag: number
  readonly cookie: string
}

export function serveSctp(namespace: Namespace, address: { ip: string; port: number }, sink: string): Server {
  const fd = openRaw(namespace, address.ip)
  const server = hostPort(address.ip, address.port)
  const readiness = libc.watchReadable(fd, () => {
    for (let packet = receive(fd, address.ip); typeof packet === 'object'; packet = receive(fd, address.ip)) {
      if (packet.type !== INIT || packet.port !== address.port) continue
      const cookie = JSON.stringify({ server, peer: hostPort(packet.ip, packet.sourcePort), sink } satisfies Answer)
      const ports = { from: address.port, to: packet.sourcePort }
      const reply = encode({ ports, verification: packet.tag, type: INIT_ACK, cookie })
      const to = socketAddress(packet.ip, 0)
      sendto(fd, reply, reply.length, 0, to, to.length)
    }
  })
  const close = async () => {
    readiness.close()
    libc.close(fd)
  }
  return { close }
}

/** Sends an INIT. Resolves with the cookie of the INIT ACK, with an error number, or with undefined if nothing came in time. */
export function sendSctpInit(
  namespace: Namespace,
  flow: { from: string; sourcePort: number; to: string; port: number; timeoutMs: number },
): Promise<string | number | undefined> {
  const fd = openRaw(namespace, flow.from)
  const to = socketAddress(flow.to, 0)
  // Only a connected raw socket receives ICMP errors.
  if (connect(fd, to, to.length) !== 0) throw new Error(`connect to ${flow.to}: errno ${koffi.errno()}`)
  const ports = { from: flow.sourcePort, to: flow.port }
  const init = encode({ ports, verification: 0, type: INIT, cookie: '' })
  return new Promise((resolve) => {
    let again: NodeJS.Timeout | undefined
    const finish = (result: string | number | undefined) => {
      clearTimeout(timer)
      clearInterval(again)
      readiness.close()
      libc.close(fd)
      resolve(result)
    }
    const timer = setTimeout(() => finish(undefined), flow.timeoutMs)
    const readiness = libc.watchReadable(fd, () => {
      for (let packet = receive(fd, flow.from); packet !== undefined; packet = receive(fd, flow.from)) {
        if (typeof packet === 'number') return finish(packet)
        if (packet.type === INIT_ACK && packet.port === flow.sourcePort) return finish(packet.cookie)
      }
    })
    const send = () => libc.send(fd, init, init.length)
    // The result is ignored: if a rule rejects the packet, an ICMP error follows.
    send()
    again = setInterval(send, 1000)
  })
}

function openRaw(namespace: Namespace, ip: string): number {
  const type = libc.SOCK_RAW | libc.SOCK_CLOEXEC
  const fd = namespace.inside(() => libc.socket(familyOf(ip) === 6 ? 10 : 2, type, IPPROTO_SCTP))
  if (fd < 0) throw new Error(`raw socket in ${namespace.name}: errno ${-fd}`)
  const bound = libc.bind(fd, socketAddress(ip, 0))
  if (bound < 0) {
    libc.close(fd)
    throw new Error(`bind ${ip} in ${namespace.name}: errno ${-bound}`)
  }
  return fd
}

const EAGAIN = 11

/** Returns a packet, an error number, or undefined when there is no more. */
function receive(fd: number, ownIp: string): Packet | number | undefined {
  const buffer = Buffer.alloc(2048)
  const from = Buffer.alloc(28)
  const length = Number(recvfrom(fd, buffer, buffer.length, libc.MSG_DONTWAIT, from, Uint32Array.of(from.length)))
  if (length < 0) return koffi.errno() === EAGAIN ? undefined : koffi.errno()
  const six = familyOf(ownIp) === 6
  // IPv4 raw sockets also deliver the IP header.
  const sctp = buffer.subarray(six ? 0 : ((buffer[0] as number) & 0xf) * 4, length)
  if (sctp.length < 32) return undefined
  const cookieLength = sctp.length >= 36 && sctp.readUInt16BE(32) === STATE_COOKIE ? sctp.readUInt16BE(34) - 4 : 0
  return {
    ip: formatIp(six ? from.subarray(8, 24) : from.subarray(4, 8)),
    sourcePort: sctp.readUInt16BE(0),
    port: sctp.readUInt16BE(2),
    type: sctp[12] as number,
    tag: sctp.readUInt32BE(16),
    cookie: sctp.toString('utf8', 36, 36 + cookieLength),
  }
}

function encode(packet: {
  ports: { from: number; to: number }
  verification: number
  type: number
  cookie: string
}): Buffer {
  const cookie = Buffer.from(packet.cookie)
  const parameter = cookie.length === 0 ? 0 : 4 + cookie.length
  const bytes = Buffer.alloc(32 + Math.ceil(parameter / 4) * 4)
  bytes.writeUInt16BE(packet.ports.from, 0)
  bytes.writeUInt16BE(packet.ports.to, 2)
  bytes.writeUInt32BE(packet.verification, 4)
  bytes[12] = packet.type
  bytes.writeUInt16BE(20 + parameter, 14)
  // Any tag but zero is valid.
  bytes.writeUInt32BE(1 + packet.ports.from, 16)
  bytes.writeUInt32BE(65_536, 20)
  bytes.writeUInt16BE(1, 24)
  bytes.writeUInt16BE(1, 26)
  bytes.writeUInt32BE(1, 28)
  if (parameter > 0) {
    bytes.writeUInt16BE(STATE_COOKIE, 32)
    bytes.writeUInt16BE(parameter, 34)
    cookie.copy(bytes, 36)
  }
  bytes.writeUInt32LE(crc32c(bytes), 8)
  return bytes
}

function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1
  }
  return ~crc >>> 0
}
