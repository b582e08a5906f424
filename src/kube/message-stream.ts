// Cuts a byte stream into messages, with back-pressure: no more than `bytesPerTurn` is read before the reader has dealt with the messages
// that are there. An API server sends each event as a part of its own, and a pause after each part would cost as much as reading the event.
//
// It uses the events of the stream, not `for await`: each promise of the stream costs as much as reading a change does, and a single change
// would pass through all of them.

import type { Readable } from 'node:stream'
import { nextTurn } from '../lib/time.ts'
import { FrameCutter, LineCutter, type MessageCutter } from './message-cutters.ts'

/** Bytes that a reader deals with in a few milliseconds. After that many bytes the event loop gets a turn. */
export const bytesPerTurn = 64 << 10

interface StreamOptions {
  /** The most bytes of one message. */
  readonly maxBytes: number
  /** Called for each part that arrives. */
  readonly onHeard?: (() => void) | undefined
  /** Turns an error of the stream into the error that the reader gets. */
  readonly explain?: (error: unknown) => unknown
  /** Called once, when nothing more is read, for whatever reason. */
  readonly done?: () => void
}

/** Lines as text, or frames as bytes. */
export type MessageBatches = AsyncIterableIterator<readonly (string | Buffer)[]>

/** Returns batches of complete lines. Half a line at the end of the stream is dropped. */
export const readLines = (stream: Readable, options: StreamOptions): AsyncIterableIterator<readonly string[]> =>
  new BatchReader(stream, new LineCutter(options.maxBytes), options)

/** Returns batches of frames, each of which begins with its length in four bytes. Half a frame at the end of the stream is dropped. */
export const readFrames = (stream: Readable, options: StreamOptions): AsyncIterableIterator<readonly Buffer[]> =>
  new BatchReader(stream, new FrameCutter(options.maxBytes), options)

interface Waiter<M> {
  resolve(result: IteratorResult<readonly M[], undefined>): void
  reject(error: unknown): void
}

/** Serves one caller, which asks for the next batch when it is done with the last. */
class BatchReader<M> implements AsyncIterableIterator<readonly M[]> {
  readonly #stream: Readable
  readonly #options: StreamOptions
  readonly #cutter: MessageCutter<M>
  #ready: M[] = []
  #sinceTurn = 0
  #waiter: Waiter<M> | undefined
  #state: 'open' | 'ended' | 'failed' = 'open'
  #error: unknown

  constructor(stream: Readable, cutter: MessageCutter<M>, options: StreamOptions) {
    this.#stream = stream
    this.#cutter = cutter
    this.#options = options
    stream.on('data', (chunk: Buffer) => this.#append(chunk))
    stream.once('end', () => this.#finish('ended'))
    stream.once('error', (error) => this.#finish('failed', error))
    stream.once('close', () => this.#finish('failed', new Error('closed before its end')))
  }

  next(): Promise<IteratorResult<readonly M[], undefined>> {
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
    try {
      this.#cutter.cut(chunk, this.#ready)
    } catch (error) {
      this.#finish('failed', error)
      return
    }
    this.#sinceTurn += chunk.length
    this.#deliver()
    if (this.#sinceTurn < bytesPerTurn) return
    this.#stream.pause()
    if (this.#waiter !== undefined) this.#resume()
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
