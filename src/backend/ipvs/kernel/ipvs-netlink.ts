// Talks to IPVS over generic netlink: reads servers and destinations, and sends requests in batches.

import { ProxyError } from '../../../lib/errors.ts'
import { AddressCache } from '../../../sys/netlink/address-codec.ts'
import { findFamily } from '../../../sys/netlink/generic-netlink.ts'
import {
  type Destination,
  decodeDestination,
  decodeServer,
  type IpvsTimeouts,
  ipvsCommand,
  ipvsFamilyName,
  type ListedDestination,
  type ListedServer,
  type VirtualServer,
  type VirtualServerKey,
  writeAllServers,
  writeDestination,
  writeServer,
  writeServerKey,
  writeTimeouts,
} from '../../../sys/netlink/ipvs.ts'
import { AttributeReader } from '../../../sys/netlink/message.ts'
import type { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { isRefusedWith, malformed } from '../../../sys/netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../../../sys/netlink/socket.ts'
import { NetlinkBatch, type RefusedRequest } from './netlink-batch.ts'

const purpose = 'ipvs'

/** Requests that are sent together. `subject` comes back with each request that the kernel refuses. */
export interface IpvsRequests<T> {
  queueServer(what: number, subject: T, server: VirtualServer): void
  queueServerKey(what: number, subject: T, key: VirtualServerKey): void
  queueDestination(what: number, subject: T, key: VirtualServerKey, destination: Destination): void
  send(): Promise<readonly RefusedRequest<T>[]>
}

export class IpvsNetlink {
  /** The number of requests since the start, for figures. */
  sent = 0
  readonly #socket: NetlinkSocket
  readonly #type: number
  readonly #cache = new AddressCache()
  readonly #reader = new AttributeReader()

  private constructor(socket: NetlinkSocket, type: number) {
    this.#socket = socket
    this.#type = type
  }

  /** Undefined if this kernel has no IPVS. The kernel loads the module for this request where that is allowed. */
  static async open(wait: Wait = {}): Promise<IpvsNetlink | undefined> {
    const socket = new NetlinkSocket({ protocol: 'generic', purpose, receiveBufferBytes: 4 << 20 })
    try {
      const type = await findFamily(socket, ipvsFamilyName, wait)
      if (type !== undefined) return new IpvsNetlink(socket, type)
    } catch (error) {
      socket.close()
      throw error
    }
    socket.close()
    return undefined
  }

  /** All virtual servers except those of firewall marks. */
  async listServers(wait: Wait): Promise<readonly ListedServer[]> {
    const found: ListedServer[] = []
    const op = 'list virtual servers'
    const body = (writer: MessageWriter) => writeAllServers(writer, ipvsCommand.getService)
    await this.#socket.dump(
      { op, type: this.#type, body },
      (message) => {
        const server = decodeServer(message, this.#reader, this.#cache)
        this.#assertValid(op)
        if (server !== undefined) found.push(server)
      },
      wait,
    )
    return found
  }

  /** Undefined if the server does not exist. */
  async readServer(key: VirtualServerKey, wait: Wait): Promise<ListedServer | undefined> {
    const op = 'read a virtual server'
    const body = (writer: MessageWriter) => writeServerKey(writer, ipvsCommand.getService, key)
    let found: ListedServer | undefined
    try {
      await this.#socket.request(
        { op, type: this.#type, body },
        (message) => {
          found = decodeServer(message, this.#reader, this.#cache)
          this.#assertValid(op)
        },
        wait,
      )
    } catch (error) {
      if (!isRefusedWith(error, 'ESRCH')) throw error
    }
    return found
  }

  /** Empty if the server does not exist. */
  async listDestinations(key: VirtualServerKey, wait: Wait): Promise<readonly ListedDestination[]> {
    const found: ListedDestination[] = []
    const op = 'list destinations'
    const body = (writer: MessageWriter) => writeServerKey(writer, ipvsCommand.getDestination, key)
    await this.#socket.dump(
      { op, type: this.#type, body },
      (message) => {
        const destination = decodeDestination(message, this.#reader, this.#cache, key.family)
        this.#assertValid(op)
        if (destination !== undefined) found.push(destination)
      },
      wait,
    )
    return found
  }

  openRequests<T>(op: string, wait: Wait): IpvsRequests<T> {
    const batch = new NetlinkBatch<T>(this.#socket, op, wait)
    const type = this.#type
    const add = (subject: T, body: (writer: MessageWriter) => void) => {
      this.sent++
      batch.add(type, 0, subject, body)
    }
    return {
      queueServer: (what, subject, server) => add(subject, (writer) => writeServer(writer, what, server)),
      queueServerKey: (what, subject, key) => add(subject, (writer) => writeServerKey(writer, what, key)),
      queueDestination: (what, subject, key, one) => add(subject, (writer) => writeDestination(writer, what, key, one)),
      send: () => batch.send(),
    }
  }

  async setTimeouts(timeouts: IpvsTimeouts, wait: Wait = {}): Promise<void> {
    const body = (writer: MessageWriter) => writeTimeouts(writer, timeouts)
    await this.#socket.request({ op: 'set timeouts', type: this.#type, body }, undefined, wait)
  }

  close(): void {
    this.#socket.close()
  }

  #assertValid(op: string): void {
    if (this.#reader.error !== undefined) throw malformed(purpose, op, this.#reader.error)
  }
}

export const missingIpvsError = (): ProxyError =>
  new ProxyError('ipvs-missing', 'this kernel has no IPVS: load the module ip_vs, or use mode nftables')
