// The rules by which packets of connections to endpoints that are gone are answered. Pure.

import type { Family } from '../../lib/ip.ts'
import type { Expression } from '../../sys/netlink/nft/expressions.ts'
import type { Field } from '../../sys/netlink/nft/userdata.ts'

export type ResetProtocol = 'tcp' | 'udp'

const numbers = { tcp: 6, udp: 17 } as const
const ICMP_PORT_UNREACH = 3
const ICMPV6_PORT_UNREACH = 4
const SYN = 2

/** Client address, client port, service address, service port. */
export const keyFields = (family: Family): readonly Field[] =>
  family === 4 ? ['ip saddr', 'th sport', 'ip daddr', 'th dport'] : ['ip6 saddr', 'th sport', 'ip6 daddr', 'th dport']

export function resetRule(family: Family, protocol: ResetProtocol, set: string): readonly Expression[] {
  const isProtocol: readonly Expression[] = [
    { expression: 'meta', key: 'l4proto', dreg: 1 },
    { expression: 'cmp', sreg: 1, op: 'eq', data: Uint8Array.of(numbers[protocol]) },
  ]
  if (protocol === 'udp') {
    // One error for each socket: its next datagram goes to another endpoint.
    return [
      ...isProtocol,
      ...isConnection(family, set),
      { expression: 'delete from set', set, keyReg: 1 },
      { expression: 'reject', code: family === 4 ? ICMP_PORT_UNREACH : ICMPV6_PORT_UNREACH },
    ]
  }
  return [...isProtocol, ...isNoSyn, ...isConnection(family, set), { expression: 'reject tcp' }]
}

/** A new connection from the same port is not the one that ended. */
const isNoSyn: readonly Expression[] = [
  { expression: 'payload', dreg: 1, base: 'transport', offset: 13, length: 1 },
  { expression: 'bitwise', sreg: 1, dreg: 1, mask: Uint8Array.of(SYN), xor: Uint8Array.of(0) },
  { expression: 'cmp', sreg: 1, op: 'eq', data: Uint8Array.of(0) },
]

/** Loads the fields of the key side by side. A register of 16 bytes is four of 4 bytes. */
function isConnection(family: Family, set: string): readonly Expression[] {
  const [words, source, destination] = family === 4 ? [1, 12, 16] : [4, 8, 24]
  const register = (word: number) => (word % 4 === 0 ? 1 + word / 4 : 8 + word)
  const length = 4 * words
  return [
    { expression: 'payload', dreg: 1, base: 'network', offset: source, length },
    { expression: 'payload', dreg: register(words), base: 'transport', offset: 0, length: 2 },
    { expression: 'payload', dreg: register(words + 1), base: 'network', offset: destination, length },
    { expression: 'payload', dreg: register(2 * words + 1), base: 'transport', offset: 2, length: 2 },
    { expression: 'lookup', set, sreg: 1 },
  ]
}
