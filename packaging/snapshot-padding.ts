// Clears bytes of a snapshot that V8 leaves as they were in memory, so that two builds of one commit give the same bytes.
//
// V8 14.6 does not set the padding of some objects. What is there after a garbage collection is the remains of addresses, which differ in
// every process. The serialized form of such an object has two words of raw data: a small integer, and one byte that is used and seven that
// are not. The heap begins with the number of contexts, a flag, and the Adler-32 sum, from 0, of what follows it.

const checksumAt = 8
const contentAt = 12

/** Two words of raw data, the first of which is the small integer 1, after the bytes of a field. */
const before = Buffer.from([0x49, 0x61, 0, 0, 0, 0, 1, 0, 0, 0])
/** One word of raw data, which is 0, and a constant of V8. */
const after = Buffer.from([0x60, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x30])
const wordBytes = 8

/** Changes the heap in place. Throws if its sum is not the expected one. */
export function clearPadding(heap: Buffer): void {
  if (heap.readUInt32LE(checksumAt) !== adler32(heap.subarray(contentAt))) {
    throw new Error('the heap of the snapshot does not have the expected sum')
  }
  for (let at = heap.indexOf(before); at >= 0; at = heap.indexOf(before, at + 1)) {
    const word = at + before.length
    const next = heap.subarray(word + wordBytes, word + wordBytes + after.length)
    if (next.equals(after)) heap.fill(0, word + 1, word + wordBytes)
  }
  heap.writeUInt32LE(adler32(heap.subarray(contentAt)), checksumAt)
}

const modulus = 65_521
/** Sums of as many bytes stay exact. */
const blockBytes = 5_552

function adler32(bytes: Buffer): number {
  let low = 0
  let high = 0
  for (let start = 0; start < bytes.length; start += blockBytes) {
    for (const byte of bytes.subarray(start, start + blockBytes)) {
      low += byte
      high += low
    }
    low %= modulus
    high %= modulus
  }
  return ((high << 16) | low) >>> 0
}
