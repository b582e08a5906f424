// A stream that exists before its connection does: what is written waits until the connection is open.

import { Duplex } from 'node:stream'

/** A stream that may keep the process alive, or not. */
export interface ReferencedStream extends Duplex {
  ref(): this
  unref(): this
}

/** An HTTP agent counts a connection against its limit only from the moment it has the stream. */
export class DeferredStream extends Duplex {
  readonly #opened: Promise<ReferencedStream>
  #inner: ReferencedStream | undefined
  #isIdle = false

  constructor(opening: Promise<ReferencedStream>) {
    super({ allowHalfOpen: false })
    this.#opened = opening
    opening.then(
      (inner) => this.#connect(inner),
      (error: Error) => this.destroy(error),
    )
  }

  ref(): this {
    this.#isIdle = false
    this.#inner?.ref()
    return this
  }

  unref(): this {
    this.#isIdle = true
    this.#inner?.unref()
    return this
  }

  override _read(): void {
    this.#inner?.resume()
  }

  override _write(chunk: Buffer, _: string, done: (error?: Error | null) => void): void {
    // An error of the connection itself destroys this stream, which reports it.
    this.#opened.then((inner) => inner.write(chunk, done)).catch(() => done())
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#opened.then((inner) => inner.destroy()).catch(() => {})
    done(error)
  }

  #connect(inner: ReferencedStream): void {
    this.#inner = inner
    inner.on('error', (error) => this.destroy(error))
    inner.on('end', () => this.push(null))
    inner.on('close', () => this.destroy())
    inner.on('data', (chunk: Buffer) => {
      if (!this.push(chunk)) inner.pause()
    })
    if (this.#isIdle) inner.unref()
  }
}
