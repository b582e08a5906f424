// Chooses the address on which listeners are opened, and lists the addresses of this machine.

import { networkInterfaces } from 'node:os'
import { canonicalIp, type Family, familyOf, isLinkLocal6, isLoopback, isUnspecified } from '../../lib/ip.ts'

export interface ListenAddressOptions {
  readonly family: Family
  /** The configured address; 0.0.0.0 or :: if there is none. */
  readonly bindAddress: string
  readonly nodeIp: string
}

/** The configured address, else the node's address if this machine has it, else the first address of this machine. */
export function chooseListenAddress({ family, bindAddress, nodeIp }: ListenAddressOptions): string | undefined {
  if (!isUnspecified(bindAddress) && familyOf(bindAddress) === family) return bindAddress
  const own = listOwnAddresses().filter((ip) => familyOf(ip) === family && !isLoopback(ip) && !isLinkLocal6(ip))
  return own.includes(nodeIp) ? nodeIp : own[0]
}

/** The addresses are in the order of the interfaces. */
export function listOwnAddresses(): readonly string[] {
  const addresses = Object.values(networkInterfaces()).flatMap((list) => list ?? [])
  return addresses.flatMap(({ address }) => canonicalIp(address) ?? [])
}

export const anyAddress = (family: Family): string => (family === 4 ? '0.0.0.0' : '::')
