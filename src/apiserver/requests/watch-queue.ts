// Where a watch writes its lines to. For readers in the same process this is a queue; HTTP responses are in http/rest-server.ts.

export interface WatchSink {
  /** Returns false if the writer should wait for `drained` before it writes more. */
  write(text: string): boolean
  drained(): Promise<void>
  /** Characters or bytes that were written and not read yet. */
  readonly buffered: number
}

const highWaterMark = 1 << 20

/** Holds the text between a watch and its reader, and lets each of them wait for the other. */
export class WatchQueue implements WatchSink {
  #chunks: string[] = []
  #size = 0
  #ended = false
  #wakeReader = () => {}
  #wakeWriter = () => {}

  get buffered(): number {
    return this.#size
  }

  write(text: string): boolean {
    this.#chunks.push(text)
    this.#size += text.length
    this.#wakeReader()
    return this.#size < highWaterMark
  }

  async drained(): Promise<void> {
    if (this.#size === 0 || this.#ended) return
    await new Promise<void>((resolve) => {
      this.#wakeWriter = resolve
    })
  }

  /** Resolves to all text since the last call, as soon as there is some; to undefined after the end. */
  async read(): Promise<string | undefined> {
    if (this.#chunks.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wakeReader = resolve
      })
    }
    if (this.#chunks.length === 0) return undefined
    const text = this.#chunks.join('')
    this.#chunks = []
    this.#size = 0
    this.#wakeWriter()
    return text
  }

  /** Called by the side that leaves first: the writer has no more to write, or the reader reads no more. */
  end(): void {
    this.#ended = true
    this.#wakeReader()
    this.#wakeWriter()
  }
}
