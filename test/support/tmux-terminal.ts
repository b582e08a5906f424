// A real terminal for tests, tmux: a shell runs in it, keys are sent to it, and what it shows is read.

import { execFileSync, spawnSync } from 'node:child_process'
import { until } from './until.ts'

export const whyNoTmux = (): string | undefined =>
  spawnSync('tmux', ['-V']).status === 0 ? undefined : 'there is no tmux'

/** A terminal of its own, with a server of its own, in which a shell runs one command after the other. */
export class TmuxTerminal {
  readonly #server = `sluice-test-${process.pid}-${Math.random().toString(36).slice(2, 8)}`

  constructor(columns: number, rows: number) {
    // The configuration of the user must not matter.
    this.#tmux(
      '-f',
      '/dev/null',
      'new-session',
      '-d',
      '-x',
      String(columns),
      '-y',
      String(rows),
      'env PS1="ready> " sh',
    )
  }

  type(command: string): void {
    this.#tmux('send-keys', '-l', command)
    this.press('Enter')
  }

  press(...keys: readonly string[]): void {
    this.#tmux('send-keys', ...keys)
  }

  resize(columns: number, rows: number): void {
    this.#tmux('resize-window', '-x', String(columns), '-y', String(rows))
  }

  lines(): readonly string[] {
    return this.#tmux('capture-pane', '-p').replace(/\n$/, '').split('\n')
  }

  /** The same with every line that the terminal had to wrap in one piece. */
  joinedLines(): readonly string[] {
    return this.#tmux('capture-pane', '-p', '-J')
      .split('\n')
      .map((line) => line.trimEnd())
  }

  /** Which screen is shown, and whether the cursor is: `1 0` for the alternate screen without a cursor. */
  mode(): string {
    return this.#tmux('display-message', '-p', '#{alternate_on} #{cursor_flag}').trim()
  }

  shows(what: RegExp | string): Promise<true> {
    const found = () => {
      const text = this.lines().join('\n')
      return typeof what === 'string' ? text.includes(what) : what.test(text)
    }
    return until(`the terminal shows ${what}`, () => found() || undefined, { limitMs: 60_000, everyMs: 50 }).catch(
      (error: Error) => {
        throw new Error(`${error.message}; it shows:\n${this.lines().join('\n')}`)
      },
    )
  }

  close(): void {
    this.#tmux('kill-server')
  }

  #tmux(...args: readonly string[]): string {
    return execFileSync('tmux', ['-L', this.#server, ...args], { encoding: 'utf8' })
  }
}
