// The userdata that `nft` stores with objects: comments, and how to print the keys and data of sets. The kernel only stores it. Pure.

import { align4, littleEndian } from '../message.ts'
import { VERDICT_TYPE } from './nft-types.ts'

// The names are those of libnftnl's udata.h.
/** The type of a comment in the userdata of tables, chains, rules and elements. */
export const USERDATA_COMMENT = 0
/** Our own type. nft looks only for the types that it knows. */
const USERDATA_TAG = 0xf5
const NFTNL_UDATA_SET = {
  KEYBYTEORDER: 0,
  DATABYTEORDER: 1,
  KEY_TYPEOF: 3,
  DATA_TYPEOF: 4,
  DATA_INTERVAL: 6,
  COMMENT: 7,
} as const
const NFTNL_UDATA_SET_TYPEOF = { EXPR: 0, DATA: 1 } as const

// Numbers of nft itself: its expression types, data types, byte orders and protocol descriptions.
const expressionTypes = { payload: 7, meta: 9, concatenation: 13, numgen: 23 } as const
const dataTypes = { integer: 4, ipv4: 7, ipv6: 8, protocol: 12, port: 13 } as const
const byteOrders = { none: 0, host: 1, big: 2 } as const
const protocols = { transport: 11, ip: 12, ip6: 13 } as const

/** The longest comment whose length, with the NUL, fits into one byte. */
const maxComment = 254

/** A field of a key or of data, in nft's words. */
export type Field =
  | 'ip saddr'
  | 'ip daddr'
  | 'ip6 saddr'
  | 'ip6 daddr'
  | 'meta l4proto'
  | 'th sport'
  | 'th dport'
  /** `numgen random mod slots`: an integer without a type name, which only `typeof` can declare. */
  | { readonly slots: number }

interface FieldType {
  readonly type: number
  readonly length: number
  readonly byteOrder: number
  readonly expression: keyof typeof expressionTypes
  /** The parameters of the expression: protocol and field of a payload, key of meta, type, modulus and offset of numgen. */
  readonly detail: readonly number[]
}

const ipv4 = { type: dataTypes.ipv4, length: 4, byteOrder: byteOrders.big, expression: 'payload' } as const
const ipv6 = { type: dataTypes.ipv6, length: 16, byteOrder: byteOrders.big, expression: 'payload' } as const

const fieldTypes: Readonly<Record<Exclude<Field, object>, FieldType>> = {
  'ip saddr': { ...ipv4, detail: [protocols.ip, 11] },
  'ip daddr': { ...ipv4, detail: [protocols.ip, 12] },
  'ip6 saddr': { ...ipv6, detail: [protocols.ip6, 8] },
  'ip6 daddr': { ...ipv6, detail: [protocols.ip6, 9] },
  'meta l4proto': {
    type: dataTypes.protocol,
    length: 1,
    byteOrder: byteOrders.big,
    expression: 'meta',
    detail: [16],
  },
  'th sport': {
    type: dataTypes.port,
    length: 2,
    byteOrder: byteOrders.big,
    expression: 'payload',
    detail: [protocols.transport, 1],
  },
  'th dport': {
    type: dataTypes.port,
    length: 2,
    byteOrder: byteOrders.big,
    expression: 'payload',
    detail: [protocols.transport, 2],
  },
}

function typeOf(field: Field): FieldType {
  if (typeof field === 'string') return fieldTypes[field]
  return {
    type: dataTypes.integer,
    length: 4,
    byteOrder: byteOrders.host,
    expression: 'numgen',
    detail: [1, field.slots, 0],
  }
}

/** The parts of an NftSet that follow from its fields. */
export interface SetDescription {
  readonly keyType: number
  readonly keyLength: number
  readonly dataType?: number
  readonly dataLength?: number
  readonly fieldLengths: readonly number[]
  readonly userdata: Buffer
}

export interface SetDeclaration {
  readonly key: readonly Field[]
  readonly data?: readonly Field[] | 'verdict'
  readonly comment?: string
  /** Declares by `typeof` instead of `type`: nft can then load what `nft list` prints, even with slots in the key. */
  readonly byTypeof?: boolean
}

/** Describes a set with the same bytes that nft would send. */
export function describeSet({ key, data, comment, byTypeof = false }: SetDeclaration): SetDescription {
  const keyTypes = key.map(typeOf)
  const dataFields = data === undefined || data === 'verdict' ? [] : data.map(typeOf)
  const parts = [entry(NFTNL_UDATA_SET.KEYBYTEORDER, byteOrderBytes(keyTypes))]
  if (data !== undefined) parts.push(entry(NFTNL_UDATA_SET.DATABYTEORDER, byteOrderBytes(dataFields)))
  if (describesType(keyTypes, byTypeof)) parts.push(entry(NFTNL_UDATA_SET.KEY_TYPEOF, typeofBytes(keyTypes, byTypeof)))
  if (describesType(dataFields, byTypeof)) {
    parts.push(entry(NFTNL_UDATA_SET.DATA_TYPEOF, typeofBytes(dataFields, byTypeof)))
  }
  if (data !== undefined) parts.push(entry(NFTNL_UDATA_SET.DATA_INTERVAL, u32(0)))
  if (comment !== undefined) parts.push(entry(NFTNL_UDATA_SET.COMMENT, textBytes(comment)))
  return {
    keyType: typeNumber(keyTypes),
    keyLength: paddedLength(keyTypes),
    fieldLengths: keyTypes.map(({ length }) => length),
    ...(data === undefined ? {} : describeData(data, dataFields)),
    userdata: Buffer.concat(parts),
  }
}

function describeData(data: readonly Field[] | 'verdict', fields: readonly FieldType[]) {
  if (data === 'verdict') return { dataType: VERDICT_TYPE, dataLength: 0 }
  return { dataType: typeNumber(fields), dataLength: paddedLength(fields) }
}

/** nft stores the expression of every concatenation, but its parts only when it is declared by typeof. */
const describesType = (fields: readonly FieldType[], byTypeof: boolean): boolean =>
  fields.length > 1 || (byTypeof && fields.length === 1)

/** Six bits per field; the first field is in the highest bits. */
const typeNumber = (fields: readonly FieldType[]): number => fields.reduce((sum, { type }) => sum * 64 + type, 0)

/** A single field keeps its length; in a concatenation each field is padded. */
function paddedLength(fields: readonly FieldType[]): number {
  const [only] = fields
  if (fields.length === 1 && only !== undefined) return only.length
  return fields.reduce((sum, { length }) => sum + align4(length), 0)
}

function byteOrderBytes(fields: readonly FieldType[]): Buffer {
  const [only] = fields
  return u32(fields.length === 1 && only !== undefined ? only.byteOrder : byteOrders.none)
}

function typeofBytes(fields: readonly FieldType[], byTypeof: boolean): Buffer {
  const [only] = fields
  if (fields.length === 1 && only !== undefined) return expressionBytes(only)
  const detail = byTypeof ? fields.map((field, i) => entry(i, expressionBytes(field))) : []
  return Buffer.concat([
    entry(NFTNL_UDATA_SET_TYPEOF.EXPR, u32(expressionTypes.concatenation)),
    entry(NFTNL_UDATA_SET_TYPEOF.DATA, Buffer.concat(detail)),
  ])
}

function expressionBytes({ expression, detail }: FieldType): Buffer {
  return Buffer.concat([
    entry(NFTNL_UDATA_SET_TYPEOF.EXPR, u32(expressionTypes[expression])),
    entry(NFTNL_UDATA_SET_TYPEOF.DATA, Buffer.concat(detail.map((value, i) => entry(i, u32(value))))),
  ])
}

/** Makes the userdata of a table, chain, rule or element that has only a comment. */
export function commentBytes(comment: string): Buffer {
  return entry(USERDATA_COMMENT, textBytes(comment))
}

/** Reads the comment in the userdata of a table, chain, rule or element; undefined if there is none. */
export function readComment(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, USERDATA_COMMENT)
}

/** Makes the userdata of a rule; empty if the rule has neither comment nor tag. */
export function ruleUserdata({ comment, tag }: { readonly comment?: string; readonly tag?: string }): Buffer {
  return Buffer.concat([
    ...(comment === undefined ? [] : [commentBytes(comment)]),
    ...(tag === undefined ? [] : [entry(USERDATA_TAG, textBytes(tag))]),
  ])
}

export function readTag(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, USERDATA_TAG)
}

export function readSetComment(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, NFTNL_UDATA_SET.COMMENT)
}

function readEntry(userdata: Uint8Array | undefined, type: number): string | undefined {
  if (userdata === undefined) return undefined
  for (let at = 0; at + 2 <= userdata.length; at += 2 + (userdata[at + 1] as number)) {
    const end = at + 2 + (userdata[at + 1] as number)
    if (userdata[at] !== type || end > userdata.length) continue
    const text = userdata.subarray(at + 2, end)
    const nul = text.indexOf(0)
    return Buffer.from(nul < 0 ? text : text.subarray(0, nul)).toString()
  }
  return undefined
}

function entry(type: number, value: Uint8Array): Buffer {
  if (value.length > 255)
    throw new RangeError(`an nftables userdata entry of ${value.length} bytes does not fit: the most is 255`)
  return Buffer.concat([Uint8Array.of(type, value.length), value])
}

/** nft refuses comments over 128 bytes, and the format holds at most 254. The rest is cut, so that no name can break a rule. */
function textBytes(text: string): Buffer {
  const bytes = Buffer.from(text)
  return Buffer.concat([bytes.length > maxComment ? bytes.subarray(0, maxComment) : bytes, Uint8Array.of(0)])
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  if (littleEndian) bytes.writeUInt32LE(value)
  else bytes.writeUInt32BE(value)
  return bytes
}
