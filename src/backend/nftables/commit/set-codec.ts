// The sets and maps we use as the kernel and nft see them: types, lengths, and the text of keys and values as bytes and back. Pure.

import { type Family, formatIp, hostPort, maskBytes, parseIp } from '../../../lib/ip.ts'
import { littleEndian } from '../../../sys/netlink/message.ts'
import {
  SET_CONCATENATION,
  SET_DYNAMIC,
  SET_INTERVAL,
  SET_MAP,
  SET_TIMEOUT,
} from '../../../sys/netlink/nft/nft-types.ts'
import { describeSet, type Field } from '../../../sys/netlink/nft/userdata.ts'
import type { NftSetShape, NftSetSpec } from '../entries.ts'
import { protocolNumbers } from './compile.ts'

type Part = 'address' | 'protocol' | 'port' | 'slot' | 'range'

export interface SetCodec {
  readonly key: readonly Part[]
  /** undefined: a set. */
  readonly value: 'verdict' | 'endpoint' | undefined
  readonly keyLength: number
}

const parts = new Map<NftSetShape, Pick<SetCodec, 'key' | 'value'>>()

function partsOf(shape: NftSetShape): Pick<SetCodec, 'key' | 'value'> {
  let found = parts.get(shape)
  if (found === undefined) {
    const [key, value] = (shape === 'affinity' ? 'address' : shape).split(' : ') as [string, string | undefined]
    const kind = value === 'verdict' ? 'verdict' : value === undefined ? undefined : 'endpoint'
    found = { key: key.split(' . ') as Part[], value: kind }
    parts.set(shape, found)
  }
  return found
}

export function shapeOf(shape: NftSetShape, family: Family): SetCodec {
  const { key, value } = partsOf(shape)
  const width = family === 4 ? 4 : 16
  const length = (part: Part): number => (part === 'address' || part === 'range' ? width : 4)
  return { key, value, keyLength: key.reduce((sum, part) => sum + length(part), 0) }
}

/** As the kernel is told of it. Slots are declared by `typeof`: else nft could print the map but not read it back. */
export function declare(set: NftSetSpec, family: Family) {
  const { key, value } = partsOf(set.shape)
  const daddr = family === 4 ? 'ip daddr' : 'ip6 daddr'
  const fields: Readonly<Record<Part, Field>> = {
    address: daddr,
    range: family === 4 ? 'ip saddr' : 'ip6 saddr',
    protocol: 'meta l4proto',
    port: 'th dport',
    slot: { slots: 5 },
  }
  const ranges = key.includes('range')
  const { fieldLengths, ...described } = describeSet({
    key: key.map((part) => fields[part]),
    ...(value === undefined ? {} : { data: value === 'verdict' ? value : [daddr, 'th dport' as const] }),
    ...(set.comment === '' ? {} : { comment: set.comment }),
    byTypeof: key.includes('slot'),
  })
  const affinity = set.shape === 'affinity'
  const flags =
    (ranges ? SET_INTERVAL | SET_CONCATENATION : 0) |
    (value === undefined ? 0 : SET_MAP) |
    (affinity ? SET_TIMEOUT | SET_DYNAMIC : 0)
  return {
    ...described,
    flags,
    ...(ranges ? { fieldLengths } : {}),
    // No size: the kernel takes 65,535 by itself for a set that rules fill, but would set a megabyte aside for a set that says so.
    ...(affinity ? { timeoutMs: (set.timeoutSeconds ?? 0) * 1000 } : {}),
  }
}

// ---- Keys and values. ----

const protocolNames = new Map<number, string>(Object.entries(protocolNumbers).map(([name, number]) => [number, name]))

/** `10.96.0.1 tcp 443 3` to the bytes of a key; for a range its first key, or with `end` its last. */
export function encodeKey(shape: SetCodec, family: Family, text: string, end = false): Buffer {
  const bytes = Buffer.alloc(shape.keyLength)
  writeKey(shape, family, text, bytes, end)
  return bytes
}

/** The same into bytes that are there. A slot that the text does not name is left out. */
export function writeKey(shape: SetCodec, family: Family, text: string, into: Buffer, end = false): void {
  let at = 0
  let start = 0
  for (const part of shape.key) {
    const space = text.indexOf(' ', start)
    const stop = space < 0 ? text.length : space
    if (part === 'address') at += writeAddress(family, text, start, stop, into, at)
    else if (part === 'range') {
      into.set(rangeEdge(text.slice(start, stop), end), at)
      at += family === 4 ? 4 : 16
    } else {
      if (start >= text.length) return
      if (part === 'protocol') into[at] = protocolAt(text, start)
      else if (part === 'port') writePort(numberAt(text, start, stop), into, at)
      else writeSlot(numberAt(text, start, stop), into, at)
      at += 4
    }
    start = stop + 1
  }
}

/** Their first letters tell them apart. */
function protocolAt(text: string, at: number): number {
  const letter = text.charCodeAt(at)
  return letter === 0x74 ? protocolNumbers.tcp : letter === 0x75 ? protocolNumbers.udp : protocolNumbers.sctp
}

/** Without a text of its own; NaN if it is no number. */
function numberAt(text: string, start: number, stop: number): number {
  let value = start < stop ? 0 : Number.NaN
  for (let i = start; i < stop; i++) {
    const digit = text.charCodeAt(i) - 48
    value = digit >= 0 && digit <= 9 ? value * 10 + digit : Number.NaN
  }
  return value
}

export function writeSlot(slot: number, into: Buffer, at: number): void {
  for (let i = 0; i < 4; i++) into[littleEndian ? at + i : at + 3 - i] = slot >>> (8 * i)
}

function writePort(port: number, into: Buffer, at: number): void {
  if (!(port > 0 && port < 0x10000)) throw new RangeError(`${port} is no port`)
  into[at] = port >> 8
  into[at + 1] = port
}

/** Digit by digit: half of all that is sent are IPv4 addresses. Returns their length. */
function writeAddress(family: Family, text: string, start: number, stop: number, into: Buffer, at: number): number {
  if (family === 6) {
    into.set(parseIp(text.slice(start, stop)) as Uint8Array, at)
    return 16
  }
  let byte = 0
  let next = at
  for (let i = start; i < stop; i++) {
    const code = text.charCodeAt(i)
    if (code === 46) {
      into[next++] = byte
      byte = 0
    } else byte = byte * 10 + code - 48
  }
  into[next] = byte
  if (next !== at + 3) throw new RangeError(`${text.slice(start, stop)} is no IPv4 address`)
  return 4
}

/** The inverse; undefined if the bytes are not a key of ours. With `count`, only so many parts of it. */
export function decodeKey(
  shape: SetCodec,
  family: Family,
  bytes: Buffer,
  last: Buffer | undefined,
  count = shape.key.length,
): string | undefined {
  if (bytes.length !== shape.keyLength) return undefined
  const words: string[] = []
  const width = family === 4 ? 4 : 16
  let at = 0
  for (let i = 0; i < count; i++) {
    const part = shape.key[i]
    if (part === 'address') words.push(addressText(bytes, at, width))
    else if (part === 'range') {
      const range = rangeText(bytes.subarray(at, at + width), (last ?? bytes).subarray(at, at + width))
      if (range === undefined) return undefined
      words.push(range)
    } else if (part === 'protocol') words.push(protocolNames.get(bytes[at] as number) ?? String(bytes[at]))
    else if (part === 'port') words.push(String(bytes.readUInt16BE(at)))
    else words.push(String(slotAt(bytes, at)))
    at += part === 'address' || part === 'range' ? width : 4
  }
  return words.join(' ')
}

/** The slot, which is the last part of an endpoint's key. */
export const decodeSlot = ({ keyLength }: SetCodec, bytes: Buffer): number => slotAt(bytes, keyLength - 4)

const slotAt = (bytes: Buffer, at: number): number => (littleEndian ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at))

/** `ip:port` as map data. */
export function encodeEndpoint(family: Family, text: string): Buffer {
  const bytes = Buffer.alloc(endpointLength(family))
  writeEndpoint(family, text, bytes)
  return bytes
}

export const endpointLength = (family: Family): number => (family === 4 ? 8 : 20)

export function writeEndpoint(family: Family, text: string, into: Buffer): void {
  const colon = text.lastIndexOf(':')
  // IPv6 is in brackets.
  const brackets = family === 4 ? 0 : 1
  const at = writeAddress(family, text, brackets, colon - brackets, into, 0)
  writePort(numberAt(text, colon + 1, text.length), into, at)
}

export function decodeEndpoint(family: Family, bytes: Buffer): string | undefined {
  const width = family === 4 ? 4 : 16
  return bytes.length < width + 2 ? undefined : hostPort(addressText(bytes, 0, width), bytes.readUInt16BE(width))
}

const addressText = (bytes: Buffer, at: number, width: number): string =>
  width === 4
    ? `${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`
    : formatIp(bytes.subarray(at, at + width))

function rangeEdge(cidr: string, end: boolean): Uint8Array {
  const slash = cidr.indexOf('/')
  const bits = Number(cidr.slice(slash + 1))
  const first = maskBytes(parseIp(cidr.slice(0, slash)) as Uint8Array, bits)
  return end ? first.map((byte, i) => byte | (0xff >> Math.min(8, Math.max(0, bits - 8 * i)))) : first
}

function rangeText(first: Buffer, last: Buffer): string | undefined {
  let bits = 0
  for (let i = 0; i < first.length; i++) {
    const differing = Math.clz32((first[i] as number) ^ (last[i] as number)) - 24
    bits += differing
    if (differing < 8) break
  }
  const text = `${formatIp(first)}/${bits}`
  return Buffer.from(rangeEdge(text, true)).equals(last) ? text : undefined
}
