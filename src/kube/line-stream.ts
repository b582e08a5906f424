// Cuts a byte stream into lines, with back-pressure: nothing more is read before the reader has dealt with the lines that are there.
//
// It uses the events of the stream, not `for await`: each promise of the stream costs as much as reading a change does, and a single change
// would pass through all of them.

import type { Readable } from 'node:stream'
import { ProxyError } from '../lib/errors.ts'
import { nextTurn } from '../lib/time.ts'

const newline = 10

/** Bytes that a reader deals with in a few milliseconds. After that many bytes the event loop gets a turn. */
export const bytesPerTurn = 64 << 10

interface LinesOptions {
  readonly maxBytes: number
  /** Called for each part that arrives. */
  readonly onHeard?: (() => void) | undefined
  /** Turns an error of the stream into the error that the reader gets. */
  readonly explain?: (error: unknown) => unknown
  /** Called once, when nothing more is read, for whatever reason. */
  readonly done?: () => void
}

export type LineBatches = AsyncIterableIterator<readonly string[]>

/** Returns batches of complete lines. Half a line at the end of the stream is dropped. */
export function readLines(stream: Readable, options: LinesOptions): LineBatches {
  return new LineReader(stream, options)
}

interface Waiter {
  resolve(result: IteratorResult<readonly string[], undefined>): void
  reject(error: unknown): void
}

/** Serves one caller, which asks for the next batch when it is done with the last. */
class LineReader implements LineBatches {
  readonly #stream: Readable
  readonly #options: LinesOptions
  #ready: string[] = []
  /** The beginning of a line whose end has not come yet. */
  #partial: Buffer[] = []
  #partialBytes = 0
  #sinceTurn = 0
  #waiter: Waiter | undefined
  #state: 'open' | 'ended' | 'failed' = 'open'
  #error: unknown

  constructor(stream: Readable, options: LinesOptions) {
    this.#stream = stream
    this.#options = options
    stream.on('data', (chunk: Buffer) => this.#append(chunk))
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

  #append(chunk: Buffer): void {
    this.#options.onHeard?.()
    let start = 0
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      const line =
        this.#partialBytes === 0 ? chunk.toString('utf8', start, end) : this.#joinPartial(chunk.subarray(start, end))
      start = end + 1
      if (line !== '') this.#ready.push(line)
    }
    if (start < chunk.length) {
      this.#partial.push(chunk.subarray(start))
      this.#partialBytes += chunk.length - start
      const { maxBytes } = this.#options
      if (this.#partialBytes > maxBytes) {
        this.#finish('failed', new ProxyError('line-too-long', `a line of the stream is longer than ${maxBytes} bytes`))
        return
      }
    }
    this.#sinceTurn += chunk.length
    this.#deliver()
    if (this.#ready.length === 0 && this.#sinceTurn < bytesPerTurn) return
    this.#stream.pause()
    if (this.#waiter !== undefined) this.#resume()
  }

  #joinPartial(last: Buffer): string {
    const line = Buffer.concat([...this.#partial, last]).toString('utf8')
    this.#partial = []
    this.#partialBytes = 0
    return line
  }

  /** Waits for a turn of the event loop if necessary: a stream that has more would be read on in the same turn, for megabytes. */
  #resume(): void {
    if (this.#sinceTurn < bytesPerTurn) {
      this.#stream.resume()
      return
    }
    this.#sinceTurn = 0
    void nextTurn().then(() => {
      if (this.#state === 'open') this.#stream.resume()
    })
  }

  /** Returns true if a caller was waiting and has got its answer. */
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
