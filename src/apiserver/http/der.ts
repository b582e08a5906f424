// Writes DER: those parts of ASN.1 that a certificate needs. Pure.

const writeElement = (tag: number, content: Uint8Array): Buffer =>
  Buffer.concat([Buffer.from([tag]), writeLength(content.length), content])

function writeLength(size: number): Buffer {
  if (size < 0x80) return Buffer.from([size])
  const bytes: number[] = []
  for (let rest = size; rest > 0; rest >>= 8) bytes.unshift(rest & 0xff)
  return Buffer.from([0x80 | bytes.length, ...bytes])
}

export const sequence = (...parts: readonly Uint8Array[]): Buffer => writeElement(0x30, Buffer.concat(parts))
export const set = (...parts: readonly Uint8Array[]): Buffer => writeElement(0x31, Buffer.concat(parts))
export const octets = (content: Uint8Array): Buffer => writeElement(0x04, content)
export const utf8 = (text: string): Buffer => writeElement(0x0c, Buffer.from(text))
export const boolean = (value: boolean): Buffer => writeElement(0x01, Buffer.from([value ? 0xff : 0]))
/** The tag `[n]` around whole elements. */
export const explicit = (number: number, ...parts: readonly Uint8Array[]): Buffer =>
  writeElement(0xa0 | number, Buffer.concat(parts))
/** The tag `[n]` in place of a simple element's own tag. */
export const implicit = (number: number, content: Uint8Array): Buffer => writeElement(0x80 | number, content)

/** A bit string; `unused` is the number of unused bits in the last byte. */
export const bits = (content: Uint8Array, unused = 0): Buffer =>
  writeElement(0x03, Buffer.concat([Buffer.from([unused]), content]))

/** An unsigned integer from its bytes. */
export function integer(bytes: Uint8Array): Buffer {
  let start = 0
  while (start < bytes.length - 1 && bytes[start] === 0) start++
  const kept = Buffer.from(bytes.subarray(start))
  return writeElement(0x02, (kept[0] ?? 0) >= 0x80 ? Buffer.concat([Buffer.from([0]), kept]) : kept)
}

export function identifier(dotted: string): Buffer {
  const [first = 0, second = 0, ...rest] = dotted.split('.').map(Number)
  const bytes = [first * 40 + second]
  for (const part of rest) {
    const groups = [part & 0x7f]
    for (let left = part >> 7; left > 0; left >>= 7) groups.unshift((left & 0x7f) | 0x80)
    bytes.push(...groups)
  }
  return writeElement(0x06, Buffer.from(bytes))
}

/** UTCTime up to 2049 and GeneralizedTime after that, as RFC 5280 requires. */
export function time(unixMs: number): Buffer {
  const digits = new Date(unixMs).toISOString().replace(/[-:T]|\.\d+/g, '')
  return Number(digits.slice(0, 4)) < 2050
    ? writeElement(0x17, Buffer.from(digits.slice(2)))
    : writeElement(0x18, Buffer.from(digits))
}
