// Compiles our statements to the kernel's expressions, with the registers that nft uses, so that nft prints the rules as they are meant. Pure.

import { type Family, parseCidr } from '../../../lib/ip.ts'
import { hashSeed } from '../../../model/consistent-hash.ts'
import { protocolNumbers } from '../../../sys/ip-numbers.ts'
import { addressBytes } from '../../../sys/netlink/address-codec.ts'
import { littleEndian } from '../../../sys/netlink/message.ts'
import type { Expression } from '../../../sys/netlink/nft/expressions.ts'
import type { KeyField, Match, Statement } from '../entries.ts'

// Bits of the connection tracking state and status, and the type of an address of this machine.
const NF_CT_STATE_NEW = 8
const IPS_DST_NAT = 0x20
const RTN_LOCAL = 2
const NF_NAT_RANGE_PROTO_SPECIFIED = 2
const ICMP_PORT_UNREACH = 3
const ICMPV6_PORT_UNREACH = 4

/** `anonymousMap` is the id, within its batch, of the map in which a `random-verdict` looks up the chain. */
export function compile(statement: Statement, family: Family, anonymousMap: number): readonly Expression[] {
  switch (statement.kind) {
    case 'verdict-map':
      return [...loadKey(family, statement.fields), { expression: 'lookup', set: statement.set, sreg: 1, dreg: 0 }]
    case 'random-verdict':
      return [
        { expression: statement.turn ? 'numgen inc' : 'numgen random', dreg: 1, modulus: statement.targets.length },
        { expression: 'lookup', set: anonymousMapName, sreg: 1, dreg: 0, setId: anonymousMap },
      ]
    case 'remember':
      return [
        loadAddress(family, 'saddr', 1),
        { expression: 'update set', set: statement.set, keyReg: 1, timeoutMs: statement.timeoutSeconds * 1000 },
      ]
    case 'dnat-map':
      return dnatByMap(family, statement)
    case 'dnat':
      return dnatTo(family, statement)
    case 'count':
      return [{ expression: 'counter', packets: 0 }]
    case 'mark-or':
      return setMark(hostBytes(~statement.bits), hostBytes(statement.bits))
    case 'mark-clear':
      return setMark(hostBytes(0xffffffff), hostBytes(statement.bits))
    case 'masquerade':
      // Without full randomness, clients that use the same source port collide on one endpoint.
      return [{ expression: 'masquerade', fullyRandom: true }]
    case 'reject':
      return [{ expression: 'reject', code: family === 4 ? ICMP_PORT_UNREACH : ICMPV6_PORT_UNREACH }]
    case 'drop':
      return [{ expression: 'verdict', verdict: 'drop' }]
    case 'jump':
    case 'goto':
      return [{ expression: 'verdict', verdict: statement.kind, chain: statement.chain }]
    default:
      return compileMatch(statement, family)
  }
}

function compileMatch(match: Match, family: Family): readonly Expression[] {
  switch (match.kind) {
    case 'ct-new':
      return matchBits({ expression: 'ct', key: 'state', dreg: 1 }, NF_CT_STATE_NEW)
    case 'ct-dnat':
      return matchBits({ expression: 'ct', key: 'status', dreg: 1 }, IPS_DST_NAT)
    case 'match-mark':
      return matchBits({ expression: 'meta', key: 'mark', dreg: 1 }, match.bits)
    case 'match-address':
      return matchAddress(family, match)
    case 'match-interface':
      return [
        { expression: 'meta', key: 'iifname', dreg: 1 },
        compare(interfaceBytes(match.name, match.prefix), match.not),
      ]
    case 'address-type-local':
      return [{ expression: 'fib type', of: match.field, dreg: 1 }, compare(hostBytes(RTN_LOCAL), match.not)]
    case 'in-set': {
      const inverted = match.not ? { inverted: true } : {}
      return [...loadKey(family, match.fields), { expression: 'lookup', set: match.set, sreg: 1, ...inverted }]
    }
  }
}

/** The kernel replaces %d by a number. */
export const anonymousMapName = '__map%d'

/** Registers overlap: those of 16 bytes are 1 to 4, those of 4 bytes begin at 8. nft uses a 16-byte register where a field starts one. */
const register = (word: number): number => (word % 4 === 0 ? 1 + word / 4 : 8 + word)

const addressWords = (family: Family): number => (family === 4 ? 1 : 4)

export function hostBytes(value: number): Uint8Array {
  const bytes = Uint8Array.of(value, value >>> 8, value >>> 16, value >>> 24)
  return littleEndian ? bytes : bytes.reverse()
}

function loadAddress(family: Family, field: 'saddr' | 'daddr', dreg: number): Expression<'payload'> {
  const offset = family === 4 ? { saddr: 12, daddr: 16 }[field] : { saddr: 8, daddr: 24 }[field]
  return { expression: 'payload', dreg, base: 'network', offset, length: addressWords(family) * 4 }
}

/** Loads the fields side by side, each aligned to 4 bytes. */
function loadKey(family: Family, fields: readonly KeyField[]): readonly Expression[] {
  let word = 0
  return fields.map((field): Expression => {
    const dreg = register(word)
    word += field === 'saddr' || field === 'daddr' ? addressWords(family) : 1
    if (field === 'l4proto') return { expression: 'meta', key: 'l4proto', dreg }
    if (field === 'dport') return { expression: 'payload', dreg, base: 'transport', offset: 2, length: 2 }
    return loadAddress(family, field, dreg)
  })
}

function dnatByMap(family: Family, statement: Statement & { kind: 'dnat-map' }): readonly Expression[] {
  const { fields, set } = statement
  const words = fields.length - 1 + (fields.includes('daddr') ? addressWords(family) : 1)
  return [
    ...loadKey(family, fields),
    ...chooseSlot(family, statement, register(words)),
    { expression: 'lookup', set, sreg: 1, dreg: 1 },
    { expression: 'dnat', family, addressReg: 1, portReg: register(addressWords(family)) },
  ]
}

/** The source address is hashed in a register beyond the key, which has at most seven words. */
const hashedReg = 3

function chooseSlot(
  family: Family,
  { choice, count, offset }: Statement & { kind: 'dnat-map' },
  dreg: number,
): readonly Expression[] {
  const range = { dreg, modulus: count, ...(offset === 0 ? {} : { offset }) }
  if (choice !== 'hash') return [{ expression: choice === 'turn' ? 'numgen inc' : 'numgen random', ...range }]
  const length = addressWords(family) * 4
  return [
    loadAddress(family, 'saddr', hashedReg),
    { expression: 'jhash', sreg: hashedReg, length, seed: hashSeed, ...range },
  ]
}

function dnatTo(family: Family, { protocol, ip, port }: Statement & { kind: 'dnat' }): readonly Expression[] {
  return [
    { expression: 'meta', key: 'l4proto', dreg: 1 },
    compare(Uint8Array.of(protocolNumbers[protocol])),
    { expression: 'immediate', dreg: 1, data: addressBytes(ip) },
    { expression: 'immediate', dreg: 2, data: Uint8Array.of(port >> 8, port) },
    { expression: 'dnat', family, addressReg: 1, portReg: 2, flags: NF_NAT_RANGE_PROTO_SPECIFIED },
  ]
}

const compare = (data: Uint8Array, not = false): Expression => ({
  expression: 'cmp',
  sreg: 1,
  op: not ? 'ne' : 'eq',
  data,
})

const maskRegister = (mask: Uint8Array, xor: Uint8Array): Expression => ({
  expression: 'bitwise',
  sreg: 1,
  dreg: 1,
  mask,
  xor,
})

/** Matches if any of the bits is set. */
const matchBits = (load: Expression, bits: number): readonly Expression[] => [
  load,
  maskRegister(hostBytes(bits), hostBytes(0)),
  compare(hostBytes(0), true),
]

const setMark = (kept: Uint8Array, changed: Uint8Array): readonly Expression[] => [
  { expression: 'meta', key: 'mark', dreg: 1 },
  maskRegister(kept, changed),
  { expression: 'meta set', key: 'mark', sreg: 1 },
]

/** Compares whole bytes if the prefix ends on a byte, and masks the address otherwise: nft recognises a prefix in both. */
function matchAddress(family: Family, match: Match & { kind: 'match-address' }): readonly Expression[] {
  const cidr = parseCidr(match.cidr)
  if (cidr === undefined) throw new TypeError(`${match.cidr} is not a valid CIDR`)
  const bytes = addressBytes(cidr.ip)
  const load = loadAddress(family, match.field, 1)
  if (cidr.bits % 8 === 0 && cidr.bits > 0) {
    const length = cidr.bits / 8
    return [{ ...load, length }, compare(bytes.subarray(0, length), match.not)]
  }
  const mask = bytes.map((_, i) => (0xff00 >> Math.min(8, Math.max(0, cidr.bits - 8 * i))) & 0xff)
  return [load, maskRegister(mask, new Uint8Array(bytes.length)), compare(bytes, match.not)]
}

/** The comparison of a whole name includes its padding; that of a prefix does not. */
function interfaceBytes(name: string, prefix: boolean): Uint8Array {
  const text = Buffer.from(name).subarray(0, 15)
  return prefix ? text : Buffer.concat([text, Buffer.alloc(16 - text.length)])
}
