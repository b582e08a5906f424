// Reports the steps of a slow command: one line per step, with how long the step took. A message during a step gets a line of its own.

import type { Terminal } from './terminal.ts'

/** Without a person at the terminal, a step that ends earlier than this prints its whole line at the end. */
const announceMs = 1_000

export class Progress {
  readonly #terminal: Terminal
  /** True while the last line on the terminal is the beginning of a step's line. */
  #isLineOpen = false

  constructor(terminal: Terminal) {
    this.#terminal = terminal
  }

  /** Writes complete lines to standard error; the line of a step that is under way ends first. */
  note(text: string): void {
    this.#terminal.note(this.#isLineOpen ? `\n${text}` : text)
    this.#isLineOpen = false
  }

  /** A step that fails after the signal aborted was stopped by the user. */
  async report<T>(title: string, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const { interactive } = this.#terminal
    const started = performance.now()
    const timer = interactive ? undefined : setTimeout(() => this.#announce(title), announceMs)
    if (interactive) this.#announce(title)
    const finish = (result: string) => {
      clearTimeout(timer)
      const seconds = ((performance.now() - started) / 1000).toFixed(1)
      const head = this.#isLineOpen ? '' : `${title} ...`
      this.#isLineOpen = false
      this.#terminal.note(`${head} ${result} (${seconds} s)\n`)
    }
    try {
      const result = await work()
      finish('done')
      return result
    } catch (error) {
      finish(signal?.aborted === true ? 'stopped' : 'failed')
      throw error
    }
  }

  #announce(title: string): void {
    this.#isLineOpen = true
    this.#terminal.note(`${title} ...`)
  }
}
