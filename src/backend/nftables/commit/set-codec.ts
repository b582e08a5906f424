// Declares our sets and maps to the kernel, and converts their keys and values between text and bytes. Pure.

import { type Family, formatIp, hostPort, maskBytes, parseIp } from '../../../lib/ip.ts'
import { protocolNumbers, protocolOfNumber } from '../../../sys/ip-numbers.ts'
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

type Part = 'address' | 'protocol' | 'port' | 'slot' | 'range'

interface Layout {
  readonly key: readonly Part[]
  /** Absent for a set; a map has a value. */
  readonly value?: 'verdict' | 'endpoint'
}

const layouts: Readonly<Record<NftSetShape, Layout>> = {
  address: { key: ['address'] },
  affinity: { key: ['address'] },
  'address . address . protocol . port': { key: ['address', 'address', 'protocol', 'port'] },
  'address . protocol . port': { key: ['address', 'protocol', 'port'] },
  'address . protocol . port . range': { key: ['address', 'protocol', 'port', 'range'] },
  'address . protocol . port : verdict': { key: ['address', 'protocol', 'port'], value: 'verdict' },
  'protocol . port : verdict': { key: ['protocol', 'port'], value: 'verdict' },
  'address . protocol . port . slot : address . port': {
    key: ['address', 'protocol', 'port', 'slot'],
    value: 'endpoint',
  },
  'protocol . port . slot : address . port': { key: ['protocol', 'port', 'slot'], value: 'endpoint' },
}

/** Describes a set to the kernel. With `counting` every slot counts the packets that find it. Slots are declared by `typeof`: otherwise nft could print the map but not read it back. */
export function declareSet(set: NftSetSpec, family: Family, counting: boolean) {
  const { key, value } = layouts[set.shape]
  const daddr = family === 4 ? 'ip daddr' : 'ip6 daddr'
  const fields: Readonly<Record<Part, Field>> = {
    address: daddr,
    range: family === 4 ? 'ip saddr' : 'ip6 saddr',
    protocol: 'meta l4proto',
    port: 'th dport',
    slot: { slots: 5 },
  }
  const hasRanges = key.includes('range')
  const { fieldLengths, ...described } = describeSet({
    key: key.map((part) => fields[part]),
    ...(value === undefined ? {} : { data: value === 'verdict' ? value : [daddr, 'th dport' as const] }),
    ...(set.comment === '' ? {} : { comment: set.comment }),
    byTypeof: key.includes('slot'),
  })
  const isAffinity = set.shape === 'affinity'
  const flags =
    (hasRanges ? SET_INTERVAL | SET_CONCATENATION : 0) |
    (value === undefined ? 0 : SET_MAP) |
    (isAffinity ? SET_TIMEOUT | SET_DYNAMIC : 0)
  return {
    ...described,
    flags,
    ...(counting && value === 'endpoint' ? { counter: true } : {}),
    ...(hasRanges ? { fieldLengths } : {}),
    // There is no size: the kernel limits a set that rules fill to 65,535 by itself, but reserves a megabyte for a set that states a size.
    ...(isAffinity ? { timeoutMs: (set.timeoutSeconds ?? 0) * 1000 } : {}),
  }
}

/** Converts the keys and values of one shape of set. A key is text such as `10.96.0.1 tcp 443 3`, an endpoint is `10.0.0.1:80`. */
export class SetCodec {
  readonly family: Family
  readonly value: 'verdict' | 'endpoint' | undefined
  readonly keyLength: number
  readonly hasRange: boolean
  readonly #parts: readonly Part[]
  /** The length of an address. */
  readonly #width: number
  /** Holds an endpoint while it is written. */
  readonly #text = Buffer.alloc(endpointChars)

  constructor(shape: NftSetShape, family: Family) {
    const { key, value } = layouts[shape]
    this.family = family
    this.value = value
    this.hasRange = key.includes('range')
    this.#parts = key
    this.#width = family === 4 ? 4 : 16
    this.keyLength = key.reduce((sum, part) => sum + this.#lengthOf(part), 0)
  }

  get endpointLength(): number {
    return this.#width + 4
  }

  /** Writes a key; for a range its first key, or its last one. A slot that the text does not name is not written. */
  writeKey(text: string, into: Buffer, edge: 'first' | 'last' = 'first'): void {
    let at = 0
    let start = 0
    for (const part of this.#parts) {
      if (part === 'slot' && start > text.length) return
      const space = text.indexOf(' ', start)
      const stop = space < 0 ? text.length : space
      switch (part) {
        case 'address':
          this.#writeAddress(text, start, into, at)
          break
        case 'range':
          into.set(rangeEdge(text.slice(start, stop), edge), at)
          break
        case 'protocol':
          into[at] = protocolAt(text, start)
          break
        case 'port':
          writePort(numberAt(text, start, stop), into, at)
          break
        case 'slot':
          this.writeSlot(numberAt(text, start, stop), into)
          break
      }
      at += this.#lengthOf(part)
      start = stop + 1
    }
  }

  /** Writes the slot, which is the last part of the key of an endpoint map. */
  writeSlot(slot: number, into: Buffer): void {
    const at = this.keyLength - 4
    for (let i = 0; i < 4; i++) into[littleEndian ? at + i : at + 3 - i] = slot >>> (8 * i)
  }

  /** Reads a key; undefined if the bytes are not a key of this shape. `last` is the last key of a range. A slot is read by `readSlot`. */
  readKey(bytes: Buffer, last: Buffer = bytes): string | undefined {
    if (bytes.length !== this.keyLength) return undefined
    const words: string[] = []
    let at = 0
    for (const part of this.#parts) {
      if (part === 'slot') break
      const end = at + this.#lengthOf(part)
      const word =
        part === 'range' ? readRange(bytes.subarray(at, end), last.subarray(at, end)) : this.#readWord(part, bytes, at)
      if (word === undefined) return undefined
      words.push(word)
      at = end
    }
    return words.join(' ')
  }

  /** Reads the slot of the key that begins at `start`. */
  readSlot(bytes: Buffer, start = 0): number {
    const at = start + this.keyLength - 4
    return littleEndian ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at)
  }

  writeEndpoint(text: string, into: Buffer): void {
    // IPv6 addresses are in brackets.
    const stop = this.family === 4 ? this.#writeAddress(text, 0, into, 0) : this.#writeAddress(text, 1, into, 0) + 1
    writePort(numberAt(text, stop + 1, text.length), into, this.#width)
  }

  readEndpoint(bytes: Buffer, at = 0, end = bytes.length): string | undefined {
    const width = this.#width
    if (end - at < width + 2) return undefined
    const port = bytes.readUInt16BE(at + width)
    return this.family === 4 ? this.#formatEndpoint(bytes, at, port) : hostPort(this.#readAddress(bytes, at), port)
  }

  /** Makes one flat string without strings for its parts, because after a restart there is one for every slot. */
  #formatEndpoint(bytes: Buffer, at: number, port: number): string {
    const text = this.#text
    let length = 0
    for (let i = 0; i < 4; i++) {
      length = writeDecimal(bytes[at + i] as number, text, length)
      text[length++] = i < 3 ? dot : colon
    }
    return text.toString('latin1', 0, writeDecimal(port, text, length))
  }

  #lengthOf(part: Part): number {
    return part === 'address' || part === 'range' ? this.#width : 4
  }

  /** Returns the position after the address in the text. */
  #writeAddress(text: string, start: number, into: Buffer, at: number): number {
    if (this.family === 4) return writeIpv4(text, start, into, at)
    let stop = start
    while (stop < text.length && text[stop] !== ' ' && text[stop] !== ']') stop++
    const bytes = parseIp(text.slice(start, stop))
    if (bytes?.length !== 16) throw new RangeError(`${text.slice(start, stop)} is not a valid IPv6 address`)
    into.set(bytes, at)
    return stop
  }

  #readWord(part: 'address' | 'protocol' | 'port', bytes: Buffer, at: number): string {
    if (part === 'address') return this.#readAddress(bytes, at)
    if (part === 'port') return String(bytes.readUInt16BE(at))
    const number = bytes[at] as number
    return protocolOfNumber(number) ?? String(number)
  }

  #readAddress(bytes: Buffer, at: number): string {
    return this.family === 4
      ? `${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`
      : formatIp(bytes.subarray(at, at + 16))
  }
}

const [dot, colon, zero, nine] = [0x2e, 0x3a, 0x30, 0x39]

/** `255.255.255.255:65535` is the longest. */
const endpointChars = 21

/** Writes a number below 100,000. Returns the position after it. */
function writeDecimal(value: number, into: Buffer, at: number): number {
  let next = at
  for (let unit = 10_000; unit > 1; unit = (unit / 10) | 0) {
    if (value >= unit) into[next++] = zero + (((value / unit) | 0) % 10)
  }
  into[next++] = zero + (value % 10)
  return next
}

/** Parses digit by digit, because half of all that is sent are IPv4 addresses. Returns the position after the address in the text. */
function writeIpv4(text: string, start: number, into: Buffer, at: number): number {
  let byte = 0
  let next = at
  let i = start
  for (; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === dot) {
      into[next++] = byte
      byte = 0
    } else if (code >= zero && code <= nine) byte = byte * 10 + code - zero
    else break
  }
  into[next] = byte
  if (next !== at + 3) throw new RangeError(`${text.slice(start, i)} is not a valid IPv4 address`)
  return i
}

/** The first letter distinguishes the protocols. */
function protocolAt(text: string, at: number): number {
  const letter = text[at]
  if (letter === 't') return protocolNumbers.tcp
  return letter === 'u' ? protocolNumbers.udp : protocolNumbers.sctp
}

/** Parses a number without a string of its own; NaN if the text is not a number. */
function numberAt(text: string, start: number, stop: number): number {
  let value = start < stop ? 0 : Number.NaN
  for (let i = start; i < stop; i++) {
    const code = text.charCodeAt(i)
    value = code >= zero && code <= nine ? value * 10 + code - zero : Number.NaN
  }
  return value
}

function writePort(port: number, into: Buffer, at: number): void {
  if (!(port > 0 && port < 0x10000)) throw new RangeError(`${port} is not a valid port`)
  into[at] = port >> 8
  into[at + 1] = port
}

function rangeEdge(cidr: string, edge: 'first' | 'last'): Uint8Array {
  const slash = cidr.indexOf('/')
  const bits = Number(cidr.slice(slash + 1))
  const address = parseIp(cidr.slice(0, slash))
  if (address === undefined) throw new RangeError(`${cidr} is not a valid CIDR`)
  const first = maskBytes(address, bits)
  return edge === 'first' ? first : first.map((byte, i) => byte | (0xff >> Math.min(8, Math.max(0, bits - 8 * i))))
}

/** Undefined if the range is not a CIDR. */
function readRange(first: Buffer, last: Buffer): string | undefined {
  let bits = 0
  for (let i = 0; i < first.length; i++) {
    const differing = Math.clz32((first[i] as number) ^ (last[i] as number)) - 24
    bits += differing
    if (differing < 8) break
  }
  const text = `${formatIp(first)}/${bits}`
  return Buffer.from(rangeEdge(text, 'last')).equals(last) ? text : undefined
}
