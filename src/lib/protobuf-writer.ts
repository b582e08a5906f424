// Writes protobuf's wire format: numbers and length-delimited fields. Pure.

import { wireTypes } from './protobuf-wire.ts'

export function encodeVarint(value: number): Buffer {
  if (value >= 0 && value < 0x80) return Buffer.of(value)
  let rest = BigInt.asUintN(64, BigInt(value))
  const bytes: number[] = []
  do {
    const low = Number(rest & 0x7fn)
    rest >>= 7n
    bytes.push(rest === 0n ? low : low | 0x80)
  } while (rest !== 0n)
  return Buffer.from(bytes)
}

export const encodeNumber = (field: number, value: number): Buffer =>
  Buffer.concat([encodeVarint((field << 3) | wireTypes.varint), encodeVarint(value)])

export function encodeDelimited(field: number, value: string | Buffer): Buffer {
  const bytes = typeof value === 'string' ? Buffer.from(value) : value
  return Buffer.concat([encodeVarint((field << 3) | wireTypes.delimited), encodeVarint(bytes.length), bytes])
}
