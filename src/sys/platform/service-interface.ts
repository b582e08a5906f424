// The interface that gets the addresses of services on Windows, and which of its addresses those are.

import { networkInterfaces } from 'node:os'
import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'

/** The environment variable that names the interface, as for kube-proxy's userspace mode on Windows. */
export const interfaceVariable = 'INTERFACE_TO_ADD_SERVICE_IP'
const defaultInterface = 'vEthernet (HNS Internal NIC)'

export const nameServiceInterface = (env: Readonly<Record<string, string | undefined>>): string =>
  env[interfaceVariable] || defaultInterface

/** One address of an interface. */
export interface PlacedAddress {
  readonly interface: string
  readonly ip: string
  readonly family: Family
  /** True if the prefix contains no other address: service addresses are added so. */
  readonly isHostAddress: boolean
}

export type ListInterfaces = typeof networkInterfaces

/** Lists all addresses in the order of the interfaces. Only interfaces that are up have any. */
export function listPlacedAddresses(list: ListInterfaces = networkInterfaces): readonly PlacedAddress[] {
  return Object.entries(list()).flatMap(([name, addresses = []]) =>
    addresses.flatMap(({ address, cidr }): PlacedAddress[] => {
      const ip = canonicalIp(address)
      if (ip === undefined) return []
      const family = familyOf(ip) === 4 ? 4 : 6
      const isHostAddress = cidr?.endsWith(family === 4 ? '/32' : '/128') === true
      return [{ interface: name, ip, family, isHostAddress }]
    }),
  )
}

/** Lists the addresses of the machine itself: host addresses of the interface `name` belong to services. */
export const listMachineAddresses = (name: string, list?: ListInterfaces): readonly PlacedAddress[] =>
  listPlacedAddresses(list).filter((one) => one.interface !== name || !one.isHostAddress)
