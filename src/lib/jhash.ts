// The hash of the Linux kernel for short keys (jhash of include/linux/jhash.h), so that we know what a rule with jhash computes. Pure.
//
// The kernel reads words in the byte order of the machine. This is the result on little-endian machines, which all supported ones are.

const initial = 0xdeadbeef

const rotate = (word: number, bits: number): number => (word << bits) | (word >>> (32 - bits))

/** `key` has a multiple of four bytes. Returns an unsigned number of 32 bits. */
export function jhash(key: Uint8Array, seed: number): number {
  const view = new DataView(key.buffer, key.byteOffset, key.byteLength)
  let a = (initial + key.length + seed) | 0
  let b = a
  let c = a
  let at = 0
  let left = key.length
  for (; left > 12; left -= 12, at += 12) {
    a = (a + view.getUint32(at, true)) | 0
    b = (b + view.getUint32(at + 4, true)) | 0
    c = (c + view.getUint32(at + 8, true)) | 0
    a = ((a - c) | 0) ^ rotate(c, 4)
    c = (c + b) | 0
    b = ((b - a) | 0) ^ rotate(a, 6)
    a = (a + c) | 0
    c = ((c - b) | 0) ^ rotate(b, 8)
    b = (b + a) | 0
    a = ((a - c) | 0) ^ rotate(c, 16)
    c = (c + b) | 0
    b = ((b - a) | 0) ^ rotate(a, 19)
    a = (a + c) | 0
    c = ((c - b) | 0) ^ rotate(b, 4)
    b = (b + a) | 0
  }
  if (left === 0) return c >>> 0
  a = (a + view.getUint32(at, true)) | 0
  if (left > 4) b = (b + view.getUint32(at + 4, true)) | 0
  if (left > 8) c = (c + view.getUint32(at + 8, true)) | 0
  return finish(a, b, c)
}

function finish(first: number, second: number, third: number): number {
  let a = first
  let b = second
  let c = third
  c = ((c ^ b) - rotate(b, 14)) | 0
  a = ((a ^ c) - rotate(c, 11)) | 0
  b = ((b ^ a) - rotate(a, 25)) | 0
  c = ((c ^ b) - rotate(b, 16)) | 0
  a = ((a ^ c) - rotate(c, 4)) | 0
  b = ((b ^ a) - rotate(a, 14)) | 0
  c = ((c ^ b) - rotate(b, 24)) | 0
  return c >>> 0
}

/** Maps a hash to a number below `limit`, as the kernel does: by ranges, not by the remainder. */
export const scaleHash = (hash: number, limit: number): number => Math.floor((hash * limit) / 0x1_0000_0000)
