// Cuts parts of a byte stream into messages: lines of text, or frames that begin with their length. Each keeps the beginning of a message
// whose end has not come yet.

import { ProxyError } from '../lib/errors.ts'

export interface MessageCutter<M> {
  /** Adds the messages that end in this part to the list. Throws a ProxyError if a message is too long. */
  cut(part: Buffer, messages: M[]): void
}

const newline = 10

export class LineCutter implements MessageCutter<string> {
  readonly #maxBytes: number
  #partial: Buffer[] = []
  #partialBytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  cut(part: Buffer, lines: string[]): void {
    let start = 0
    for (let end = part.indexOf(newline); end >= 0; end = part.indexOf(newline, start)) {
      const line = this.#partialBytes === 0 ? part.toString('utf8', start, end) : this.#join(part.subarray(start, end))
      start = end + 1
      if (line !== '') lines.push(line)
    }
    if (start === part.length) return
    this.#partial.push(part.subarray(start))
    this.#partialBytes += part.length - start
    if (this.#partialBytes > this.#maxBytes) throw tooLong(this.#maxBytes)
  }

  #join(last: Buffer): string {
    const line = Buffer.concat([...this.#partial, last]).toString('utf8')
    this.#partial = []
    this.#partialBytes = 0
    return line
  }
}

/** Bytes of the length before each frame. */
const headerBytes = 4

export class FrameCutter implements MessageCutter<Buffer> {
  readonly #maxBytes: number
  #partial: Buffer[] = []
  #partialBytes = 0
  /** Bytes that the next message needs, as far as they are known. */
  #neededBytes = headerBytes

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  cut(part: Buffer, frames: Buffer[]): void {
    this.#partial.push(part)
    this.#partialBytes += part.length
    if (this.#partialBytes < this.#neededBytes) return
    const bytes = this.#partial.length === 1 ? part : Buffer.concat(this.#partial)
    const end = this.#cutWhole(bytes, frames)
    this.#partial = end === bytes.length ? [] : [bytes.subarray(end)]
    this.#partialBytes = bytes.length - end
  }

  /** Returns the index of the first byte that belongs to no whole frame. */
  #cutWhole(bytes: Buffer, frames: Buffer[]): number {
    let at = 0
    while (bytes.length - at >= headerBytes) {
      const length = bytes.readUInt32BE(at)
      if (length > this.#maxBytes) throw tooLong(this.#maxBytes)
      const end = at + headerBytes + length
      if (end > bytes.length) {
        this.#neededBytes = headerBytes + length
        return at
      }
      if (length > 0) frames.push(bytes.subarray(at + headerBytes, end))
      at = end
    }
    this.#neededBytes = headerBytes
    return at
  }
}

const tooLong = (maxBytes: number): ProxyError =>
  new ProxyError('line-too-long', `a message of the stream is longer than ${maxBytes} bytes`)
