// Encodes and decodes the frames of RFC 6455, as a client: it masks what it sends, and expects nothing masked. Pure.

import { ProxyError } from '../../lib/errors.ts'

export const opcodes = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

export interface Frame {
  readonly opcode: number
  readonly isLast: boolean
  readonly payload: Buffer
}

/** The API server sends frames of at most 32 KB. */
const maxPayload = 1 << 20

/** `mask` has four bytes, which a client must choose at random for each frame. */
export function encodeFrame(opcode: number, payload: Uint8Array, mask: Uint8Array): Buffer {
  const { length } = payload
  const head = Buffer.alloc(headLength(length) + 4)
  head[0] = 0x80 | opcode
  if (length < 126) head[1] = 0x80 | length
  else if (length < 1 << 16) {
    head[1] = 0x80 | 126
    head.writeUInt16BE(length, 2)
  } else {
    head[1] = 0x80 | 127
    head.writeBigUInt64BE(BigInt(length), 2)
  }
  head.set(mask, head.length - 4)
  const masked = Buffer.allocUnsafe(length)
  for (let i = 0; i < length; i++) masked[i] = (payload[i] as number) ^ (mask[i & 3] as number)
  return Buffer.concat([head, masked])
}

function headLength(payloadLength: number): number {
  if (payloadLength < 126) return 2
  return payloadLength < 1 << 16 ? 4 : 10
}

/** Cuts the bytes of a connection into frames. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0)

  /** Returns the frames that are complete now. Throws a ProxyError 'bad-response' if the bytes are not frames of a server. */
  read(bytes: Buffer): readonly Frame[] {
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes])
    const frames: Frame[] = []
    for (;;) {
      const size = measure(this.#rest)
      if (size === undefined || this.#rest.length < size.head + size.payload) return frames
      const first = this.#rest[0] as number
      const payload = this.#rest.subarray(size.head, size.head + size.payload)
      frames.push({ opcode: first & 0x0f, isLast: (first & 0x80) !== 0, payload })
      this.#rest = this.#rest.subarray(size.head + size.payload)
    }
  }
}

/** Returns the sizes of the first frame; undefined if its head is not complete. */
function measure(bytes: Buffer): { readonly head: number; readonly payload: number } | undefined {
  const [first, second] = bytes
  if (first === undefined || second === undefined) return undefined
  if ((first & 0x70) !== 0) throw malformed('it uses an extension that was not asked for')
  if ((second & 0x80) !== 0) throw malformed('it is masked')
  const short = second & 0x7f
  if (short < 126) return { head: 2, payload: short }
  const head = short === 126 ? 4 : 10
  if (bytes.length < head) return undefined
  const payload = short === 126 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2))
  if (payload > maxPayload) throw malformed(`it has ${payload} bytes`)
  return { head, payload }
}

const malformed = (why: string): ProxyError =>
  new ProxyError('bad-response', `a WebSocket frame cannot be read: ${why}`)
