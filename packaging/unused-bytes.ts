// Clears bytes of a snapshot that mean nothing and differ, so that two builds of one commit give the same bytes.
//
// 1. Small typed arrays have their bytes on the heap of V8, in an array whose size is a multiple of a word. V8 14.6 does not set the bytes after the
//    end: after a garbage collection the remains of addresses are there, which differ in every process.
// 2. In a weak map all of whose keys are gone, the values are holes or not, depending on the garbage collection that found a key gone.
//
// A serialized object is a row of constants, each one byte, and of words: the number of words, and as many words. A small integer is in the
// upper half of its word. The heap begins with the number of contexts, a flag, and the Adler-32 sum, from 0, of what follows it.

const checksumAt = 8
const contentAt = 12

/** The constant for arrays of bytes, which is the tenth of V8's list. */
const byteArray = 0x49
/** Stands for one word; the next number stands for two, and so on. */
const oneWord = 0x60
const wordBytes = 8
/** Larger typed arrays have their bytes outside of the heap. */
const maxLength = 64

/** Changes the heap in place. Throws if its sum is not the expected one. */
export function clearUnusedBytes(heap: Buffer): void {
  if (heap.readUInt32LE(checksumAt) !== adler32(heap.subarray(contentAt))) {
    throw new Error('the heap of the snapshot does not have the expected sum')
  }
  clearArrays(heap)
  clearWeakMaps(heap)
  heap.writeUInt32LE(adler32(heap.subarray(contentAt)), checksumAt)
}

function clearArrays(heap: Buffer): void {
  for (let at = heap.indexOf(byteArray); at >= 0 && at + 10 < heap.length; at = heap.indexOf(byteArray, at + 1)) {
    const words = (heap[at + 1] as number) - oneWord + 1
    const length = heap.readUInt32LE(at + 6)
    const isArray = heap.readUInt32LE(at + 2) === 0 && length > 0 && length <= maxLength
    if (!isArray || words !== 1 + Math.ceil(length / wordBytes)) continue
    const bytesAt = at + 2 + wordBytes
    heap.fill(0, bytesAt + length, at + 2 + words * wordBytes)
  }
}

/** Four words: the length of the table, the numbers of its elements and of those that are gone, and its capacity. */
const fourWords = oneWord + 3
const headBytes = 1 + 4 * wordBytes
/** The constants of V8 that have one byte. */
const [firstConstant, lastConstant] = [0x40, 0x5f]

/** Each value of a table without elements becomes what its key is: a hole, or nothing. */
function clearWeakMaps(heap: Buffer): void {
  const last = heap.length - headBytes
  for (let at = heap.indexOf(fourWords); at >= 0 && at < last; at = heap.indexOf(fourWords, at + 1)) {
    const [length, elements, gone, capacity] = [0, 1, 2, 3].map((word) => readSmall(heap, at + 1 + word * wordBytes))
    if (elements !== 0 || gone === 0 || capacity === undefined || length !== 3 + 2 * capacity) continue
    const table = heap.subarray(at + headBytes, at + headBytes + 2 * capacity)
    if (!table.every((constant) => constant >= firstConstant && constant <= lastConstant)) continue
    for (let entry = 0; entry < table.length; entry += 2) table[entry + 1] = table[entry] as number
  }
}

/** Undefined if the word is not a small integer that is at least 0. */
function readSmall(heap: Buffer, at: number): number | undefined {
  const value = heap.readInt32LE(at + 4)
  return heap.readInt32LE(at) === 0 && value >= 0 ? value : undefined
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
