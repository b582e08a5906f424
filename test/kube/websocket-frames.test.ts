import { describe, expect, it } from 'vitest'
import { encodeFrame, type Frame, FrameReader } from '../../src/kube/streams/websocket-frames.ts'

const mask = Buffer.of(1, 2, 3, 4)

/** The frame as a server would send it: without its mask. */
function unmask(frame: Buffer, headLength: number): Buffer {
  const head = Buffer.from(frame.subarray(0, headLength))
  head[1] = (head[1] as number) & 0x7f
  const payload = frame.subarray(headLength + 4).map((byte, i) => byte ^ (mask[i & 3] as number))
  return Buffer.concat([head, payload])
}

describe('WebSocket frames', () => {
  it('masks as in RFC 6455, 5.7', () => {
    const frame = encodeFrame(1, Buffer.from('Hello'), Buffer.of(0x37, 0xfa, 0x21, 0x3d))
    expect(frame.toString('hex')).toBe('818537fa213d7f9f4d5158')
  })

  it.each([
    [0, 2],
    [125, 2],
    [126, 4],
    [65_535, 4],
    [65_536, 10],
  ])('reads back a payload of %i bytes that arrives byte by byte or at once', (length, headLength) => {
    const payload = Buffer.alloc(length, 7)
    const bytes = unmask(encodeFrame(2, payload, mask), headLength)
    const isWhole = (frames: readonly Frame[]) => frames.length === 1 && frames[0]?.payload.equals(payload)
    expect(isWhole(new FrameReader().read(bytes))).toBe(true)
    const reader = new FrameReader()
    const ends = [1, 2, 5, 11, bytes.length]
    const frames = ends.flatMap((end, i) => reader.read(bytes.subarray(i === 0 ? 0 : ends[i - 1], end)))
    expect(isWhole(frames)).toBe(true)
    expect(frames[0]).toMatchObject({ opcode: 2, isLast: true })
  })

  it.each([
    ['masked', Buffer.of(0x82, 0x81, 1, 2, 3, 4, 5), 'it is masked'],
    ['compressed', Buffer.of(0xc2, 0x01, 5), 'an extension'],
    ['huge', Buffer.of(0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0), '4294967296 bytes'],
  ])('refuses a frame that is %s', (_, bytes, why) => {
    expect(() => new FrameReader().read(bytes)).toThrow(why)
  })
})
