// The expressions of nf_tables' virtual machine that a service proxy needs, and how they are written. Pure.
//
// Register 0 is the verdict. Registers 1 to 4 have 16 bytes each. Registers 8 to 23 have 4 bytes each and share their memory with 1 to 4:
// register 1 is 8 to 11. Contents are raw: packet fields are in network order; marks, states and numbers made by the kernel are in host
// order.

import type { Family } from '../../../lib/ip.ts'
import { familyNumber } from '../../ip-numbers.ts'
import type { AttributeReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import {
  NFTA_BITWISE,
  NFTA_CMP,
  NFTA_COUNTER,
  NFTA_CT,
  NFTA_DATA,
  NFTA_DYNSET,
  NFTA_EXPR,
  NFTA_FIB,
  NFTA_HASH,
  NFTA_IMMEDIATE,
  NFTA_LIMIT,
  NFTA_LIST,
  NFTA_LOOKUP,
  NFTA_MASQ,
  NFTA_META,
  NFTA_NAT,
  NFTA_NG,
  NFTA_PAYLOAD,
  NFTA_REJECT,
  NFTA_VERDICT,
} from './attributes.ts'

export type Verdict =
  | { readonly verdict: 'accept' | 'drop' | 'return' }
  | { readonly verdict: 'jump' | 'goto'; readonly chain: string }

/** NFT_PAYLOAD_*_HEADER. */
export const payloadBases = { network: 1, transport: 2 } as const
/** NFT_META_*. */
export const metaKeys = { mark: 3, iifname: 6, nftrace: 12, l4proto: 16 } as const
/** NFT_CT_*. */
export const ctKeys = { state: 0, status: 2 } as const
/** NFT_CMP_*. */
export const comparisons = { eq: 0, ne: 1 } as const
/** NFTA_FIB_F_*: the address whose type is looked up. */
export const fibFlags = { saddr: 1, daddr: 2 } as const

const NFT_FIB_RESULT_ADDRTYPE = 3
const NFT_LOOKUP_F_INV = 1
const NFT_REG_VERDICT = 0
const NFT_NG_INCREMENTAL = 0
const NFT_NG_RANDOM = 1
const NFT_HASH_JENKINS = 0
const NFT_NAT_DNAT = 1
const NFT_DYNSET_OP_UPDATE = 1
const NFT_DYNSET_OP_DELETE = 2
const NFT_REJECT_ICMP_UNREACH = 0
const NFT_REJECT_TCP_RST = 1
const NF_NAT_RANGE_PROTO_RANDOM_FULLY = 0x10

/** The fields of each expression, by our name for it. */
export interface ExpressionFields {
  readonly payload: {
    readonly dreg: number
    readonly base: keyof typeof payloadBases
    readonly offset: number
    readonly length: number
  }
  readonly meta: { readonly key: keyof typeof metaKeys; readonly dreg: number }
  readonly 'meta set': { readonly key: keyof typeof metaKeys; readonly sreg: number }
  readonly ct: { readonly key: keyof typeof ctKeys; readonly dreg: number }
  /** Loads the type of the packet's source or destination address: 2 is local. */
  readonly 'fib type': { readonly of: keyof typeof fibFlags; readonly dreg: number }
  readonly cmp: { readonly sreg: number; readonly op: keyof typeof comparisons; readonly data: Uint8Array }
  /** (sreg & mask) ^ xor; mask and xor are as long as the field. */
  readonly bitwise: {
    readonly sreg: number
    readonly dreg: number
    readonly mask: Uint8Array
    readonly xor: Uint8Array
  }
  /** Without dreg: matches if the key is in the set. With dreg: loads the map's data there; register 0 takes a verdict. */
  readonly lookup: {
    readonly set: string
    readonly sreg: number
    readonly dreg?: number
    readonly setId?: number
    readonly inverted?: boolean
  }
  readonly immediate: { readonly dreg: number; readonly data: Uint8Array }
  readonly verdict: Verdict
  /** Loads a random number below the modulus, plus `offset`. */
  readonly 'numgen random': { readonly dreg: number; readonly modulus: number; readonly offset?: number }
  /** Loads the numbers below the modulus one after the other, plus `offset`. The rule counts, for all its packets. */
  readonly 'numgen inc': { readonly dreg: number; readonly modulus: number; readonly offset?: number }
  /** Loads a number below the modulus that follows from the bytes at `sreg`, plus `offset`. */
  readonly jhash: {
    readonly sreg: number
    readonly dreg: number
    readonly length: number
    readonly modulus: number
    readonly seed: number
    readonly offset?: number
  }
  readonly dnat: {
    readonly family: Family
    readonly addressReg: number
    readonly portReg: number
    /** NF_NAT_RANGE_* bits; the kernel adds those it needs. */
    readonly flags?: number
  }
  /** Counts packets, from `packets` on. */
  readonly counter: { readonly packets: number }
  readonly masquerade: { readonly fullyRandom: boolean }
  /** Matches so many packets per second, and `burst` at once. */
  readonly limit: { readonly perSecond: number; readonly burst: number }
  readonly reject: { readonly code: number }
  /** Answers a TCP segment with a reset. */
  readonly 'reject tcp': Readonly<Record<never, never>>
  /** Removes the key from a dynamic set. */
  readonly 'delete from set': { readonly set: string; readonly keyReg: number }
  /** Adds the key to a dynamic set, or restarts its timeout. */
  readonly 'update set': {
    readonly set: string
    readonly keyReg: number
    readonly setId?: number
    /** Instead of the timeout of the set. */
    readonly timeoutMs?: number
  }
}

type ExpressionName = keyof ExpressionFields

export type Expression<Name extends ExpressionName = ExpressionName> = {
  [N in Name]: { readonly expression: N } & ExpressionFields[N]
}[Name]

interface ExpressionWriter<Name extends ExpressionName> {
  /** The kernel's name of the expression. */
  readonly name: string
  write(writer: MessageWriter, expression: Expression<Name>): void
}

/** Every expression writes its attributes in nft's order, so that tests can compare the bytes with those of nft. */
const writers: { readonly [Name in ExpressionName]: ExpressionWriter<Name> } = {
  payload: {
    name: 'payload',
    write(writer, { dreg, base, offset, length }) {
      writer.u32(NFTA_PAYLOAD.DREG, dreg)
      writer.u32(NFTA_PAYLOAD.BASE, payloadBases[base])
      writer.u32(NFTA_PAYLOAD.OFFSET, offset)
      writer.u32(NFTA_PAYLOAD.LEN, length)
    },
  },
  meta: {
    name: 'meta',
    write(writer, { key, dreg }) {
      writer.u32(NFTA_META.KEY, metaKeys[key])
      writer.u32(NFTA_META.DREG, dreg)
    },
  },
  'meta set': {
    name: 'meta',
    write(writer, { key, sreg }) {
      writer.u32(NFTA_META.KEY, metaKeys[key])
      writer.u32(NFTA_META.SREG, sreg)
    },
  },
  ct: {
    name: 'ct',
    write(writer, { key, dreg }) {
      writer.u32(NFTA_CT.KEY, ctKeys[key])
      writer.u32(NFTA_CT.DREG, dreg)
    },
  },
  'fib type': {
    name: 'fib',
    write(writer, { of, dreg }) {
      writer.u32(NFTA_FIB.FLAGS, fibFlags[of])
      writer.u32(NFTA_FIB.RESULT, NFT_FIB_RESULT_ADDRTYPE)
      writer.u32(NFTA_FIB.DREG, dreg)
    },
  },
  cmp: {
    name: 'cmp',
    write(writer, { sreg, op, data }) {
      writer.u32(NFTA_CMP.SREG, sreg)
      writer.u32(NFTA_CMP.OP, comparisons[op])
      writeValue(writer, NFTA_CMP.DATA, data)
    },
  },
  bitwise: {
    name: 'bitwise',
    write(writer, { sreg, dreg, mask, xor }) {
      writer.u32(NFTA_BITWISE.SREG, sreg)
      writer.u32(NFTA_BITWISE.DREG, dreg)
      writer.u32(NFTA_BITWISE.LEN, mask.length)
      writeValue(writer, NFTA_BITWISE.MASK, mask)
      writeValue(writer, NFTA_BITWISE.XOR, xor)
    },
  },
  lookup: {
    name: 'lookup',
    write(writer, { set, sreg, dreg, setId, inverted }) {
      writer.u32(NFTA_LOOKUP.SREG, sreg)
      if (dreg !== undefined) writer.u32(NFTA_LOOKUP.DREG, dreg)
      writer.text(NFTA_LOOKUP.SET, set)
      if (setId !== undefined) writer.u32(NFTA_LOOKUP.SET_ID, setId)
      if (inverted === true) writer.u32(NFTA_LOOKUP.FLAGS, NFT_LOOKUP_F_INV)
    },
  },
  immediate: {
    name: 'immediate',
    write(writer, { dreg, data }) {
      writer.u32(NFTA_IMMEDIATE.DREG, dreg)
      writeValue(writer, NFTA_IMMEDIATE.DATA, data)
    },
  },
  verdict: {
    name: 'immediate',
    write(writer, verdict) {
      writer.u32(NFTA_IMMEDIATE.DREG, NFT_REG_VERDICT)
      writeVerdict(writer, NFTA_IMMEDIATE.DATA, verdict)
    },
  },
  'numgen random': {
    name: 'numgen',
    write: (writer, fields) => writeGenerator(writer, fields, NFT_NG_RANDOM),
  },
  'numgen inc': {
    name: 'numgen',
    write: (writer, fields) => writeGenerator(writer, fields, NFT_NG_INCREMENTAL),
  },
  jhash: {
    name: 'hash',
    write(writer, { sreg, dreg, length, modulus, seed, offset = 0 }) {
      writer.u32(NFTA_HASH.SREG, sreg)
      writer.u32(NFTA_HASH.DREG, dreg)
      writer.u32(NFTA_HASH.LEN, length)
      writer.u32(NFTA_HASH.MODULUS, modulus)
      writer.u32(NFTA_HASH.SEED, seed)
      if (offset !== 0) writer.u32(NFTA_HASH.OFFSET, offset)
      writer.u32(NFTA_HASH.TYPE, NFT_HASH_JENKINS)
    },
  },
  dnat: {
    name: 'nat',
    write(writer, { family, addressReg, portReg, flags }) {
      writer.u32(NFTA_NAT.TYPE, NFT_NAT_DNAT)
      writer.u32(NFTA_NAT.FAMILY, familyNumber(family))
      writer.u32(NFTA_NAT.REG_ADDR_MIN, addressReg)
      writer.u32(NFTA_NAT.REG_PROTO_MIN, portReg)
      if (flags !== undefined) writer.u32(NFTA_NAT.FLAGS, flags)
    },
  },
  counter: {
    name: 'counter',
    write(writer, { packets }) {
      writer.u64(NFTA_COUNTER.BYTES, 0)
      writer.u64(NFTA_COUNTER.PACKETS, packets)
    },
  },
  masquerade: {
    name: 'masq',
    write(writer, { fullyRandom }) {
      if (fullyRandom) writer.u32(NFTA_MASQ.FLAGS, NF_NAT_RANGE_PROTO_RANDOM_FULLY)
    },
  },
  limit: {
    name: 'limit',
    write(writer, { perSecond, burst }) {
      writer.u64(NFTA_LIMIT.RATE, perSecond)
      writer.u64(NFTA_LIMIT.UNIT, 1)
      writer.u32(NFTA_LIMIT.BURST, burst)
    },
  },
  reject: {
    name: 'reject',
    write(writer, { code }) {
      writer.u32(NFTA_REJECT.TYPE, NFT_REJECT_ICMP_UNREACH)
      writer.u8(NFTA_REJECT.ICMP_CODE, code)
    },
  },
  'reject tcp': {
    name: 'reject',
    write(writer) {
      writer.u32(NFTA_REJECT.TYPE, NFT_REJECT_TCP_RST)
    },
  },
  'delete from set': {
    name: 'dynset',
    write(writer, { set, keyReg }) {
      writer.u32(NFTA_DYNSET.SREG_KEY, keyReg)
      writer.u32(NFTA_DYNSET.OP, NFT_DYNSET_OP_DELETE)
      writer.text(NFTA_DYNSET.SET_NAME, set)
    },
  },
  'update set': {
    name: 'dynset',
    write(writer, { set, keyReg, setId, timeoutMs }) {
      writer.u32(NFTA_DYNSET.SREG_KEY, keyReg)
      writer.u32(NFTA_DYNSET.OP, NFT_DYNSET_OP_UPDATE)
      if (timeoutMs !== undefined) writer.u64(NFTA_DYNSET.TIMEOUT, timeoutMs)
      writer.text(NFTA_DYNSET.SET_NAME, set)
      if (setId !== undefined) writer.u32(NFTA_DYNSET.SET_ID, setId)
    },
  },
}

function writeGenerator(
  writer: MessageWriter,
  { dreg, modulus, offset = 0 }: Pick<Expression<'numgen random'>, 'dreg' | 'modulus' | 'offset'>,
  type: number,
): void {
  writer.u32(NFTA_NG.DREG, dreg)
  writer.u32(NFTA_NG.MODULUS, modulus)
  writer.u32(NFTA_NG.TYPE, type)
  writer.u32(NFTA_NG.OFFSET, offset)
}

export function writeExpression<Name extends ExpressionName>(
  writer: MessageWriter,
  expression: Expression<Name>,
): void {
  const { name, write } = writers[expression.expression]
  const element = writer.open(NFTA_LIST.ELEM)
  writer.text(NFTA_EXPR.NAME, name)
  const data = writer.open(NFTA_EXPR.DATA)
  write(writer, expression)
  writer.close(data)
  writer.close(element)
}

// ---- Counters of elements and named counters. ----

/** Writes a counter expression as an attribute of a set or an element. */
export function writeCounter(writer: MessageWriter, type: number, packets: number): void {
  const at = writer.open(type)
  writer.text(NFTA_EXPR.NAME, 'counter')
  writeCount(writer, NFTA_EXPR.DATA, packets)
  writer.close(at)
}

export function writeCount(writer: MessageWriter, type: number, packets: number): void {
  const at = writer.open(type)
  writer.u64(NFTA_COUNTER.BYTES, 0)
  writer.u64(NFTA_COUNTER.PACKETS, packets)
  writer.close(at)
}

/** Reads the packets of the counter expression that the reader is at; undefined if it is another expression. */
export function readCounter(reader: AttributeReader): number | undefined {
  let isCounter = false
  let packets: number | undefined
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_EXPR.NAME) isCounter = reader.is('counter')
    else if (reader.type === NFTA_EXPR.DATA && isCounter) packets = readCount(reader)
  }
  reader.leave()
  return packets
}

export function readCount(reader: AttributeReader): number {
  let packets = 0
  reader.enter()
  while (reader.next()) if (reader.type === NFTA_COUNTER.PACKETS) packets = reader.u64()
  reader.leave()
  return packets
}

// ---- Data: raw bytes or a verdict. ----

export const verdictCodes = { drop: 0, accept: 1, jump: -3, goto: -4, return: -5 } as const

/** Writes a data attribute that holds raw bytes. */
function writeValue(writer: MessageWriter, type: number, value: Uint8Array): void {
  const at = writer.open(type)
  writer.raw(NFTA_DATA.VALUE, value)
  writer.close(at)
}

/** Writes a data attribute that holds a verdict. */
export function writeVerdict(writer: MessageWriter, type: number, verdict: Verdict): void {
  const data = writer.open(type)
  const at = writer.open(NFTA_DATA.VERDICT)
  writer.u32(NFTA_VERDICT.CODE, verdictCodes[verdict.verdict])
  if ('chain' in verdict) writer.text(NFTA_VERDICT.CHAIN, verdict.chain)
  writer.close(at)
  writer.close(data)
}
