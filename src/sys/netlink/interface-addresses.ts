// Lists the addresses of this machine's interfaces with rtnetlink, and reports when they change.

import { networkInterfaces } from 'node:os'
import { canonicalIp, type Family } from '../../lib/ip.ts'
import { type Clock, systemClock, type Timer } from '../../lib/time.ts'
import { AddressCache } from './address-codec.ts'
import { AttributeReader, hostU32, type MessageReader } from './message.ts'
import type { MessageWriter } from './message-writer.ts'
import { malformed } from './netlink-errors.ts'
import {
  addressHeader,
  IFA,
  IFLA,
  linkHeader,
  RTM_GETADDR,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  RTNLGRP_IPV4_IFADDR,
  RTNLGRP_IPV6_IFADDR,
} from './rtnetlink.ts'
import { type NetlinkRequest, NetlinkSocket, type Wait } from './socket.ts'
import { subscribe } from './subscribe.ts'

const purpose = 'interface addresses'

/** Leaves out the counters of IPv6, which are a large part of a link's message. */
const RTEXT_FILTER_SKIP_STATS = 8
const maxAttempts = 5

type Scope = 'global' | 'site' | 'link' | 'host'

export interface InterfaceAddress {
  readonly interface: string
  /** The canonical address. */
  readonly ip: string
  readonly family: Family
  /** The length of the prefix that the address was configured with. */
  readonly bits: number
  readonly scope: Scope
}

const scopes: Readonly<Record<number, Scope>> = { 0: 'global', 200: 'site', 253: 'link', 254: 'host' }

/** Lists the addresses of all interfaces, up or down. Without netlink it lists what Node reports: addresses of interfaces that are up. */
export async function listAddresses(wait: Wait = {}): Promise<readonly InterfaceAddress[]> {
  let socket: NetlinkSocket
  try {
    socket = new NetlinkSocket({ protocol: 'route', purpose })
  } catch {
    return nodeAddresses()
  }
  try {
    const links = await dumpAll(
      socket,
      { op: 'list interfaces', type: RTM_GETLINK, body: writeLinkRequest },
      decodeLink,
      wait,
    )
    const names = new Map(links.map(({ index, name }) => [index, name]))
    const cache = new AddressCache()
    const decode = (message: MessageReader, reader: AttributeReader) => decodeAddress(message, reader, names, cache)
    return await dumpAll(socket, { op: 'list addresses', type: RTM_GETADDR, body: writeAddressRequest }, decode, wait)
  } finally {
    socket.close()
  }
}

/** Lists the addresses of the machine itself, without those on kube-ipvs0: they belong to services. ipvs mode puts them there. */
export async function listOwnIps(wait: Wait = {}): Promise<readonly string[]> {
  return (await listAddresses(wait)).filter((one) => one.interface !== 'kube-ipvs0').map(({ ip }) => ip)
}

export interface AddressWatchOptions {
  /** Changes come in bursts. They are reported once, this long after the first. */
  readonly debounceMs?: number
  /** How often addresses are compared where there is no netlink. */
  readonly pollMs?: number
  readonly clock?: Clock
  /** Called before `onChange` when notifications were lost. */
  readonly onLost?: (reason: string) => void
}

/** Calls `onChange` after an address was added to or removed from any interface. */
export function watchAddresses(onChange: () => void, options: AddressWatchOptions = {}): { close(): void } {
  const { debounceMs = 250, pollMs = 30_000, clock = systemClock, onLost } = options
  let timer: Timer | undefined
  const changed = () => {
    timer ??= clock.after(debounceMs, () => {
      timer = undefined
      onChange()
    })
  }
  try {
    const groups = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR]
    const lost = (reason: string) => {
      onLost?.(reason)
      changed()
    }
    const subscription = subscribe({ protocol: 'route', purpose, clock }, groups, { message: changed, lost })
    return {
      close() {
        timer?.cancel()
        subscription.close()
      },
    }
  } catch {
    const poll = pollAddresses(changed, pollMs, clock)
    return {
      close() {
        timer?.cancel()
        poll.close()
      },
    }
  }
}

/** Compares the addresses with those of `pollMs` ago, again and again. */
export function pollAddresses(
  changed: () => void,
  pollMs: number,
  clock: Clock,
  list: () => readonly unknown[] = nodeAddresses,
): { close(): void } {
  const snapshot = () => JSON.stringify(list())
  let before = snapshot()
  const compare = () => {
    const now = snapshot()
    if (now !== before) changed()
    before = now
    next = clock.after(pollMs, compare)
  }
  let next = clock.after(pollMs, compare)
  return { close: () => next.cancel() }
}

/** Lists the addresses that Node reports. Node reports no scope, so all but loopback and link-local addresses count as global. */
export function nodeAddresses(): readonly InterfaceAddress[] {
  return Object.entries(networkInterfaces()).flatMap(([name, addresses = []]) =>
    addresses.flatMap(({ address, family, internal, cidr, scopeid }): InterfaceAddress[] => {
      const ip = canonicalIp(address)
      if (ip === undefined) return []
      const outside: Scope = scopeid ? 'link' : 'global'
      const bits = Number(cidr?.split('/')[1] ?? (family === 'IPv4' ? 32 : 128))
      return [{ interface: name, ip, family: family === 'IPv4' ? 4 : 6, bits, scope: internal ? 'host' : outside }]
    }),
  )
}

/** Repeats a dump that a change interrupted. The last attempt counts in any case, because the change is reported to watchers anyway. */
async function dumpAll<T>(
  socket: NetlinkSocket,
  request: NetlinkRequest,
  decode: (message: MessageReader, reader: AttributeReader) => T | undefined,
  wait: Wait,
): Promise<T[]> {
  const reader = new AttributeReader()
  for (let attempt = 1; ; attempt++) {
    const found: T[] = []
    const visit = (message: MessageReader) => {
      const one = decode(message, reader)
      if (reader.error !== undefined) throw malformed(purpose, request.op, reader.error)
      if (one !== undefined) found.push(one)
    }
    const { interrupted } = await socket.dump(request, visit, wait)
    if (!interrupted || attempt === maxAttempts) return found
  }
}

function writeLinkRequest(writer: MessageWriter): void {
  writer.header(new Uint8Array(linkHeader))
  writer.hostU32(IFLA.EXT_MASK, RTEXT_FILTER_SKIP_STATS)
}

function writeAddressRequest(writer: MessageWriter): void {
  writer.header(new Uint8Array(addressHeader))
}

/** Undefined if the message is not a link, or if `reader.error` is set. */
export function decodeLink(message: MessageReader, reader: AttributeReader) {
  if (message.type !== RTM_NEWLINK) return undefined
  let name = ''
  message.attributes(linkHeader, reader)
  while (reader.next()) if (reader.type === IFLA.IFNAME) name = reader.text()
  if (reader.error !== undefined) return undefined
  return { index: hostU32(message.bytes, message.start + 4), name }
}

/** Undefined if the message is not an address, or if `reader.error` is set. `names` are those of the interfaces by index. */
export function decodeAddress(
  message: MessageReader,
  reader: AttributeReader,
  names: ReadonlyMap<number, string>,
  cache: AddressCache,
): InterfaceAddress | undefined {
  if (message.type !== RTM_NEWADDR) return undefined
  message.attributes(addressHeader, reader)
  let ip = ''
  while (reader.next()) {
    // On a point-to-point link IFA_ADDRESS is the address of the other end, and IFA_LOCAL is ours. Elsewhere IPv6 has no IFA_LOCAL.
    const isOwn = reader.type === IFA.LOCAL || (reader.type === IFA.ADDRESS && ip === '')
    if (!isOwn) continue
    if (reader.length === 4) ip = cache.ipv4(reader.bytes, reader.start)
    else if (reader.length === 16) ip = cache.ipv6(reader.bytes, reader.start)
    else reader.fail(`an address of ${reader.length} bytes`)
  }
  if (reader.error !== undefined || ip === '') return undefined
  const { bytes, start } = message
  const index = hostU32(bytes, start + 4)
  return {
    interface: names.get(index) ?? `if${index}`,
    ip,
    family: ip.includes(':') ? 6 : 4,
    bits: bytes[start + 1] as number,
    scope: scopes[bytes[start + 3] as number] ?? 'global',
  }
}
