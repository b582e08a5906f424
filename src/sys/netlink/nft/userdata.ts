// What `nft` keeps with objects for itself: comments, and how to print the keys and data of sets. The kernel does not look inside.

import { littleEndian } from '../message.ts'

const COMMENT = 0
/** nft looks only for the types it knows; this one is ours. */
const TAG = 0xf5
const SET = { keyOrder: 0, dataOrder: 1, keyTypeof: 3, dataTypeof: 4, dataInterval: 6, comment: 7 } as const
const TYPEOF = { expression: 0, detail: 1 } as const
const expressionTypes = { payload: 7, meta: 9, concatenation: 13, numgen: 23 } as const
const BIG_ENDIAN = 2

/** Longest comment there is room for in a length byte, with its NUL. */
const maxComment = 254

/** A part of a key, or of data, as nft writes it. */
export type Field =
  | 'ip saddr'
  | 'ip daddr'
  | 'ip6 saddr'
  | 'ip6 daddr'
  | 'meta l4proto'
  | 'th dport'
  | 'meta mark'
  | { readonly slots: number }

interface FieldShape {
  /** nft's number of the data type. */
  readonly type: number
  readonly length: number
  readonly bigEndian: boolean
  readonly expression: keyof typeof expressionTypes
  /** What the expression type wants to know: protocol and field, or key. */
  readonly detail: readonly number[]
}

const shapes: Readonly<Record<Exclude<Field, object>, FieldShape>> = {
  'ip saddr': { type: 7, length: 4, bigEndian: true, expression: 'payload', detail: [12, 11] },
  'ip daddr': { type: 7, length: 4, bigEndian: true, expression: 'payload', detail: [12, 12] },
  'ip6 saddr': { type: 8, length: 16, bigEndian: true, expression: 'payload', detail: [13, 8] },
  'ip6 daddr': { type: 8, length: 16, bigEndian: true, expression: 'payload', detail: [13, 9] },
  'meta l4proto': { type: 12, length: 1, bigEndian: true, expression: 'meta', detail: [16] },
  'th dport': { type: 13, length: 2, bigEndian: true, expression: 'payload', detail: [11, 2] },
  'meta mark': { type: 19, length: 4, bigEndian: false, expression: 'meta', detail: [3] },
}

/** numgen random mod `slots`: an integer without a type name, which only `typeof` can declare. */
function shapeOf(field: Field): FieldShape {
  if (typeof field === 'string') return shapes[field]
  return { type: 4, length: 4, bigEndian: false, expression: 'numgen', detail: [1, field.slots, 0] }
}

export interface SetShape {
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
  /** Declared by `typeof` instead of `type`: what `nft list` prints then can be loaded again even with slots in the key. */
  readonly byTypeof?: boolean
}

/** Everything about a set that follows from its fields, the same bytes that nft would send. */
export function describeSet({ key, data, comment, byTypeof = false }: SetDeclaration): SetShape {
  const keyShapes = key.map(shapeOf)
  const dataShapes = data === undefined || data === 'verdict' ? [] : data.map(shapeOf)
  const parts = [entry(SET.keyOrder, byteOrder(keyShapes))]
  if (data !== undefined) parts.push(entry(SET.dataOrder, byteOrder(dataShapes)))
  if (describesType(keyShapes, byTypeof)) parts.push(entry(SET.keyTypeof, typeofBytes(keyShapes, byTypeof)))
  if (describesType(dataShapes, byTypeof)) parts.push(entry(SET.dataTypeof, typeofBytes(dataShapes, byTypeof)))
  if (data !== undefined) parts.push(entry(SET.dataInterval, u32(0)))
  if (comment !== undefined) parts.push(entry(SET.comment, textBytes(comment)))
  return {
    keyType: typeNumber(keyShapes),
    keyLength: paddedLength(keyShapes),
    fieldLengths: keyShapes.map(({ length }) => length),
    ...(data === undefined ? {} : dataShape(data, dataShapes)),
    userdata: Buffer.concat(parts),
  }
}

function dataShape(data: readonly Field[] | 'verdict', dataShapes: readonly FieldShape[]) {
  if (data === 'verdict') return { dataType: 0xffffff00, dataLength: 0 }
  return { dataType: typeNumber(dataShapes), dataLength: paddedLength(dataShapes) }
}

/** nft tells the expression of concatenations always, with their parts only when declared by typeof. */
const describesType = (fields: readonly FieldShape[], byTypeof: boolean) =>
  fields.length > 1 || (byTypeof && fields.length === 1)

/** Six bits per field, the first one highest. */
const typeNumber = (fields: readonly FieldShape[]) => fields.reduce((sum, { type }) => sum * 64 + type, 0)

/** A single field keeps its length; in a concatenation each is padded. */
function paddedLength(fields: readonly FieldShape[]): number {
  const [only] = fields
  if (fields.length === 1 && only !== undefined) return only.length
  return fields.reduce((sum, { length }) => sum + ((length + 3) & ~3), 0)
}

function byteOrder(fields: readonly FieldShape[]): Buffer {
  const [only] = fields
  if (fields.length !== 1 || only === undefined) return u32(0)
  return u32(only.bigEndian ? BIG_ENDIAN : 1)
}

function typeofBytes(fields: readonly FieldShape[], byTypeof: boolean): Buffer {
  const [only] = fields
  if (fields.length === 1 && only !== undefined) return expressionBytes(only)
  const detail = byTypeof ? fields.map((field, i) => entry(i, expressionBytes(field))) : []
  return Buffer.concat([
    entry(TYPEOF.expression, u32(expressionTypes.concatenation)),
    entry(TYPEOF.detail, Buffer.concat(detail)),
  ])
}

function expressionBytes({ expression, detail }: FieldShape): Buffer {
  return Buffer.concat([
    entry(TYPEOF.expression, u32(expressionTypes[expression])),
    entry(TYPEOF.detail, Buffer.concat(detail.map((value, i) => entry(i, u32(value))))),
  ])
}

/** Userdata of a table, chain, rule or element that has nothing but a comment. */
export function commentBytes(comment: string): Buffer {
  return entry(COMMENT, textBytes(comment))
}

/** The comment in userdata of a table, chain, rule or element; undefined if there is none. */
export function readComment(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, COMMENT)
}

/** Userdata of a rule; empty if it has none. */
export function ruleUserdata({ comment, tag }: { readonly comment?: string; readonly tag?: string }): Buffer {
  return Buffer.concat([
    ...(comment === undefined ? [] : [commentBytes(comment)]),
    ...(tag === undefined ? [] : [entry(TAG, textBytes(tag))]),
  ])
}

export function readTag(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, TAG)
}

export function readSetComment(userdata: Uint8Array | undefined): string | undefined {
  return readEntry(userdata, SET.comment)
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
  if (value.length > 255) throw new RangeError(`nftables userdata of ${value.length} bytes; there is room for 255`)
  return Buffer.concat([Uint8Array.of(type, value.length), value])
}

/** nft refuses longer comments than 128 bytes, the format ends at 254; so that no name can break a rule, the rest is cut. */
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
