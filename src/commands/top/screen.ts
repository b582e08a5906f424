// The terminal as a screen: draws lines on the alternate screen, passes keys and changes of size on, and restores the terminal at every exit.

import type { ReadStream, WriteStream } from 'node:tty'
import type { Colour } from '../terminal.ts'
import type { ScreenSize } from './list-page.ts'
import { readKeys } from './read-keys.ts'
import type { ScreenLine } from './screen-text.ts'
import type { Key } from './view-state.ts'

const esc = '\x1b'
/** The alternate screen, no cursor, and no wrapping of long lines. */
const enter = `${esc}[?1049h${esc}[?25l${esc}[?7l`
const leave = `${esc}[?7h${esc}[?25h${esc}[?1049l`

export interface ScreenOptions {
  readonly input: ReadStream
  readonly output: WriteStream
  readonly paint: (colour: Colour, text: string) => string
  readonly onKey: (key: Key) => void
  readonly onResize: () => void
}

export class Screen {
  readonly #options: ScreenOptions
  #drawn: readonly string[] = []
  #isOpen = false

  constructor(options: ScreenOptions) {
    this.#options = options
  }

  get size(): ScreenSize {
    const { output } = this.#options
    return { columns: output.columns || 80, rows: output.rows || 24 }
  }

  open(): void {
    const { input, output } = this.#options
    this.#isOpen = true
    // An error or process.exit anywhere must not leave a terminal without a cursor behind.
    process.on('exit', this.#restore)
    output.write(enter)
    output.on('resize', this.#resize)
    if (!input.isTTY) return
    input.setRawMode(true)
    input.on('data', this.#read)
    input.resume()
  }

  close(): void {
    const { input, output } = this.#options
    process.off('exit', this.#restore)
    output.off('resize', this.#resize)
    input.off('data', this.#read)
    if (input.isTTY) input.pause()
    this.#restore()
  }

  /** Writes only the lines that differ from what is on the screen. A line is cleared first: its last cell may be the last of the screen. */
  draw(lines: readonly ScreenLine[]): void {
    if (!this.#isOpen) return
    const painted = lines.map((line) => this.#paint(line))
    const changes = painted.flatMap((text, row) =>
      text === this.#drawn[row] ? [] : [`${esc}[${row + 1};1H${esc}[K${text}`],
    )
    this.#drawn = painted
    if (changes.length > 0) this.#options.output.write(changes.join(''))
  }

  #paint({ text, colour }: ScreenLine): string {
    if (colour === undefined || text === '') return text
    if (colour !== 'reverse') return this.#options.paint(colour, text)
    // Without colours the mark at the start of the line shows the selection.
    return this.#options.paint('bold', text) === text ? text : `${esc}[7m${text}${esc}[0m`
  }

  readonly #read = (chunk: Buffer): void => {
    for (const key of readKeys(chunk.toString('utf8'))) this.#options.onKey(key)
  }

  readonly #resize = (): void => {
    // What was drawn has been wrapped or cut by the terminal.
    this.#drawn = []
    this.#options.output.write(`${esc}[2J`)
    this.#options.onResize()
  }

  readonly #restore = (): void => {
    if (!this.#isOpen) return
    this.#isOpen = false
    this.#options.output.write(leave)
    if (this.#options.input.isTTY) this.#options.input.setRawMode(false)
  }
}
