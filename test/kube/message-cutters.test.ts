import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { FrameCutter, LineCutter, type MessageCutter } from '../../src/kube/message-cutters.ts'

/** Puts the length before a message, as in the stream of a watch. */
function encodeFrame(message: Buffer): Buffer {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(message.length)
  return Buffer.concat([length, message])
}

/** Cuts the bytes in parts of the given sizes, which repeat. */
function cutInParts<M>(cutter: MessageCutter<M>, bytes: Buffer, sizes: readonly number[]): M[] {
  const messages: M[] = []
  for (let at = 0, i = 0; at < bytes.length; i++) {
    const size = sizes[i % sizes.length] ?? 1
    cutter.cut(bytes.subarray(at, at + size), messages)
    at += size
  }
  return messages
}

const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 1, maxLength: 5 })

describe('message cutters', () => {
  it('find every frame, however the stream is divided, and drop half a frame at its end', () => {
    const frame = fc.uint8Array({ minLength: 1, maxLength: 40 }).map((bytes) => Buffer.from(bytes))
    fc.assert(
      fc.property(fc.array(frame), sizes, fc.nat({ max: 3 }), (frames, parts, rest) => {
        const bytes = Buffer.concat([...frames.map(encodeFrame), Buffer.alloc(rest)])
        expect(cutInParts(new FrameCutter(100), bytes, parts)).toEqual(frames)
      }),
    )
  })

  it('find every line, however the stream is divided, and drop half a line at its end', () => {
    const line = fc.string({ minLength: 1 }).filter((text) => !text.includes('\n'))
    fc.assert(
      fc.property(fc.array(line), sizes, (lines, parts) => {
        const bytes = Buffer.from(`${lines.map((text) => `${text}\n`).join('')}half`)
        expect(cutInParts(new LineCutter(1000), bytes, parts)).toEqual(lines)
      }),
    )
  })

  it('refuse a message that is too long before it has come', () => {
    expect(() => new FrameCutter(100).cut(Buffer.from([0, 0, 0, 101]), [])).toThrow('longer than 100 bytes')
    expect(() => new LineCutter(100).cut(Buffer.alloc(101, 'x'), [])).toThrow('longer than 100 bytes')
  })
})
