// Ends TCP sockets of this network namespace, so that their programs get an error at once, even if they only wait for data. Needs CAP_NET_ADMIN,
// and a kernel with CONFIG_INET_DIAG_DESTROY.
//
// The kernel's search for a socket also finds one that listens on the client's port. Therefore a socket is looked at before it is ended, and
// named by its cookie, which no other socket has.

import type { Family } from '../lib/ip.ts'
import { familyNumber, protocolNumbers } from './ip-numbers.ts'
import { addressBytes } from './netlink/address-codec.ts'
import type { MessageReader } from './netlink/message.ts'
import type { MessageWriter } from './netlink/message-writer.ts'
import { isRefusedWith } from './netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from './netlink/socket.ts'

const SOCK_DIAG_BY_FAMILY = 20
const SOCK_DESTROY = 21
/** The length of struct inet_diag_req_v2, and where its fields begin. */
const requestBytes = 56
const [portsAt, sourceAt, destinationAt, cookieAt] = [8, 12, 28, 48]
/** Where the state, the ports and the cookie are in struct inet_diag_msg. */
const [stateAt, foundPortsAt, foundCookieAt] = [1, 4, 44]
const cookieBytes = 8
/** TCP_ESTABLISHED, and states in which one side has closed: FIN_WAIT1, FIN_WAIT2 and CLOSE_WAIT. */
const openStates = new Set([1, 4, 5, 8])

/** A connection as its client sees it. */
export interface SocketAddresses {
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
}

/** Opens its socket at the first use. */
export class SocketEnder {
  #opened: NetlinkSocket | undefined
  /** False once the kernel has said that it cannot do this. */
  #isSupported = true

  get isSupported(): boolean {
    return this.#isSupported
  }

  /** Ends the sockets of these connections that exist here. Their programs get ECONNABORTED. Returns how many there were. */
  async end(family: Family, connections: readonly SocketAddresses[], wait: Wait = {}): Promise<number> {
    let ended = 0
    for (const connection of connections) {
      if (!this.#isSupported) break
      wait.signal?.throwIfAborted()
      if (await this.#endOne(family, connection, wait)) ended++
    }
    return ended
  }

  close(): void {
    this.#opened?.close()
  }

  async #endOne(family: Family, connection: SocketAddresses, wait: Wait): Promise<boolean> {
    try {
      this.#opened ??= new NetlinkSocket({ protocol: 'diagnosis', purpose: 'sockets' })
      const cookie = await find(this.#opened, encode(family, connection, anyCookie), wait)
      if (cookie === undefined) return false
      const request = encode(family, connection, cookie)
      await this.#opened.request(
        { op: 'end a socket', type: SOCK_DESTROY, body: (writer) => writer.header(request) },
        undefined,
        wait,
      )
      return true
    } catch (error) {
      if (isRefusedWith(error, 'ENOENT', 'ESTALE')) return false
      if (!isRefusedWith(error, 'EOPNOTSUPP', 'EPROTONOSUPPORT', 'EPERM')) throw error
      this.#isSupported = false
      return false
    }
  }
}

/** Returns the cookie of an open socket with exactly these addresses. */
async function find(socket: NetlinkSocket, request: Buffer, wait: Wait): Promise<Uint8Array | undefined> {
  let cookie: Uint8Array | undefined
  const visit = ({ bytes, start, end }: MessageReader) => {
    if (end - start < foundCookieAt + cookieBytes || !openStates.has(bytes[start + stateAt] ?? 0)) return
    const ports = bytes.subarray(start + foundPortsAt, start + foundPortsAt + 4)
    if (!ports.equals(request.subarray(portsAt, portsAt + 4))) return
    cookie = Uint8Array.from(bytes.subarray(start + foundCookieAt, start + foundCookieAt + cookieBytes))
  }
  const body = (writer: MessageWriter) => writer.header(request)
  await socket.request({ op: 'find a socket', type: SOCK_DIAG_BY_FAMILY, body }, visit, wait)
  return cookie
}

/** INET_DIAG_NOCOOKIE: any socket with these addresses. */
const anyCookie = new Uint8Array(cookieBytes).fill(0xff)

function encode(family: Family, connection: SocketAddresses, cookie: Uint8Array): Buffer {
  const bytes = Buffer.alloc(requestBytes)
  bytes[0] = familyNumber(family)
  bytes[1] = protocolNumbers.tcp
  // The states that are asked for: all.
  bytes.fill(0xff, 4, portsAt)
  bytes.writeUInt16BE(connection.sourcePort, portsAt)
  bytes.writeUInt16BE(connection.destinationPort, portsAt + 2)
  bytes.set(addressBytes(connection.source), sourceAt)
  bytes.set(addressBytes(connection.destination), destinationAt)
  bytes.set(cookie, cookieAt)
  return bytes
}
