// Opens the terminal of this process: standard output and standard error, with colours where a person reads them.

import type { Colour, Terminal } from './terminal.ts'

const codes: Readonly<Record<Colour, number>> = { red: 31, green: 32, yellow: 33, cyan: 36, bold: 1, dim: 2 }

/** Uses colours only on a terminal, and never with NO_COLOR (no-color.org). */
export function openTerminal(env: NodeJS.ProcessEnv = process.env): Terminal {
  const interactive = process.stdout.isTTY === true && env.TERM !== 'dumb'
  const coloured = interactive && (env.NO_COLOR ?? '') === ''
  return {
    write: (text) => void process.stdout.write(text),
    note: (text) => void process.stderr.write(text),
    paint: (colour, text) => (coloured && text !== '' ? `\x1b[${codes[colour]}m${text}\x1b[0m` : text),
    interactive,
    columns: process.stdout.columns || Number.POSITIVE_INFINITY,
  }
}
