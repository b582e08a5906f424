// The instructions of nf_tables' virtual machine, of those that a service proxy needs: written, and read back.
//
// Registers: 0 is the verdict; 1 to 4 are 16 bytes each; 8 to 23 are 4 bytes each and lie in the same place (1 is 8 to 11). Contents are raw:
// packet fields in network order; marks, states and numbers made by the kernel in host order.

import type { AttributeReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'

export type Verdict =
  | { readonly verdict: 'accept' | 'drop' | 'return' }
  | { readonly verdict: 'jump' | 'goto'; readonly chain: string }

export const payloadBases = { link: 0, network: 1, transport: 2 } as const
export const metaKeys = { mark: 3, iifname: 6, oifname: 7, l4proto: 16 } as const
export const ctKeys = { state: 0, status: 2 } as const
export const comparisons = { eq: 0, ne: 1, lt: 2, le: 3, gt: 4, ge: 5 } as const

export type Expression =
  | {
      readonly expression: 'payload'
      readonly dreg: number
      readonly base: keyof typeof payloadBases
      readonly offset: number
      readonly length: number
    }
  | { readonly expression: 'meta'; readonly key: keyof typeof metaKeys; readonly dreg: number }
  | { readonly expression: 'meta set'; readonly key: keyof typeof metaKeys; readonly sreg: number }
  | { readonly expression: 'ct'; readonly key: keyof typeof ctKeys; readonly dreg: number }
  /** Type of the packet's source or destination address: 2 is local. */
  | { readonly expression: 'fib type'; readonly of: 'saddr' | 'daddr'; readonly dreg: number }
  | {
      readonly expression: 'cmp'
      readonly sreg: number
      readonly op: keyof typeof comparisons
      readonly data: Uint8Array
    }
  /** (sreg & mask) ^ xor; both as long as the field. */
  | {
      readonly expression: 'bitwise'
      readonly sreg: number
      readonly dreg: number
      readonly mask: Uint8Array
      readonly xor: Uint8Array
    }
  /** What nft puts behind one-byte fields in keys of interval sets, for its own sake. */
  | {
      readonly expression: 'hton'
      readonly sreg: number
      readonly dreg: number
      readonly length: number
      readonly size: number
    }
  /** Without dreg: is it in the set? With: the data of the map, 0 for verdicts. */
  | {
      readonly expression: 'lookup'
      readonly set: string
      readonly sreg: number
      readonly dreg?: number
      readonly setId?: number
      readonly inverted?: boolean
    }
  | { readonly expression: 'immediate'; readonly dreg: number; readonly data: Uint8Array }
  | ({ readonly expression: 'verdict' } & Verdict)
  /** `offset` is added to the number. */
  | {
      readonly expression: 'numgen random'
      readonly dreg: number
      readonly modulus: number
      readonly offset?: number
    }
  | {
      readonly expression: 'dnat'
      readonly family: 4 | 6
      readonly addressReg: number
      readonly portReg?: number
      /** NF_NAT_RANGE_* bits; the kernel adds those it needs. */
      readonly flags?: number
    }
  | { readonly expression: 'masquerade'; readonly fullyRandom: boolean }
  | { readonly expression: 'reject'; readonly type: 'icmp' | 'tcp reset'; readonly code: number }
  /** Adds the key to a dynamic set, or restarts its timeout. */
  | {
      readonly expression: 'update set'
      readonly set: string
      readonly keyReg: number
      readonly setId?: number
      /** Instead of the set's own. */
      readonly timeoutMs?: number
    }
  | { readonly expression: 'counter'; readonly packets?: number; readonly bytes?: number }

const verdictCodes = { drop: 0, accept: 1, jump: -3, goto: -4, return: -5 } as const
const VALUE = 1
const VERDICT = 2
const FULLY_RANDOM = 0x10

/** `data` attribute with raw bytes. */
function writeValue(writer: MessageWriter, type: number, value: Uint8Array): void {
  const at = writer.open(type)
  writer.raw(VALUE, value)
  writer.close(at)
}

/** `data` attribute with a verdict. */
export function writeVerdict(writer: MessageWriter, type: number, verdict: Verdict): void {
  const data = writer.open(type)
  const at = writer.open(VERDICT)
  writer.u32(1, verdictCodes[verdict.verdict])
  if ('chain' in verdict) writer.text(2, verdict.chain)
  writer.close(at)
  writer.close(data)
}

export function writeExpression(writer: MessageWriter, expression: Expression): void {
  const element = writer.open(1)
  writer.text(1, names[expression.expression])
  const at = writer.open(2)
  writeDetail(writer, expression)
  writer.close(at)
  writer.close(element)
}

/** The kernel's names. */
const names: Readonly<Record<Expression['expression'], string>> = {
  payload: 'payload',
  meta: 'meta',
  'meta set': 'meta',
  ct: 'ct',
  'fib type': 'fib',
  cmp: 'cmp',
  bitwise: 'bitwise',
  hton: 'byteorder',
  lookup: 'lookup',
  immediate: 'immediate',
  verdict: 'immediate',
  'numgen random': 'numgen',
  dnat: 'nat',
  masquerade: 'masq',
  reject: 'reject',
  'update set': 'dynset',
  counter: 'counter',
}

/** Attributes in nft's order, so that the bytes can be compared with its own. */
function writeDetail(writer: MessageWriter, e: Expression): void {
  switch (e.expression) {
    case 'payload':
      writeAll(writer, [1, e.dreg], [2, payloadBases[e.base]], [3, e.offset], [4, e.length])
      break
    case 'meta':
      writeAll(writer, [2, metaKeys[e.key]], [1, e.dreg])
      break
    case 'meta set':
      writeAll(writer, [2, metaKeys[e.key]], [3, e.sreg])
      break
    case 'ct':
      writeAll(writer, [2, ctKeys[e.key]], [1, e.dreg])
      break
    case 'fib type':
      writeAll(writer, [3, e.of === 'saddr' ? 1 : 2], [2, 3], [1, e.dreg])
      break
    case 'cmp':
      writeAll(writer, [1, e.sreg], [2, comparisons[e.op]])
      writeValue(writer, 3, e.data)
      break
    case 'bitwise':
      writeAll(writer, [1, e.sreg], [2, e.dreg], [3, e.mask.length])
      writeValue(writer, 4, e.mask)
      writeValue(writer, 5, e.xor)
      break
    case 'hton':
      writeAll(writer, [1, e.sreg], [2, e.dreg], [3, 1], [4, e.length], [5, e.size])
      break
    case 'lookup':
      writeLookup(writer, e)
      break
    case 'immediate':
      writer.u32(1, e.dreg)
      writeValue(writer, 2, e.data)
      break
    case 'verdict':
      writer.u32(1, 0)
      writeVerdict(writer, 2, e)
      break
    case 'numgen random':
      writeAll(writer, [1, e.dreg], [2, e.modulus], [3, 1], [4, e.offset ?? 0])
      break
    case 'dnat':
      writeDnat(writer, e)
      break
    case 'masquerade':
      if (e.fullyRandom) writer.u32(1, FULLY_RANDOM)
      break
    case 'reject':
      writer.u32(1, e.type === 'icmp' ? 0 : 1)
      writer.u8(2, e.code)
      break
    case 'update set':
      writeAll(writer, [4, e.keyReg], [3, 1])
      if (e.timeoutMs !== undefined) writer.u64(6, e.timeoutMs)
      writer.text(1, e.set)
      if (e.setId !== undefined) writer.u32(2, e.setId)
      break
    case 'counter':
      if (e.bytes !== undefined) writer.u64(1, e.bytes)
      if (e.packets !== undefined) writer.u64(2, e.packets)
      break
  }
}

function writeAll(writer: MessageWriter, ...values: readonly (readonly [type: number, value: number])[]): void {
  for (const [type, value] of values) writer.u32(type, value)
}

function writeLookup(writer: MessageWriter, e: Expression & { expression: 'lookup' }): void {
  writer.u32(2, e.sreg)
  if (e.dreg !== undefined) writer.u32(3, e.dreg)
  writer.text(1, e.set)
  if (e.setId !== undefined) writer.u32(4, e.setId)
  if (e.inverted === true) writer.u32(5, 1)
}

function writeDnat(writer: MessageWriter, e: Expression & { expression: 'dnat' }): void {
  writeAll(writer, [1, 1], [2, e.family === 4 ? 2 : 10], [3, e.addressReg])
  if (e.portReg !== undefined) writer.u32(5, e.portReg)
  if (e.flags !== undefined) writer.u32(7, e.flags)
}

/** The data attribute the reader is at: bytes, a verdict, or undefined if it is neither. */
export function readData(reader: AttributeReader): Uint8Array | Verdict | undefined {
  let found: Uint8Array | Verdict | undefined
  reader.enter()
  while (reader.next()) {
    if (reader.type === VALUE) found = reader.raw()
    else if (reader.type === VERDICT) found = readVerdict(reader)
  }
  reader.leave()
  return found
}

function readVerdict(reader: AttributeReader): Verdict | undefined {
  let code = Number.NaN
  let chain = ''
  reader.enter()
  while (reader.next()) {
    if (reader.type === 1) code = reader.i32()
    else if (reader.type === 2) chain = reader.text()
  }
  reader.leave()
  if (code === verdictCodes.jump) return { verdict: 'jump', chain }
  if (code === verdictCodes.goto) return { verdict: 'goto', chain }
  if (code === verdictCodes.accept) return { verdict: 'accept' }
  if (code === verdictCodes.drop) return { verdict: 'drop' }
  return code === verdictCodes.return ? { verdict: 'return' } : undefined
}
