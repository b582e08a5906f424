// Keys and data of set elements from addresses, protocols, ports and slots: each field padded to 4 bytes, as it lies in registers. Pure.

import { formatIp } from '../../../lib/ip.ts'
import { putAddress } from '../address-codec.ts'
import { littleEndian } from '../message.ts'
import type { Field } from './userdata.ts'

/** Values of fields, in order: addresses as canonical text, the rest as numbers. */
export function packFields(fields: readonly Field[], values: readonly (string | number)[]): Buffer {
  if (fields.length !== values.length) throw new TypeError(`${values.length} values for ${fields.length} fields`)
  let length = 0
  for (const field of fields) length += width(field)
  const bytes = Buffer.alloc(length)
  let at = 0
  for (let i = 0; i < fields.length; i++) {
    const field = fields[i] as Field
    pack(bytes, at, field, values[i] as string | number)
    at += width(field)
  }
  return bytes
}

/** The inverse, without the check that the bytes are those of such a key. */
export function unpackFields(fields: readonly Field[], bytes: Uint8Array): (string | number)[] {
  let at = 0
  return fields.map((field) => {
    const start = at
    at += width(field)
    return unpack(bytes, start, field)
  })
}

function width(field: Field): number {
  return field === 'ip6 saddr' || field === 'ip6 daddr' ? 16 : 4
}

function pack(bytes: Buffer, at: number, field: Field, value: string | number): void {
  if (typeof value === 'string') putAddress(bytes, at, value)
  else if (field === 'meta l4proto') bytes[at] = value
  else if (field === 'th dport') {
    bytes[at] = value >> 8
    bytes[at + 1] = value
  } else if (littleEndian) bytes.writeUInt32LE(value, at)
  else bytes.writeUInt32BE(value, at)
}

function unpack(bytes: Uint8Array, at: number, field: Field): string | number {
  if (field === 'meta l4proto') return bytes[at] as number
  if (field === 'th dport') return ((bytes[at] as number) << 8) | (bytes[at + 1] as number)
  if (field === 'meta mark' || typeof field !== 'string') {
    const view = new DataView(bytes.buffer, bytes.byteOffset)
    return view.getUint32(at, littleEndian)
  }
  return formatIp(bytes.subarray(at, at + width(field)))
}
