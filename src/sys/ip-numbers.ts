// The numbers that Linux gives to address families and IP protocols, in system calls and in netlink messages. Pure.

import type { Family } from '../lib/ip.ts'

export const AF_INET = 2
export const AF_INET6 = 10

export const familyNumber = (family: Family): number => (family === 4 ? AF_INET : AF_INET6)

/** Undefined for every family but IPv4 and IPv6. nf_tables also has inet, bridge and netdev. */
export function familyOfNumber(number: number): Family | undefined {
  if (number === AF_INET) return 4
  return number === AF_INET6 ? 6 : undefined
}

export const protocolNumbers = { tcp: 6, udp: 17, sctp: 132 } as const

export type IpProtocol = keyof typeof protocolNumbers

// Object.entries returns strings; protocolNumbers has no other keys than its type says.
const protocolNames: ReadonlyMap<number, IpProtocol> = new Map(
  Object.entries(protocolNumbers).map(([name, number]) => [number, name as IpProtocol]),
)

/** Undefined for every protocol that Services do not have. */
export const protocolOfNumber = (number: number): IpProtocol | undefined => protocolNames.get(number)
