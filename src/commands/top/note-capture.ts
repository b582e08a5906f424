// Keeps messages away from the screen while the live view is on it, and prints them when the view has ended.

import type { Terminal } from '../terminal.ts'

const maxNotes = 50

export class NoteCapture {
  /** A terminal like the given one, whose notes can be captured. */
  readonly terminal: Terminal
  readonly #given: Terminal
  #notes: string[] | undefined
  #onNote: () => void = () => {}

  constructor(terminal: Terminal) {
    this.#given = terminal
    const note = (text: string) => this.#note(text)
    this.terminal = { ...terminal, note }
  }

  /** The messages since the capture began, newest last. */
  get notes(): readonly string[] {
    return this.#notes ?? []
  }

  start(onNote: () => void): void {
    this.#notes = []
    this.#onNote = onNote
  }

  /** Prints the messages that were captured, so that they are still there when the screen is gone. */
  end(): void {
    const notes = this.notes
    this.#notes = undefined
    for (const note of notes) this.#given.note(`${note}\n`)
  }

  #note(text: string): void {
    if (this.#notes === undefined) {
      this.#given.note(text)
      return
    }
    this.#notes.push(...text.split('\n').filter((line) => line.trim() !== ''))
    this.#notes.splice(0, this.#notes.length - maxNotes)
    this.#onNote()
  }
}
