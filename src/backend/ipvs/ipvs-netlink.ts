// IPVS in the kernel, over generic netlink: read servers and destinations, and send requests in batches.

import { ProxyError } from '../../lib/errors.ts'
import { AddressCache } from '../../sys/netlink/address-codec.ts'
import { findFamily } from '../../sys/netlink/generic-netlink.ts'
import {
  command,
  type Destination,
  type DestinationSeen,
  decodeDestination,
  decodeService,
  ipvsFamilyName,
  type Service,
  type ServiceKey,
  type ServiceSeen,
  type Timeouts,
  writeAll,
  writeDestination,
  writeService,
  writeServiceKey,
  writeTimeouts,
} from '../../sys/netlink/ipvs.ts'
import { AttributeReader } from '../../sys/netlink/message.ts'
import type { MessageWriter } from '../../sys/netlink/message-writer.ts'
import { errnoOf, malformed } from '../../sys/netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../../sys/netlink/socket.ts'
import { NetlinkBatch, type RefusedRequest } from './netlink-batch.ts'

const purpose = 'ipvs'

/** Requests that are sent together; `about` comes back with those that are refused. */
export interface IpvsRequests<T> {
  service(what: number, about: T, service: Service): void
  serviceKey(what: number, about: T, key: ServiceKey): void
  destination(what: number, about: T, key: ServiceKey, destination: Destination): void
  send(): Promise<readonly RefusedRequest<T>[]>
}

export class IpvsNetlink {
  /** Requests sent since the start, for figures. */
  sent = 0
  readonly #socket: NetlinkSocket
  readonly #type: number
  readonly #cache = new AddressCache()
  readonly #reader = new AttributeReader()

  private constructor(socket: NetlinkSocket, type: number) {
    this.#socket = socket
    this.#type = type
  }

  /** Undefined if this kernel has no IPVS. Asking loads the module where that is allowed. */
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

  /** Without those by firewall mark. */
  async services(wait: Wait): Promise<readonly ServiceSeen[]> {
    const found: ServiceSeen[] = []
    const op = 'list virtual servers'
    const body = (writer: MessageWriter) => writeAll(writer, command.getService)
    await this.#socket.dump(
      { op, type: this.#type, body },
      (message) => {
        const service = decodeService(message, this.#reader, this.#cache)
        this.#sound(op)
        if (service !== undefined) found.push(service)
      },
      wait,
    )
    return found
  }

  /** Undefined if there is none. */
  async service(key: ServiceKey, wait: Wait): Promise<ServiceSeen | undefined> {
    const op = 'read a virtual server'
    const body = (writer: MessageWriter) => writeServiceKey(writer, command.getService, key)
    let found: ServiceSeen | undefined
    try {
      await this.#socket.request(
        { op, type: this.#type, body },
        (message) => {
          found = decodeService(message, this.#reader, this.#cache)
          this.#sound(op)
        },
        wait,
      )
    } catch (error) {
      if (errnoOf(error) !== 'ESRCH') throw error
    }
    return found
  }

  /** None if the server is gone. */
  async destinations(key: ServiceKey, wait: Wait): Promise<readonly DestinationSeen[]> {
    const found: DestinationSeen[] = []
    const op = 'list destinations'
    const body = (writer: MessageWriter) => writeServiceKey(writer, command.getDestination, key)
    await this.#socket.dump(
      { op, type: this.#type, body },
      (message) => {
        const destination = decodeDestination(message, this.#reader, this.#cache, key.family)
        this.#sound(op)
        if (destination !== undefined) found.push(destination)
      },
      wait,
    )
    return found
  }

  requests<T>(op: string, wait: Wait): IpvsRequests<T> {
    const batch = new NetlinkBatch<T>(this.#socket, op, wait)
    const type = this.#type
    const add = (about: T, body: (writer: MessageWriter) => void) => {
      this.sent++
      batch.add(type, 0, about, body)
    }
    return {
      service: (what, about, service) => add(about, (writer) => writeService(writer, what, service)),
      serviceKey: (what, about, key) => add(about, (writer) => writeServiceKey(writer, what, key)),
      destination: (what, about, key, one) => add(about, (writer) => writeDestination(writer, what, key, one)),
      send: () => batch.send(),
    }
  }

  async setTimeouts(timeouts: Timeouts, wait: Wait = {}): Promise<void> {
    const body = (writer: MessageWriter) => writeTimeouts(writer, timeouts)
    await this.#socket.request({ op: 'set timeouts', type: this.#type, body }, undefined, wait)
  }

  close(): void {
    this.#socket.close()
  }

  #sound(op: string): void {
    if (this.#reader.error !== undefined) throw malformed(purpose, op, this.#reader.error)
  }
}

export const missingIpvsError = (): ProxyError =>
  new ProxyError('ipvs-missing', 'this kernel has no IPVS: load the module ip_vs, or use mode nftables')
