// The device kube-ipvs0 and the addresses on it: the node accepts traffic for services because it has their addresses.

import { ProxyError } from '../../../lib/errors.ts'
import { type Family, isLoopback } from '../../../lib/ip.ts'
import { EEXIST } from '../../../sys/errno.ts'
import { AddressCache } from '../../../sys/netlink/address-codec.ts'
import { writeAddress, writeDummy, writeLinkName } from '../../../sys/netlink/dummy-link.ts'
import { decodeAddress, decodeLink, listAddresses } from '../../../sys/netlink/interface-addresses.ts'
import { AttributeReader, hostU32, type MessageReader, NLM_F_CREATE, NLM_F_EXCL } from '../../../sys/netlink/message.ts'
import { isRefusedWith } from '../../../sys/netlink/netlink-errors.ts'
import {
  RTM_DELADDR,
  RTM_DELLINK,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  RTNLGRP_IPV4_IFADDR,
  RTNLGRP_IPV6_IFADDR,
  RTNLGRP_LINK,
} from '../../../sys/netlink/rtnetlink.ts'
import { NetlinkSocket, type Wait } from '../../../sys/netlink/socket.ts'
import { type Subscription, subscribe } from '../../../sys/netlink/subscribe.ts'
import type { DriftReason, RefusedEntry } from '../../backend.ts'
import { type AddressChange, describeAddressDrift } from '../drift.ts'
import { addressEntry, deviceName } from '../entries.ts'
import { NetlinkBatch } from './netlink-batch.ts'

const purpose = 'service addresses'
const EADDRNOTAVAIL = 99
/** An interface that `decodeAddress` is given no name for gets the name `if5`, after its number. */
const noNames: ReadonlyMap<number, string> = new Map()

export class DeviceAddresses {
  readonly #socket = new NetlinkSocket({ protocol: 'route', purpose, receiveBufferBytes: 4 << 20 })
  readonly #family: Family
  readonly #onDrift: (what: string, reason?: DriftReason) => void
  /** The interface number of the device; 0: there is no device. */
  #index = 0
  readonly #bound = new Set<string>()
  readonly #elsewhere = new Set<string>()
  /** The addresses of all other interfaces. */
  #others: ReadonlySet<string> = new Set()
  #subscription: Subscription | undefined

  constructor(family: Family, onDrift: (what: string, reason?: DriftReason) => void) {
    this.#family = family
    this.#onDrift = onDrift
  }

  get isPresent(): boolean {
    return this.#index !== 0
  }

  /** The addresses on the device. */
  get bound(): ReadonlySet<string> {
    return this.#bound
  }

  /** Wanted addresses that another interface has, as last seen. They stay there and get no rules of ours. */
  get elsewhere(): ReadonlySet<string> {
    return this.#elsewhere
  }

  async read(wait: Wait): Promise<void> {
    this.#subscription ??= this.#subscribe()
    this.#index = await this.#findIndex(wait)
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
      if (isRefusedWith(error, 'EOPNOTSUPP')) {
        throw new ProxyError('ipvs-missing', `this kernel has no dummy device, which mode ipvs needs: modprobe dummy`, {
          cause: error,
        })
      }
      if (!isRefusedWith(error, 'EEXIST')) throw error
    }
    this.#index = await this.#findIndex(wait)
  }

  /** Adds addresses to the device, except those that another interface has. Returns the addresses that the device has now. */
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
    for (const { subject } of refused) this.#bound.delete(subject)
    const failed = new Set(refused.map(({ subject }) => subject))
    return {
      bound: own.filter((ip) => !failed.has(ip)),
      refused: refused.map(({ subject, error }) => ({ id: addressEntry(subject).id, error })),
    }
  }

  /** Removes addresses from the device. */
  async unbind(ips: readonly string[], wait: Wait): Promise<void> {
    const batch = new NetlinkBatch<string>(this.#socket, `remove addresses from ${deviceName}`, wait)
    for (const ip of ips) {
      if (!this.#bound.delete(ip)) continue
      batch.add(RTM_DELADDR, 0, ip, (writer) => writeAddress(writer, this.#index, ip))
    }
    const [refused] = (await batch.send()).filter(({ errno }) => errno !== EADDRNOTAVAIL)
    if (refused !== undefined) throw refused.error
  }

  /** Called for addresses that no service wants any more. */
  forgetElsewhere(ips: readonly string[]): void {
    for (const ip of ips) this.#elsewhere.delete(ip)
  }

  /** Removes the device with all its addresses. */
  async destroy(wait: Wait): Promise<void> {
    if (this.#index === 0) return
    const body = (writer: Parameters<typeof writeLinkName>[0]) => writeLinkName(writer, deviceName)
    await this.#socket.request({ op: `delete ${deviceName}`, type: RTM_DELLINK, body }, undefined, wait)
    this.#index = 0
  }

  close(): void {
    this.#subscription?.close()
    this.#socket.close()
  }

  async #findIndex(wait: Wait): Promise<number> {
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
      if (!isRefusedWith(error, 'ENODEV')) throw error
    }
    return index
  }

  #subscribe(): Subscription {
    const group = this.#family === 4 ? RTNLGRP_IPV4_IFADDR : RTNLGRP_IPV6_IFADDR
    const reader = new AttributeReader()
    const cache = new AddressCache()
    const options = { protocol: 'route', purpose, receiveBufferBytes: 8 << 20 } as const
    return subscribe(options, [RTNLGRP_LINK, group], {
      message: (message) => {
        if (message.port === this.#socket.port) return
        if (this.#isRemovalOfDevice(message)) return this.#onDrift(`${deviceName} is gone`)
        const change = this.#decodeChange(message, reader, cache)
        const found = change === undefined ? '' : describeAddressDrift(change, this)
        if (found !== '') this.#onDrift(found)
      },
      lost: (reason) => this.#onDrift(`an unknown process; ${reason}`, 'reports-lost'),
    })
  }

  #isRemovalOfDevice(message: MessageReader): boolean {
    return message.type === RTM_DELLINK && hostU32(message.bytes, message.start + 4) === this.#index
  }

  /** Undefined if the message is not about an address of this family. */
  #decodeChange(message: MessageReader, reader: AttributeReader, cache: AddressCache): AddressChange | undefined {
    if (message.type !== RTM_NEWADDR && message.type !== RTM_DELADDR) return undefined
    const isRemoval = message.type === RTM_DELADDR
    // A removal has the same fields as an addition, and `decodeAddress` accepts only additions.
    message.type = RTM_NEWADDR
    const address = decodeAddress(message, reader, noNames, cache)
    if (address === undefined || address.family !== this.#family) return undefined
    return { ip: address.ip, isRemoval, isOnDevice: address.interface === `if${this.#index}` }
  }
}
