// Writes log lines to a stream, and goes on when the lines get lost: the reader has gone, the disk is full, or the reader does not read.

import { readSystemCode } from '../lib/errors.ts'

/** The part of stderr that is used here. */
export interface LogStream {
  readonly writableLength: number
  write(text: string, done: (error?: Error | null) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
}

/** Lines that wait for a reader that does not read. Node would keep any number of them in memory. */
const maxQueuedBytes = 1 << 20

export class LogOutput {
  /** Called when a line was written after others were lost; writes the line that says so. */
  onRecovery: (lines: number, reason: string) => void = () => {}
  readonly #stream: LogStream
  #lostLines = 0
  #reason = ''
  /** Lost lines that the line being written reports. They count as lost again if that line is lost, too. */
  #reported = 0

  constructor(stream: LogStream) {
    this.#stream = stream
    // Without a listener Node ends the process. The callbacks of the writes get the same errors.
    stream.on('error', () => {})
  }

  readonly write = (line: string): void => {
    const lines = this.#reported === 0 ? 1 : this.#reported
    this.#reported = 0
    if (this.#stream.writableLength > maxQueuedBytes) {
      this.#lose(lines, 'the reader of the log does not read')
      return
    }
    try {
      this.#stream.write(line, (error) => {
        if (error) this.#lose(lines, describeCode(error))
        else if (this.#lostLines > 0) this.#reportLoss()
      })
    } catch (error) {
      // Node writes to files synchronously, and some versions throw, for example when the disk is full.
      this.#lose(lines, describeCode(error))
    }
  }

  #lose(lines: number, reason: string): void {
    this.#lostLines += lines
    this.#reason = reason
  }

  #reportLoss(): void {
    const lines = this.#lostLines
    this.#lostLines = 0
    this.#reported = lines
    this.onRecovery(lines, this.#reason)
    this.#reported = 0
  }
}

const describeCode = (error: unknown): string =>
  readSystemCode(error) || (error instanceof Error ? error.message : String(error))
