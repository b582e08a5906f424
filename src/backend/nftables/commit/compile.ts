// Our statements as the kernel's expressions, with the registers that nft uses, so that it prints them as they were meant. Pure.

import { type Cidr, type Family, parseCidr, parseIp } from '../../../lib/ip.ts'
import { littleEndian } from '../../../sys/netlink/message.ts'
import type { Expression } from '../../../sys/netlink/nft/expressions.ts'
import type { KeyField, Statement } from '../entries.ts'

export const protocolNumbers = { tcp: 6, udp: 17, sctp: 132 } as const

/** `anonymousMap` is the number, within its batch, of the map that a `random-verdict` looks into. */
export function compile(statement: Statement, family: Family, anonymousMap: number): readonly Expression[] {
  switch (statement.kind) {
    case 'ct-new':
      return anyBit({ expression: 'ct', key: 'state', dreg: 1 }, 8)
    case 'ct-dnat':
      return anyBit({ expression: 'ct', key: 'status', dreg: 1 }, 0x20)
    case 'match-address':
      return matchAddress(family, statement.field, parseCidr(statement.cidr) as Cidr, statement.not ?? false)
    case 'match-interface':
      return [
        { expression: 'meta', key: 'iifname', dreg: 1 },
        compare(interfaceBytes(statement.name, statement.prefix), statement.not),
      ]
    case 'match-mark':
      return anyBit({ expression: 'meta', key: 'mark', dreg: 1 }, statement.bits)
    case 'address-type-local':
      return [{ expression: 'fib type', of: statement.field, dreg: 1 }, compare(hostBytes(2))]
    case 'in-set': {
      const inverted = statement.not ? { inverted: true } : {}
      return [...loadKey(family, statement.fields), { expression: 'lookup', set: statement.set, sreg: 1, ...inverted }]
    }
    case 'verdict-map':
      return [...loadKey(family, statement.fields), { expression: 'lookup', set: statement.set, sreg: 1, dreg: 0 }]
    case 'random-verdict':
      return [
        { expression: 'numgen random', dreg: 1, modulus: statement.targets.length },
        { expression: 'lookup', set: anonymousMapName, sreg: 1, dreg: 0, setId: anonymousMap },
      ]
    case 'remember':
      return [
        loadAddress(family, 'saddr', 1),
        { expression: 'update set', set: statement.set, keyReg: 1, timeoutMs: statement.timeoutSeconds * 1000 },
      ]
    case 'dnat-map':
      return dnatMap(family, statement)
    case 'dnat':
      return [
        { expression: 'meta', key: 'l4proto', dreg: 1 },
        compare(Uint8Array.of(protocolNumbers[statement.protocol])),
        { expression: 'immediate', dreg: 1, data: parseIp(statement.ip) as Uint8Array },
        { expression: 'immediate', dreg: 2, data: Uint8Array.of(statement.port >> 8, statement.port) },
        { expression: 'dnat', family, addressReg: 1, portReg: 2, flags: 2 },
      ]
    case 'mark-or':
      return setMark(hostBytes(~statement.bits), hostBytes(statement.bits))
    case 'mark-clear':
      return setMark(hostBytes(0xffffffff), hostBytes(statement.bits))
    case 'masquerade':
      // Without it, clients that use the same source port collide on one endpoint.
      return [{ expression: 'masquerade', fullyRandom: true }]
    case 'reject':
      return [{ expression: 'reject', type: 'icmp', code: family === 4 ? 3 : 4 }]
    case 'drop':
      return [{ expression: 'verdict', verdict: 'drop' }]
    case 'jump':
    case 'goto':
      return [{ expression: 'verdict', verdict: statement.kind, chain: statement.chain }]
  }
}

/** The kernel completes the number. */
export const anonymousMapName = '__map%d'

/** Registers overlap: 16-byte ones are numbered from 1, 4-byte ones from 8. nft takes the larger where a field starts one. */
const register = (word: number): number => (word % 4 === 0 ? 1 + word / 4 : 8 + word)

const addressWords = (family: Family): number => (family === 4 ? 1 : 4)

export function hostBytes(value: number): Uint8Array {
  const bytes = Uint8Array.of(value, value >>> 8, value >>> 16, value >>> 24)
  return littleEndian ? bytes : bytes.reverse()
}

function loadAddress(family: Family, field: 'saddr' | 'daddr', dreg: number): Expression {
  const offset = family === 4 ? { saddr: 12, daddr: 16 }[field] : { saddr: 8, daddr: 24 }[field]
  return { expression: 'payload', dreg, base: 'network', offset, length: addressWords(family) * 4 }
}

/** Fields side by side, each on a 4-byte border. */
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

function dnatMap(family: Family, statement: Statement & { kind: 'dnat-map' }): readonly Expression[] {
  const { fields, count, offset, set } = statement
  const words = fields.length - 1 + (fields.includes('daddr') ? addressWords(family) : 1)
  return [
    ...loadKey(family, fields),
    { expression: 'numgen random', dreg: register(words), modulus: count, ...(offset === 0 ? {} : { offset }) },
    { expression: 'lookup', set, sreg: 1, dreg: 1 },
    { expression: 'dnat', family, addressReg: 1, portReg: register(addressWords(family)) },
  ]
}

const compare = (data: Uint8Array, not = false): Expression => ({
  expression: 'cmp',
  sreg: 1,
  op: not ? 'ne' : 'eq',
  data,
})

const mask = (bits: Uint8Array, xor: Uint8Array): Expression => ({
  expression: 'bitwise',
  sreg: 1,
  dreg: 1,
  mask: bits,
  xor,
})

const anyBit = (load: Expression, bits: number): readonly Expression[] => [
  load,
  mask(hostBytes(bits), hostBytes(0)),
  compare(hostBytes(0), true),
]

const setMark = (kept: Uint8Array, changed: Uint8Array): readonly Expression[] => [
  { expression: 'meta', key: 'mark', dreg: 1 },
  mask(kept, changed),
  { expression: 'meta set', key: 'mark', sreg: 1 },
]

/** Prefixes that end on a byte are compared as so many bytes, others are masked first: what nft reads back as a prefix. */
function matchAddress(family: Family, field: 'saddr' | 'daddr', cidr: Cidr, not: boolean): readonly Expression[] {
  const bytes = parseIp(cidr.ip) as Uint8Array
  const load = loadAddress(family, field, 1) as Expression & { expression: 'payload' }
  if (cidr.bits % 8 === 0 && cidr.bits > 0) {
    const length = cidr.bits / 8
    return [{ ...load, length }, compare(bytes.subarray(0, length), not)]
  }
  const bits = bytes.map((_, i) => (0xff00 >> Math.min(8, Math.max(0, cidr.bits - 8 * i))) & 0xff)
  return [load, mask(bits, new Uint8Array(bytes.length)), compare(bytes, not)]
}

/** A whole name is compared with its padding, a prefix without. */
function interfaceBytes(name: string, prefix: boolean): Uint8Array {
  const text = Buffer.from(name).subarray(0, 15)
  return prefix ? text : Buffer.concat([text, Buffer.alloc(16 - text.length)])
}
