// Writes netlink messages into one growing buffer, with byte stores only: nothing is allocated per attribute. Pure.

import { align4, HEADER_LENGTH, littleEndian, NLA_F_NESTED, NLM_F_ACK } from './message.ts'

export class MessageWriter {
  /** The first `length` bytes are written. */
  bytes: Buffer
  length = 0
  /** The sequence number of the next message. `clear` does not reset it, so that late answers do not match current messages. */
  sequence: number
  /** The number of messages written since `clear`. */
  count = 0
  #message = 0

  constructor(capacity = 4096, sequence = 1) {
    this.bytes = Buffer.allocUnsafe(capacity)
    this.sequence = sequence
  }

  clear(): void {
    this.length = 0
    this.count = 0
  }

  /** Makes room for `more` bytes. Callers that write into `bytes` call it before every write. */
  reserve(more: number): void {
    if (this.length + more > this.bytes.length) this.#grow(more)
  }

  #grow(more: number): void {
    let capacity = this.bytes.length * 2
    while (capacity < this.length + more) capacity *= 2
    const bytes = Buffer.allocUnsafe(capacity)
    this.bytes.copy(bytes, 0, 0, this.length)
    this.bytes = bytes
  }

  /** Starts a message; returns its sequence number. */
  begin(type: number, flags: number): number {
    this.reserve(HEADER_LENGTH)
    const at = this.length
    this.#message = at
    const sequence = this.sequence
    this.sequence = sequence === 0xffffffff ? 1 : sequence + 1
    this.count++
    this.length = at + HEADER_LENGTH
    this.#store16(at + 4, type)
    this.#store16(at + 6, flags)
    this.#store32(at + 8, sequence)
    this.#store32(at + 12, 0)
    return sequence
  }

  end(): void {
    this.#store32(this.#message, this.length - this.#message)
  }

  /** Requests an answer to the last message. Returns its sequence number. */
  acknowledge(): number {
    if (this.count === 0) throw new RangeError('there is no message to acknowledge')
    const at = this.#message + (littleEndian ? 6 : 7)
    this.bytes[at] = (this.bytes[at] as number) | NLM_F_ACK
    return this.sequence === 1 ? 0xffffffff : this.sequence - 1
  }

  /** Writes netfilter's header, which follows that of netlink. */
  netfilter(family: number, resource = 0): void {
    this.reserve(4)
    const { bytes, length: at } = this
    bytes[at] = family
    bytes[at + 1] = 0
    bytes[at + 2] = resource >> 8
    bytes[at + 3] = resource
    this.length = at + 4
  }

  /** Writes the header bytes of other families, padded to 4. */
  header(raw: Uint8Array): void {
    this.#pad(raw)
  }

  /** Starts an attribute that holds attributes. `close` needs the returned position. */
  open(type: number): number {
    this.reserve(4)
    const at = this.length
    this.#store16(at + 2, type | NLA_F_NESTED)
    this.length = at + 4
    return at
  }

  close(at: number): void {
    const length = this.length - at
    if (length > 0xffff) throw new RangeError(`a netlink attribute of ${length} bytes does not fit: the most is 65535`)
    this.#store16(at, length)
  }

  u8(type: number, value: number): void {
    const at = this.#attribute(type, 1)
    this.bytes[at] = value
    this.bytes[at + 1] = 0
    this.bytes[at + 2] = 0
    this.bytes[at + 3] = 0
  }

  u16(type: number, value: number): void {
    const at = this.#attribute(type, 2)
    this.bytes[at] = value >> 8
    this.bytes[at + 1] = value
    this.bytes[at + 2] = 0
    this.bytes[at + 3] = 0
  }

  /** Writes a big-endian number; a negative one as two's complement. */
  u32(type: number, value: number): void {
    const at = this.#attribute(type, 4)
    this.bytes[at] = value >>> 24
    this.bytes[at + 1] = value >>> 16
    this.bytes[at + 2] = value >>> 8
    this.bytes[at + 3] = value
  }

  u64(type: number, value: number): void {
    const at = this.#attribute(type, 8)
    this.bytes.writeBigUInt64BE(BigInt(value), at)
  }

  hostU32(type: number, value: number): void {
    this.#store32(this.#attribute(type, 4), value)
  }

  hostU16(type: number, value: number): void {
    const at = this.#attribute(type, 2)
    this.#store16(at, value)
    this.bytes[at + 2] = 0
    this.bytes[at + 3] = 0
  }

  /** Writes a text with a NUL at its end, which the kernel requires. */
  text(type: number, value: string): void {
    const length = Buffer.byteLength(value)
    const at = this.#attribute(type, length + 1)
    if (length === value.length) for (let i = 0; i < length; i++) this.bytes[at + i] = value.charCodeAt(i)
    else this.bytes.write(value, at)
    for (let i = at + length; i < this.length; i++) this.bytes[i] = 0
  }

  /** Writes attributes that are encoded already. */
  verbatim(attributes: Uint8Array): void {
    this.reserve(attributes.length)
    this.bytes.set(attributes, this.length)
    this.length += attributes.length
  }

  raw(type: number, value: Uint8Array): void {
    this.reserve(4 + align4(value.length))
    const at = this.length
    this.#store16(at, value.length + 4)
    this.#store16(at + 2, type)
    this.length = at + 4
    this.#pad(value)
  }

  /** Returns a copy of the written bytes. */
  toBytes(): Buffer {
    return Buffer.from(this.bytes.subarray(0, this.length))
  }

  #attribute(type: number, length: number): number {
    const padded = align4(length)
    this.reserve(4 + padded)
    const at = this.length
    this.#store16(at, length + 4)
    this.#store16(at + 2, type)
    this.length = at + 4 + padded
    return at + 4
  }

  #pad(raw: Uint8Array): void {
    const padded = align4(raw.length)
    this.reserve(padded)
    const { bytes, length: at } = this
    for (let i = 0; i < raw.length; i++) bytes[at + i] = raw[i] as number
    for (let i = raw.length; i < padded; i++) bytes[at + i] = 0
    this.length = at + padded
  }

  #store16(at: number, value: number): void {
    const bytes = this.bytes
    bytes[at] = littleEndian ? value : value >> 8
    bytes[at + 1] = littleEndian ? value >> 8 : value
  }

  #store32(at: number, value: number): void {
    const bytes = this.bytes
    bytes[at] = littleEndian ? value : value >>> 24
    bytes[at + 1] = littleEndian ? value >>> 8 : value >>> 16
    bytes[at + 2] = littleEndian ? value >>> 16 : value >>> 8
    bytes[at + 3] = littleEndian ? value >>> 24 : value
  }
}

/** The length in bytes of the header that follows the netlink header in generic netlink. */
export const genericHeader = 4

export function writeGenericHeader(writer: MessageWriter, command: number, version: number): void {
  writer.reserve(genericHeader)
  const { bytes, length: at } = writer
  bytes[at] = command
  bytes[at + 1] = version
  bytes[at + 2] = 0
  bytes[at + 3] = 0
  writer.length = at + genericHeader
}
