// The entries of the ipvs data plane: the device, sets and rules; addresses, set members and virtual servers. Pure.

import { hostPort } from '../../lib/ip.ts'
import type { SetSpec } from '../../sys/netlink/ipset.ts'
import type { Destination, VirtualServer, VirtualServerKey } from '../../sys/netlink/ipvs.ts'
import type { Held } from '../backend.ts'

export interface DeviceEntry extends Held {
  readonly kind: 'device'
}

export interface IpsetEntry extends Held {
  readonly kind: 'set'
  readonly set: SetSpec
}

/** All iptables rules of one family. No rule depends on a service. */
export interface IpvsRulesEntry extends Held {
  readonly kind: 'rules'
  readonly text: string
}

/** An address that the node answers for: on the device and in KUBE-IPVS-IPS, or in neither if another interface has it. */
export interface AddressEntry extends Held {
  readonly kind: 'address'
}

export interface MemberEntry extends Held {
  readonly kind: 'member'
}

/**
 * A virtual server with its destinations. A node port has one per address of the node, with ids of another form, because a server of an
 * exact address has precedence over it.
 */
export interface ServerEntry extends Held {
  readonly kind: 'server'
  readonly server: VirtualServer
  /** The destinations in the order of the service port. */
  readonly destinations: readonly Destination[]
  /** `ns/name:port`, for statistics. */
  readonly port: string
}

export type IpvsEntry = DeviceEntry | IpsetEntry | IpvsRulesEntry | AddressEntry | MemberEntry | ServerEntry

export const deviceName = 'kube-ipvs0'

export const deviceEntry: DeviceEntry = { id: 'device', kind: 'device', digest: 'dummy' }

export const setEntry = (set: SetSpec): IpsetEntry => ({ id: `set ${set.name}`, kind: 'set', digest: set.type, set })

export const addressEntry = (ip: string): AddressEntry => ({ id: `address ${ip}`, kind: 'address', digest: 'bound' })

export const addressOfId = (id: string): string => id.split(' ')[1] as string

export const memberEntry = (set: string, member: string): MemberEntry => ({
  id: `member ${set} ${member}`,
  kind: 'member',
  digest: '',
})

/** Splits the id of a member. */
export function splitMember(id: string): readonly [set: string, member: string] {
  const [, set, member] = id.split(' ') as [string, string, string]
  return [set, member]
}

/** Identifies a server to the kernel: `tcp 10.0.0.1:80`. */
export const serverKey = ({ protocol, ip, port }: Omit<VirtualServerKey, 'family'>): string =>
  `${protocol} ${hostPort(ip, port)}`

export const exactId = (key: string): string => `server ${key}`
export const nodePortId = (key: string): string => `node-port ${key}`

/** The key in the id of a server; undefined if the id is not a server's. */
export const keyOfId = (id: string): string | undefined => /^(?:server|node-port) (.*)$/.exec(id)?.[1]

export const destinationKey = ({ ip, port }: { readonly ip: string; readonly port: number }): string =>
  hostPort(ip, port)

/** Equal for a planned server and for the same server read from the kernel. */
export function serverDigest(server: VirtualServer, destinations: Iterable<Destination>): string {
  const list = [...destinations].map((one) => `${destinationKey(one)}=${one.weight}`).sort()
  return `${server.scheduler} ${server.flags} ${server.timeout} ${list.join(' ')}`
}

export const hasSameSettings = (a: VirtualServer, b: VirtualServer): boolean =>
  a.scheduler === b.scheduler && a.flags === b.flags && a.timeout === b.timeout
