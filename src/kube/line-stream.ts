// Lines out of a byte stream, with back-pressure: no more is read before the lines that are there are dealt with.
//
// By events, not by `for await` over the stream: each of the stream's own promises costs as much as reading a change does, and a change
// that comes alone goes through all of them.

import type { Readable } from 'node:stream'
import { ProxyError } from '../lib/errors.ts'
import { nextTurn } from '../lib/time.ts'

const newline = 10

/** As much as its reader deals with in a few milliseconds; then everybody else of the process has a turn. */
export const turnBytes = 64 << 10

interface LinesOptions {
  readonly maxBytes: number
  /** What the reader is told when the stream breaks. */
  readonly explain?: (error: unknown) => unknown
  /** Once, when nothing more is read, for whatever reason. */
  readonly done?: () => void
}

export type LineBatches = AsyncIterableIterator<readonly string[]>

/** Batches of complete lines. What follows the last newline when the stream ends is half a line, and dropped. */
export function readLines(stream: Readable, options: LinesOptions): LineBatches {
  return new Lines(stream, options)
}

interface Waiter {
  resolve(result: IteratorResult<readonly string[], undefined>): void
  reject(error: unknown): void
}

/** For one reader that asks for the next batch when it is done with the last. */
class Lines implements LineBatches {
  readonly #stream: Readable
  readonly #options: LinesOptions
  #ready: string[] = []
  #held: Buffer[] = []
  #heldBytes = 0
  #sinceTurn = 0
  #waiter: Waiter | undefined
  #state: 'open' | 'ended' | 'failed' = 'open'
  #error: unknown

  constructor(stream: Readable, options: LinesOptions) {
    this.#stream = stream
    this.#options = options
    stream.on('data', (chunk: Buffer) => this.#take(chunk))
    stream.once('end', () => this.#finish('ended'))
    stream.once('error', (error) => this.#finish('failed', error))
    stream.once('close', () => this.#finish('failed', new Error('closed before its end')))
  }

  next(): Promise<IteratorResult<readonly string[], undefined>> {
    return new Promise((resolve, reject) => {
      this.#waiter = { resolve, reject }
      if (!this.#deliver() && this.#stream.isPaused()) this.#resume()
    })
  }

  async return(): Promise<IteratorReturnResult<undefined>> {
    this.#ready = []
    this.#finish('ended')
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  #take(chunk: Buffer): void {
    let start = 0
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      const line = this.#heldBytes === 0 ? chunk.toString('utf8', start, end) : this.#joined(chunk.subarray(start, end))
      start = end + 1
      if (line !== '') this.#ready.push(line)
    }
    if (start < chunk.length) {
      this.#held.push(chunk.subarray(start))
      this.#heldBytes += chunk.length - start
      const { maxBytes } = this.#options
      if (this.#heldBytes > maxBytes) {
        this.#finish('failed', new ProxyError('line-too-long', `a line of the stream is longer than ${maxBytes} bytes`))
        return
      }
    }
    this.#sinceTurn += chunk.length
    this.#deliver()
    if (this.#ready.length === 0 && this.#sinceTurn < turnBytes) return
    this.#stream.pause()
    if (this.#waiter !== undefined) this.#resume()
  }

  #joined(last: Buffer): string {
    const line = Buffer.concat([...this.#held, last]).toString('utf8')
    this.#held = []
    this.#heldBytes = 0
    return line
  }

  /** A stream that has more would be read on in the same turn of the event loop, megabytes of it. */
  #resume(): void {
    if (this.#sinceTurn < turnBytes) {
      this.#stream.resume()
      return
    }
    this.#sinceTurn = 0
    void nextTurn().then(() => {
      if (this.#state === 'open') this.#stream.resume()
    })
  }

  /** True if somebody waited and need not any more. */
  #deliver(): boolean {
    const waiter = this.#waiter
    if (waiter === undefined) return false
    if (this.#ready.length > 0) {
      const value = this.#ready
      this.#ready = []
      waiter.resolve({ done: false, value })
    } else if (this.#state === 'ended') waiter.resolve({ done: true, value: undefined })
    else if (this.#state === 'failed') waiter.reject(this.#error)
    else return false
    this.#waiter = undefined
    return true
  }

  #finish(state: 'ended' | 'failed', error?: unknown): void {
    if (this.#state !== 'open') return
    this.#state = state
    if (state === 'failed') this.#error = this.#options.explain === undefined ? error : this.#options.explain(error)
    this.#stream.destroy()
    this.#options.done?.()
    this.#deliver()
  }
}
