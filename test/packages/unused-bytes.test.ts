// Checks what is cleared in the heap of a snapshot, with a heap of the same form.

import { describe, expect, it } from 'vitest'
import { clearUnusedBytes } from '../../packaging/unused-bytes.ts'

const small = (value: number): Buffer => Buffer.from(Uint32Array.of(0, value).buffer)

/** Adler-32 from 0, in the simplest way. */
function sum(bytes: Buffer): number {
  let [low, high] = [0, 0]
  for (const byte of bytes) {
    low = (low + byte) % 65_521
    high = (high + low) % 65_521
  }
  return high * 65_536 + low
}

function makeHeap(...parts: readonly Buffer[]): Buffer {
  const content = Buffer.concat([Buffer.alloc(7000, 3), ...parts, Buffer.alloc(50, 5)])
  const head = Buffer.alloc(12)
  head.writeUInt32LE(sum(content), 8)
  return Buffer.concat([head, content])
}

const arrayOf = (length: number, bytes: readonly number[]): Buffer =>
  Buffer.concat([Buffer.of(0x49, 0x60 + bytes.length / 8), small(length), Buffer.from(bytes)])
const tableOf = (elements: number, gone: number, constants: readonly number[]): Buffer =>
  Buffer.concat([
    Buffer.of(0x63),
    ...[3 + constants.length, elements, gone, constants.length / 2].map(small),
    Buffer.from(constants),
  ])

describe('the heap of a snapshot', () => {
  it('loses the bytes after the end of small arrays', () => {
    const heap = makeHeap(arrayOf(1, [2, 9, 9, 9, 9, 9, 0, 0]), arrayOf(8, [1, 2, 3, 4, 5, 6, 7, 8]))
    clearUnusedBytes(heap)
    expect(heap).toEqual(makeHeap(arrayOf(1, [2, 0, 0, 0, 0, 0, 0, 0]), arrayOf(8, [1, 2, 3, 4, 5, 6, 7, 8])))
  })

  it('loses the values of weak maps whose keys are all gone', () => {
    const live = tableOf(1, 1, [0x40, 0x41, 0x41, 0x40])
    const heap = makeHeap(tableOf(0, 2, [0x40, 0x41, 0x41, 0x41]), live)
    clearUnusedBytes(heap)
    expect(heap).toEqual(makeHeap(tableOf(0, 2, [0x40, 0x40, 0x41, 0x41]), live))
  })

  it('stays as it is where words only look like the length of an array', () => {
    const heap = makeHeap(arrayOf(20, [1, 2, 3, 4, 5, 6, 7, 8]), tableOf(0, 1, [0x40, 0x41, 0x20, 0x41]))
    const before = Buffer.from(heap)
    clearUnusedBytes(heap)
    expect(heap).toEqual(before)
  })

  it('is refused if its sum is another one', () => {
    const heap = makeHeap(arrayOf(1, [2, 9, 9, 9, 9, 9, 0, 0]))
    heap[heap.length - 1] = 0
    expect(() => clearUnusedBytes(heap)).toThrow('does not have the expected sum')
  })
})
