// Reads protobuf's wire format: tags, numbers and length-delimited fields, within the bounds of the bytes. Pure.

/** The wire types that are read; others can only be skipped. */
export const wireTypes = { varint: 0, fixed64: 1, delimited: 2, fixed32: 5 } as const

const lowBits = 0x7f
/** A varint of 64 bits has at most as many bytes. */
const maxVarintBytes = 10

/** A position in a message. Every method throws a SyntaxError instead of reading beyond `end`. */
export class WireCursor {
  readonly bytes: Buffer
  /** Index of the next byte. */
  at: number

  constructor(bytes: Buffer, at = 0) {
    this.bytes = bytes
    this.at = at
  }

  /** Reads a number of 64 bits with sign. Beyond 2^53 it is rounded. */
  readVarint(end: number): number {
    const first = this.bytes[this.at]
    if (first !== undefined && first <= lowBits && this.at < end) {
      this.at++
      return first
    }
    return this.#readLongVarint(end)
  }

  /** Collects 28, 28 and 8 bits: a sum over all 64 would lose the lowest bits of a negative number. */
  #readLongVarint(end: number): number {
    let low = 0
    let middle = 0
    let high = 0
    for (let i = 0; i < maxVarintBytes; i++) {
      const byte = this.bytes[this.at]
      if (byte === undefined || this.at >= end) throw new SyntaxError('a protobuf number is cut off')
      this.at++
      const bits = (byte & lowBits) << (7 * (i & 3))
      if (i < 4) low |= bits
      else if (i < 8) middle |= bits
      else high |= bits
      if (byte > lowBits) continue
      return ((high << 24) >> 24) * 2 ** 56 + middle * 2 ** 28 + low
    }
    throw new SyntaxError('a protobuf number is too long')
  }

  /** Reads the length of a field, and returns the index where the field ends. */
  readFieldEnd(end: number): number {
    const length = this.readVarint(end)
    if (length < 0 || this.at + length > end) throw new SyntaxError('a protobuf field is cut off')
    return this.at + length
  }

  readText(end: number): string {
    const stop = this.readFieldEnd(end)
    const start = this.at
    this.at = stop
    return start === stop ? '' : this.bytes.toString('utf8', start, stop)
  }

  /** True if the bytes from here to `stop` are those of `expected`. */
  matches(expected: Buffer, stop: number): boolean {
    if (stop - this.at !== expected.length) return false
    for (let i = 0; i < expected.length; i++) if (this.bytes[this.at + i] !== expected[i]) return false
    return true
  }

  skipField(wireType: number, end: number): void {
    if (wireType === wireTypes.varint) this.readVarint(end)
    else if (wireType === wireTypes.delimited) this.at = this.readFieldEnd(end)
    else if (wireType === wireTypes.fixed64) this.#advance(8, end)
    else if (wireType === wireTypes.fixed32) this.#advance(4, end)
    else throw new SyntaxError(`a protobuf field has the unknown wire type ${wireType}`)
  }

  #advance(count: number, end: number): void {
    if (this.at + count > end) throw new SyntaxError('a protobuf field is cut off')
    this.at += count
  }
}
