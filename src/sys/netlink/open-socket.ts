// Opens netlink file descriptors with the right protocol, buffers and extended errors, and prints their traffic if SLUICE_NETLINK_DEBUG=1.

import type { Clock } from '../../lib/time.ts'
import * as libc from '../libc.ts'
import { describeMessages, routeHeader } from './debug.ts'
import { hostU32, littleEndian } from './message.ts'
import { callError } from './netlink-errors.ts'

const protocols = { route: 0, diagnosis: 4, netfilter: 12, generic: 16 } as const
const SOL_NETLINK = 270
const NETLINK_ADD_MEMBERSHIP = 1
const NETLINK_CAP_ACK = 10
const NETLINK_EXT_ACK = 11

/** A datagram of a dump has at most 32 KiB, however large the buffer is. */
export const receiveBytes = 64 * 1024

export interface SocketOptions {
  readonly protocol: keyof typeof protocols
  /** What the socket is for, as errors name it: `conntrack`. */
  readonly purpose: string
  /** Must hold the largest datagram. With the default of about 200 KiB the kernel refuses larger batches with EMSGSIZE. */
  readonly sendBufferBytes?: number
  readonly receiveBufferBytes?: number
  readonly clock?: Clock
}

/** Returns the fd of a socket that has joined the multicast groups. */
export function openNetlink(options: SocketOptions, groups: readonly number[] = []): number {
  const { purpose, protocol } = options
  const fd = libc.socket(libc.AF_NETLINK, libc.SOCK_RAW | libc.SOCK_CLOEXEC, protocols[protocol])
  if (fd < 0) throw callError(purpose, `open a netlink socket (${protocol})`, -fd)
  try {
    const address = Buffer.alloc(12)
    address[littleEndian ? 0 : 1] = libc.AF_NETLINK
    check(purpose, 'bind the netlink socket', libc.bind(fd, address))
    // Kernels before 4.12 have no EXT_ACK: their errors have no description.
    libc.setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, 1)
    libc.setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, 1)
    resize(fd, libc.SO_SNDBUFFORCE, libc.SO_SNDBUF, options.sendBufferBytes)
    resize(fd, libc.SO_RCVBUFFORCE, libc.SO_RCVBUF, options.receiveBufferBytes)
    for (const group of groups) {
      const op = `join notification group ${group}`
      check(purpose, op, libc.setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group))
    }
  } catch (error) {
    libc.close(fd)
    throw error
  }
  return fd
}

/** Returns the kernel's number for the socket, by which notifications name the sender; minus the error number if the fd is not a socket. */
export function readPort(fd: number): number {
  const address = Buffer.alloc(12)
  const returned = libc.getsockname(fd, address)
  return returned < 0 ? returned : hostU32(address, 4)
}

/** If true, every message is printed to stderr. Each socket asks when it is opened, so that nothing is decided when modules are loaded. */
export const isTracing = (): boolean => process.env.SLUICE_NETLINK_DEBUG === '1'

export function trace(direction: string, { protocol }: SocketOptions, bytes: Buffer, length: number): void {
  process.stderr.write(describeMessages(direction, bytes, length, protocol === 'route' ? routeHeader : undefined))
}

/** Exceeds net.core.rmem_max and wmem_max if the process is allowed to; otherwise they limit the size. */
function resize(fd: number, force: number, option: number, bytes: number | undefined): void {
  if (bytes !== undefined && libc.setsockopt(fd, libc.SOL_SOCKET, force, bytes) < 0) {
    libc.setsockopt(fd, libc.SOL_SOCKET, option, bytes)
  }
}

function check(purpose: string, op: string, returned: number): void {
  if (returned < 0) throw callError(purpose, op, -returned)
}
