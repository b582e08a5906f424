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
  NFTA_CT,
  NFTA_DATA,
  NFTA_DYNSET,
  NFTA_EXPR,
  NFTA_FIB,
  NFTA_IMMEDIATE,
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
export const metaKeys = { mark: 3, iifname: 6, l4proto: 16 } as const
/** NFT_CT_*. */
export const ctKeys = { state: 0, status: 2 } as const
/** NFT_CMP_*. */
export const comparisons = { eq: 0, ne: 1 } as const
/** NFTA_FIB_F_*: the address whose type is looked up. */
export const fibFlags = { saddr: 1, daddr: 2 } as const

const NFT_FIB_RESULT_ADDRTYPE = 3
const NFT_LOOKUP_F_INV = 1
const NFT_REG_VERDICT = 0
const NFT_NG_RANDOM = 1
const NFT_NAT_DNAT = 1
const NFT_DYNSET_OP_UPDATE = 1
const NFT_REJECT_ICMP_UNREACH = 0
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
  readonly dnat: {
    readonly family: Family
    readonly addressReg: number
    readonly portReg: number
    /** NF_NAT_RANGE_* bits; the kernel adds those it needs. */
    readonly flags?: number
  }
  readonly masquerade: { readonly fullyRandom: boolean }
  readonly reject: { readonly code: number }
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
    write(writer, { dreg, modulus, offset = 0 }) {
      writer.u32(NFTA_NG.DREG, dreg)
      writer.u32(NFTA_NG.MODULUS, modulus)
      writer.u32(NFTA_NG.TYPE, NFT_NG_RANDOM)
      writer.u32(NFTA_NG.OFFSET, offset)
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
  masquerade: {
    name: 'masq',
    write(writer, { fullyRandom }) {
      if (fullyRandom) writer.u32(NFTA_MASQ.FLAGS, NF_NAT_RANGE_PROTO_RANDOM_FULLY)
    },
  },
  reject: {
    name: 'reject',
    write(writer, { code }) {
      writer.u32(NFTA_REJECT.TYPE, NFT_REJECT_ICMP_UNREACH)
      writer.u8(NFTA_REJECT.ICMP_CODE, code)
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

// ---- Data: raw bytes or a verdict. ----

const verdictCodes = { drop: 0, accept: 1, jump: -3, goto: -4, return: -5 } as const

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

/** Reads the data attribute that the reader is at: bytes, a verdict, or undefined if it is neither. */
export function readData(reader: AttributeReader): Uint8Array | Verdict | undefined {
  let found: Uint8Array | Verdict | undefined
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_DATA.VALUE) found = reader.raw()
    else if (reader.type === NFTA_DATA.VERDICT) found = readVerdict(reader)
  }
  reader.leave()
  return found
}

function readVerdict(reader: AttributeReader): Verdict | undefined {
  let code = Number.NaN
  let chain = ''
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_VERDICT.CODE) code = reader.i32()
    else if (reader.type === NFTA_VERDICT.CHAIN) chain = reader.text()
  }
  reader.leave()
  switch (code) {
    case verdictCodes.jump:
      return { verdict: 'jump', chain }
    case verdictCodes.goto:
      return { verdict: 'goto', chain }
    case verdictCodes.accept:
      return { verdict: 'accept' }
    case verdictCodes.drop:
      return { verdict: 'drop' }
    case verdictCodes.return:
      return { verdict: 'return' }
    default:
      return undefined
  }
}
