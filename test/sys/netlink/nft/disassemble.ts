// Reads rules with their expressions from nf_tables messages, for the fake kernel and for round trips. The product never reads them.

import type { Family } from '../../../../src/lib/ip.ts'
import { familyOfNumber } from '../../../../src/sys/ip-numbers.ts'
import { AttributeReader, type MessageReader } from '../../../../src/sys/netlink/message.ts'
import {
  NFTA_BITWISE,
  NFTA_CMP,
  NFTA_CT,
  NFTA_DATA,
  NFTA_DYNSET,
  NFTA_EXPR,
  NFTA_FIB,
  NFTA_HASH,
  NFTA_IMMEDIATE,
  NFTA_LOOKUP,
  NFTA_MASQ,
  NFTA_META,
  NFTA_NAT,
  NFTA_NG,
  NFTA_PAYLOAD,
  NFTA_REJECT,
  NFTA_RULE,
} from '../../../../src/sys/netlink/nft/attributes.ts'
import {
  comparisons,
  ctKeys,
  type Expression,
  fibFlags,
  metaKeys,
  payloadBases,
  type Verdict,
} from '../../../../src/sys/netlink/nft/expressions.ts'
import { readVerdict } from '../../../../src/sys/netlink/nft/read-verdict.ts'
import { readComment, readTag } from '../../../../src/sys/netlink/nft/userdata.ts'

/** An expression that we never write. */
export interface OtherExpression {
  readonly expression: 'other'
  /** The kernel's name. */
  readonly name: string
}

export interface DisassembledRule {
  readonly family: Family
  readonly table: string
  readonly chain: string
  readonly expressions: readonly (Expression | OtherExpression)[]
  readonly comment?: string
  readonly tag?: string
}

/** Undefined if the rule belongs to another family than IPv4 and IPv6, or if `reader.error` is set. */
export function disassembleRule(message: MessageReader, reader: AttributeReader): DisassembledRule | undefined {
  const family = message.end > message.start ? familyOfNumber(message.bytes[message.start] as number) : undefined
  if (family === undefined) return undefined
  let table = ''
  let chain = ''
  let expressions: (Expression | OtherExpression)[] = []
  let userdata: Uint8Array | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_RULE.TABLE) table = reader.text()
    else if (reader.type === NFTA_RULE.CHAIN) chain = reader.text()
    else if (reader.type === NFTA_RULE.EXPRESSIONS) expressions = readExpressions(reader)
    else if (reader.type === NFTA_RULE.USERDATA) userdata = reader.raw()
  }
  if (reader.error !== undefined) return undefined
  const comment = readComment(userdata)
  const tag = readTag(userdata)
  return {
    family,
    table,
    chain,
    expressions,
    ...(comment === undefined ? {} : { comment }),
    ...(tag === undefined ? {} : { tag }),
  }
}

/** Reads the expression list that the reader is at. */
function readExpressions(reader: AttributeReader): (Expression | OtherExpression)[] {
  const found: (Expression | OtherExpression)[] = []
  reader.enter()
  while (reader.next()) {
    let name = ''
    let detail: Buffer = Buffer.alloc(0)
    reader.enter()
    while (reader.next()) {
      if (reader.type === NFTA_EXPR.NAME) name = reader.text()
      else if (reader.type === NFTA_EXPR.DATA) detail = reader.raw()
    }
    reader.leave()
    const attributes = new ExpressionAttributes(detail)
    const expression = attributes.error === undefined ? decoders[name]?.(attributes) : undefined
    found.push(expression ?? { expression: 'other', name })
  }
  reader.leave()
  return found
}

/** The attributes of one expression by number. */
class ExpressionAttributes {
  readonly #values = new Map<number, Buffer>()
  readonly error: string | undefined

  constructor(bytes: Buffer) {
    const reader = new AttributeReader().reset(bytes, 0, bytes.length)
    while (reader.next()) this.#values.set(reader.type, reader.raw())
    this.error = reader.error
  }

  has(type: number): boolean {
    return this.#values.has(type)
  }

  /** A big-endian number of any length; 0 if absent. */
  number(type: number): number {
    const value = this.#values.get(type)
    return value === undefined || value.length === 0 || value.length > 6 ? 0 : value.readUIntBE(0, value.length)
  }

  long(type: number): number {
    const value = this.#values.get(type)
    return value?.length === 8 ? Number(value.readBigUInt64BE()) : 0
  }

  text(type: number): string {
    return this.#values.get(type)?.toString().replace(/\0.*$/s, '') ?? ''
  }

  data(type: number): ReturnType<typeof readData> {
    const value = this.#values.get(type)
    if (value === undefined) return undefined
    // readData enters the attribute that the reader is at, so the value gets a header again.
    const framed = Buffer.concat([Buffer.alloc(4), value])
    const reader = new AttributeReader().reset(framed, 0, framed.length)
    reader.start = 4
    reader.end = framed.length
    return readData(reader)
  }

  bytes(type: number): Uint8Array {
    const data = this.data(type)
    return data instanceof Uint8Array ? data : new Uint8Array(0)
  }
}

type Decoder = (attributes: ExpressionAttributes) => Expression | undefined

const NFTA_BITWISE_OP = 6

const decoders: Readonly<Record<string, Decoder>> = {
  payload(a) {
    const base = nameOf(payloadBases, a.number(NFTA_PAYLOAD.BASE))
    if (base === undefined || !a.has(NFTA_PAYLOAD.DREG)) return undefined
    return {
      expression: 'payload',
      dreg: a.number(NFTA_PAYLOAD.DREG),
      base,
      offset: a.number(NFTA_PAYLOAD.OFFSET),
      length: a.number(NFTA_PAYLOAD.LEN),
    }
  },
  meta(a) {
    const key = nameOf(metaKeys, a.number(NFTA_META.KEY))
    if (key === undefined) return undefined
    return a.has(NFTA_META.SREG)
      ? { expression: 'meta set', key, sreg: a.number(NFTA_META.SREG) }
      : { expression: 'meta', key, dreg: a.number(NFTA_META.DREG) }
  },
  ct(a) {
    const key = nameOf(ctKeys, a.number(NFTA_CT.KEY))
    return key === undefined || !a.has(NFTA_CT.DREG)
      ? undefined
      : { expression: 'ct', key, dreg: a.number(NFTA_CT.DREG) }
  },
  fib(a) {
    const of = nameOf(fibFlags, a.number(NFTA_FIB.FLAGS))
    if (a.number(NFTA_FIB.RESULT) !== 3 || of === undefined) return undefined
    return { expression: 'fib type', of, dreg: a.number(NFTA_FIB.DREG) }
  },
  cmp(a) {
    const op = nameOf(comparisons, a.number(NFTA_CMP.OP))
    if (op === undefined) return undefined
    return { expression: 'cmp', sreg: a.number(NFTA_CMP.SREG), op, data: a.bytes(NFTA_CMP.DATA) }
  },
  bitwise(a) {
    if (a.number(NFTA_BITWISE_OP) !== 0) return undefined
    const [sreg, dreg] = [a.number(NFTA_BITWISE.SREG), a.number(NFTA_BITWISE.DREG)]
    return { expression: 'bitwise', sreg, dreg, mask: a.bytes(NFTA_BITWISE.MASK), xor: a.bytes(NFTA_BITWISE.XOR) }
  },
  lookup: (a) => ({
    expression: 'lookup',
    set: a.text(NFTA_LOOKUP.SET),
    sreg: a.number(NFTA_LOOKUP.SREG),
    ...(a.has(NFTA_LOOKUP.DREG) ? { dreg: a.number(NFTA_LOOKUP.DREG) } : {}),
    ...(a.has(NFTA_LOOKUP.SET_ID) ? { setId: a.number(NFTA_LOOKUP.SET_ID) } : {}),
    ...(a.number(NFTA_LOOKUP.FLAGS) === 1 ? { inverted: true } : {}),
  }),
  immediate(a) {
    const data = a.data(NFTA_IMMEDIATE.DATA)
    if (data === undefined) return undefined
    if (data instanceof Uint8Array) return { expression: 'immediate', dreg: a.number(NFTA_IMMEDIATE.DREG), data }
    return { expression: 'verdict', ...data }
  },
  numgen: (a) => ({
    expression: a.number(NFTA_NG.TYPE) === 1 ? 'numgen random' : 'numgen inc',
    dreg: a.number(NFTA_NG.DREG),
    modulus: a.number(NFTA_NG.MODULUS),
    ...(a.number(NFTA_NG.OFFSET) === 0 ? {} : { offset: a.number(NFTA_NG.OFFSET) }),
  }),
  hash: (a) => ({
    expression: 'jhash',
    sreg: a.number(NFTA_HASH.SREG),
    dreg: a.number(NFTA_HASH.DREG),
    length: a.number(NFTA_HASH.LEN),
    modulus: a.number(NFTA_HASH.MODULUS),
    seed: a.number(NFTA_HASH.SEED),
    ...(a.number(NFTA_HASH.OFFSET) === 0 ? {} : { offset: a.number(NFTA_HASH.OFFSET) }),
  }),
  nat: (a) =>
    a.number(NFTA_NAT.TYPE) === 1
      ? {
          expression: 'dnat',
          family: familyOfNumber(a.number(NFTA_NAT.FAMILY)) ?? 4,
          addressReg: a.number(NFTA_NAT.REG_ADDR_MIN),
          portReg: a.number(NFTA_NAT.REG_PROTO_MIN),
          ...(a.has(NFTA_NAT.FLAGS) ? { flags: a.number(NFTA_NAT.FLAGS) } : {}),
        }
      : undefined,
  masq: (a) => ({ expression: 'masquerade', fullyRandom: a.number(NFTA_MASQ.FLAGS) === 0x10 }),
  reject: (a) =>
    a.number(NFTA_REJECT.TYPE) === 0 ? { expression: 'reject', code: a.number(NFTA_REJECT.ICMP_CODE) } : undefined,
  dynset: (a) =>
    a.number(NFTA_DYNSET.OP) === 1
      ? {
          expression: 'update set',
          set: a.text(NFTA_DYNSET.SET_NAME),
          keyReg: a.number(NFTA_DYNSET.SREG_KEY),
          ...(a.has(NFTA_DYNSET.SET_ID) ? { setId: a.number(NFTA_DYNSET.SET_ID) } : {}),
          ...(a.has(NFTA_DYNSET.TIMEOUT) ? { timeoutMs: a.long(NFTA_DYNSET.TIMEOUT) } : {}),
        }
      : undefined,
}

function nameOf<T extends Readonly<Record<string, number>>>(names: T, number: number): keyof T | undefined {
  return Object.keys(names).find((name) => names[name] === number)
}

/** Reads the data attribute that the reader is at: bytes, a verdict, or undefined if it is neither. */
function readData(reader: AttributeReader): Uint8Array | Verdict | undefined {
  let found: Uint8Array | Verdict | undefined
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_DATA.VALUE) found = reader.raw()
    else if (reader.type === NFTA_DATA.VERDICT) found = readVerdict(reader)
  }
  reader.leave()
  return found
}
