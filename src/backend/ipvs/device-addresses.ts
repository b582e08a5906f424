// The device kube-ipvs0 and the service addresses on it, which make the node take service traffic for its own.

import { ProxyError } from '../../lib/errors.ts'
import { type Family, isLoopback } from '../../lib/ip.ts'
import { EEXIST } from '../../sys/errno.ts'
import { AddressCache } from '../../sys/netlink/address-codec.ts'
import {
  RTM_DELADDR,
  RTM_DELLINK,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  RTNLGRP_IPV4_IFADDR,
  RTNLGRP_IPV6_IFADDR,
  RTNLGRP_LINK,
  writeAddress,
  writeDummy,
  writeLinkName,
} from '../../sys/netlink/dummy-link.ts'
import { decodeAddress, decodeLink, listAddresses } from '../../sys/netlink/interface-addresses.ts'
import { AttributeReader, hostU32, type MessageReader, NLM_F_CREATE, NLM_F_EXCL } from '../../sys/netlink/message.ts'
import { errnoOf } from '../../sys/netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../../sys/netlink/socket.ts'
import { type Subscription, subscribe } from '../../sys/netlink/subscribe.ts'
import type { RefusedEntry } from '../backend.ts'
import { deviceName } from './entries.ts'
import { NetlinkBatch } from './netlink-batch.ts'

const purpose = 'service addresses'
const EADDRNOTAVAIL = 99

export class DeviceAddresses {
  readonly #socket = new NetlinkSocket({ protocol: 'route', purpose, receiveBufferBytes: 4 << 20 })
  readonly #family: Family
  readonly #onDrift: (what: string) => void
  /** 0: there is no device. */
  #index = 0
  readonly #bound = new Set<string>()
  /** Wanted, but an address of another interface: there it stays, and gets no rules of ours. */
  readonly #elsewhere = new Set<string>()
  /** Addresses of all other interfaces. */
  #others: ReadonlySet<string> = new Set()
  #watch: Subscription | undefined

  constructor(family: Family, onDrift: (what: string) => void) {
    this.#family = family
    this.#onDrift = onDrift
  }

  get present(): boolean {
    return this.#index !== 0
  }

  get bound(): ReadonlySet<string> {
    return this.#bound
  }

  /** Wanted addresses that another interface has, as last seen. */
  get elsewhere(): ReadonlySet<string> {
    return this.#elsewhere
  }

  async read(wait: Wait): Promise<void> {
    this.#watch ??= this.#subscribe()
    this.#index = await this.#find(wait)
    this.#bound.clear()
    const others = new Set<string>()
    for (const { ip, family, interface: name } of await listAddresses(wait)) {
      if (family !== this.#family) continue
      if (name === deviceName) this.#bound.add(ip)
      else if (!isLoopback(ip)) others.add(ip)
    }
    this.#others = others
    for (const ip of this.#elsewhere) if (!others.has(ip)) this.#elsewhere.delete(ip)
  }

  async create(wait: Wait): Promise<void> {
    try {
      const body = (writer: Parameters<typeof writeDummy>[0]) => writeDummy(writer, deviceName)
      const flags = NLM_F_CREATE | NLM_F_EXCL
      await this.#socket.request({ op: `create ${deviceName}`, type: RTM_NEWLINK, flags, body }, undefined, wait)
    } catch (error) {
      if (errnoOf(error) === 'EOPNOTSUPP') {
        throw new ProxyError('ipvs-missing', `this kernel has no dummy device, which mode ipvs needs: modprobe dummy`, {
          cause: error,
        })
      }
      if (errnoOf(error) !== 'EEXIST') throw error
    }
    this.#index = await this.#find(wait)
  }

  /** Returns those that are now on the device; another interface's own are left where they are. */
  async bind(
    ips: readonly string[],
    wait: Wait,
  ): Promise<{ bound: readonly string[]; refused: readonly RefusedEntry[] }> {
    const own = ips.filter((ip) => !this.#others.has(ip))
    for (const ip of ips) if (this.#others.has(ip)) this.#elsewhere.add(ip)
    const batch = new NetlinkBatch<string>(this.#socket, `add addresses to ${deviceName}`, wait)
    for (const ip of own) {
      this.#bound.add(ip)
      batch.add(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, ip, (writer) => writeAddress(writer, this.#index, ip))
    }
    const refused = (await batch.send()).filter(({ errno }) => errno !== EEXIST)
    for (const { about } of refused) this.#bound.delete(about)
    const failed = new Set(refused.map(({ about }) => about))
    return {
      bound: own.filter((ip) => !failed.has(ip)),
      refused: refused.map(({ about, error }) => ({ id: `address ${about}`, error })),
    }
  }

  /** `forget`: they are not wanted any more, here or elsewhere. */
  async unbind(ips: readonly string[], wait: Wait, forget = true): Promise<void> {
    const batch = new NetlinkBatch<string>(this.#socket, `remove addresses from ${deviceName}`, wait)
    for (const ip of ips) {
      if (forget) this.#elsewhere.delete(ip)
      if (!this.#bound.delete(ip)) continue
      batch.add(RTM_DELADDR, 0, ip, (writer) => writeAddress(writer, this.#index, ip))
    }
    const [refused] = (await batch.send()).filter(({ errno }) => errno !== EADDRNOTAVAIL)
    if (refused !== undefined) throw refused.error
  }

  /** Removes the device with all its addresses. */
  async destroy(wait: Wait): Promise<void> {
    if (this.#index === 0) return
    const body = (writer: Parameters<typeof writeLinkName>[0]) => writeLinkName(writer, deviceName)
    await this.#socket.request({ op: `delete ${deviceName}`, type: RTM_DELLINK, body }, undefined, wait)
    this.#index = 0
  }

  close(): void {
    this.#watch?.close()
    this.#socket.close()
  }

  async #find(wait: Wait): Promise<number> {
    const reader = new AttributeReader()
    let index = 0
    try {
      const body = (writer: Parameters<typeof writeLinkName>[0]) => writeLinkName(writer, deviceName)
      await this.#socket.request(
        { op: `find ${deviceName}`, type: RTM_GETLINK, body },
        (message) => {
          index = decodeLink(message, reader)?.index ?? index
        },
        wait,
      )
    } catch (error) {
      if (errnoOf(error) !== 'ENODEV') throw error
    }
    return index
  }

  #subscribe(): Subscription {
    const group = this.#family === 4 ? RTNLGRP_IPV4_IFADDR : RTNLGRP_IPV6_IFADDR
    const own = this.#socket.port
    const reader = new AttributeReader()
    const cache = new AddressCache()
    const names = new Map<number, string>()
    const options = { protocol: 'route', purpose, receiveBufferBytes: 8 << 20 } as const
    return subscribe(options, [RTNLGRP_LINK, group], {
      message: (message) => {
        if (message.port !== own) this.#judge(message, reader, names, cache)
      },
      lost: () => this.#onDrift('news of address changes were lost'),
    })
  }

  /** Somebody else changed a link or an address: is it one of ours? */
  #judge(message: MessageReader, reader: AttributeReader, names: Map<number, string>, cache: AddressCache): void {
    if (message.type === RTM_DELLINK) {
      const index = hostU32(message.bytes, message.start + 4)
      if (index === this.#index) this.#onDrift(`${deviceName} is gone`)
      return
    }
    if (message.type !== RTM_NEWADDR && message.type !== RTM_DELADDR) return
    const removed = message.type === RTM_DELADDR
    // The reader knows only additions; what a removal says is the same.
    message.type = RTM_NEWADDR
    const address = decodeAddress(message, reader, names, cache)
    if (address === undefined || address.family !== this.#family) return
    const ours = address.interface === `if${this.#index}`
    if (removed && ours && this.#bound.has(address.ip)) this.#onDrift(`${address.ip} is gone from ${deviceName}`)
    else if (removed && !ours && this.#elsewhere.has(address.ip))
      this.#onDrift(`${address.ip} is free for ${deviceName}`)
    else if (!removed && !ours && this.#bound.has(address.ip)) this.#onDrift(`another interface has ${address.ip}`)
    else if (!removed && ours && !this.#bound.has(address.ip)) this.#onDrift(`${address.ip} appeared on ${deviceName}`)
  }
}
