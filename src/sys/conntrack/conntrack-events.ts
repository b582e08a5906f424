// Reports the TCP connections to endpoints that the kernel begins to track, those that get a reply, and those that end without one. The kernel
// filters: of the six and more notifications of a healthy connection it queues two.

import { type Family, hostPort } from '../../lib/ip.ts'
import type { Clock } from '../../lib/time.ts'
import { familyOfNumber, protocolNumbers } from '../ip-numbers.ts'
import { AddressCache } from '../netlink/address-codec.ts'
import { AttributeReader, type MessageReader } from '../netlink/message.ts'
import { type Subscription, subscribe } from '../netlink/subscribe.ts'
import { filterConnections } from './conntrack-filter.ts'
import {
  CTA,
  clearTuple,
  IPS_SEEN_REPLY,
  makeTuple,
  notificationGroups,
  notificationKind,
  readTuple,
} from './conntrack-tuple.ts'

/** Notifications are read at most this often: to be woken up costs more than to read a notification. */
const batchMs = 50

/** An endpoint is `ip:port`. An id distinguishes connections. */
export interface ConnectionListener {
  /** A connection began. `isTranslated`: the client dialled another address than that of the endpoint. */
  opened(id: number, endpoint: string, isTranslated: boolean): void
  answered(id: number, endpoint: string): void
  /** A connection ended that was never answered. */
  ended(id: number, endpoint: string): void
  /** Called when events were lost, because there were too many. */
  lost(reason: string): void
}

export interface ConnectionSubscription extends Subscription {
  /** Reads what the kernel has queued. Returns false if there is more. */
  readQueued(): boolean
  /** From now on connections to endpoints with these ports are reported. The set is not copied. */
  setPorts(ports: ReadonlySet<number>): void
}

/** Throws if the kernel has no connection tracking, or does not allow it. Reports nothing until ports are set. */
export function watchConnections(listener: ConnectionListener, clock: Clock): ConnectionSubscription {
  const decoder = new ConnectionDecoder(listener)
  const options = {
    protocol: 'netfilter',
    purpose: 'connections',
    receiveBufferBytes: 4 << 20,
    clock,
    batchMs,
  } as const
  const subscription = subscribe(options, notificationGroups, {
    message: (message) => decoder.decode(message),
    lost: (reason) => listener.lost(reason),
  })
  return {
    close: () => subscription.close(),
    readQueued: () => subscription.readQueued(),
    setPorts(ports) {
      decoder.ports = ports
      subscription.setFilter(filterConnections(ports))
    },
  }
}

/** Calls the listener for what a notification says. It makes no object for a notification. */
export class ConnectionDecoder {
  /** The ports of endpoints. The filter may let others pass, and is absent for notifications that were queued before it was set. */
  ports: ReadonlySet<number> = new Set()
  readonly #listener: Omit<ConnectionListener, 'lost'>
  readonly #names = new EndpointNames()
  readonly #reader = new AttributeReader()
  readonly #original = makeTuple()
  readonly #reply = makeTuple()
  #id = 0
  #status = 0

  constructor(listener: Omit<ConnectionListener, 'lost'>) {
    this.#listener = listener
  }

  decode(message: MessageReader): void {
    const kind = notificationKind(message)
    const family = familyOfNumber(message.bytes[message.start] ?? 0)
    if (kind === undefined || family === undefined || !this.#read(message, family)) return
    const [id, reply] = [this.#id, this.#reply]
    if (reply.protocol !== protocolNumbers.tcp || !this.ports.has(reply.sourcePort)) return
    const endpoint = this.#names.name(family, message.bytes, reply)
    const isReplied = (this.#status & IPS_SEEN_REPLY) !== 0
    if (kind === 'new') this.#listener.opened(id, endpoint, this.#isTranslated(message.bytes, family))
    if (kind === 'destroy' && !isReplied) this.#listener.ended(id, endpoint)
    else if (kind !== 'destroy' && isReplied) this.#listener.answered(id, endpoint)
  }

  /** Reads four attributes, which the kernel writes first, and none that follows. Returns false if there are no addresses. */
  #read(message: MessageReader, family: Family): boolean {
    const [reader, original, reply] = [this.#reader, this.#original, this.#reply]
    clearTuple(original)
    clearTuple(reply)
    this.#id = this.#status = 0
    message.attributes(4, reader)
    for (let missing = 4; missing > 0 && reader.next(); missing--) {
      if (reader.type === CTA.TUPLE_ORIG) readTuple(reader, original, family)
      else if (reader.type === CTA.TUPLE_REPLY) readTuple(reader, reply, family)
      else if (reader.type === CTA.STATUS) this.#status = reader.u32()
      else if (reader.type === CTA.ID) this.#id = reader.u32()
      else missing++
    }
    return original.destination !== 0 && reply.source !== 0 && reader.error === undefined
  }

  #isTranslated(bytes: Buffer, family: Family): boolean {
    const { destination, destinationPort } = this.#original
    const { source, sourcePort } = this.#reply
    if (destinationPort !== sourcePort) return true
    const length = family === 4 ? 4 : 16
    for (let i = 0; i < length; i++) if (bytes[destination + i] !== bytes[source + i]) return true
    return false
  }
}

/** Endpoints whose names are kept: more than there are on most clusters. */
const maxNames = 65_536

/** Names of endpoints, `ip:port`. Each is made once. */
class EndpointNames {
  readonly #addresses = new AddressCache()
  /** By port, then by address. */
  readonly #names = new Map<number, Map<string, string>>()
  #count = 0

  name(family: Family, bytes: Buffer, reply: { readonly source: number; readonly sourcePort: number }): string {
    const ip = this.#addresses.text(family, bytes, reply.source)
    const known = this.#names.get(reply.sourcePort)?.get(ip)
    return known ?? this.#add(ip, reply.sourcePort)
  }

  #add(ip: string, port: number): string {
    if (++this.#count > maxNames) {
      this.#names.clear()
      this.#count = 1
    }
    const names = this.#names.get(port) ?? new Map<string, string>()
    const name = hostPort(ip, port)
    this.#names.set(port, names.set(ip, name))
    return name
  }
}
