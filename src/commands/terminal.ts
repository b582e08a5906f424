// What commands print: columns and colours for people, JSON and YAML for programs.

import { stringify } from 'yaml'

export type Colour = 'red' | 'green' | 'yellow' | 'cyan' | 'bold' | 'dim'

export interface Terminal {
  write(text: string): void
  /** For what is no answer: progress, warnings. */
  note(text: string): void
  paint(colour: Colour, text: string): string
  /** A person is looking. */
  readonly interactive: boolean
  readonly columns: number
}

const codes: Readonly<Record<Colour, number>> = { red: 31, green: 32, yellow: 33, cyan: 36, bold: 1, dim: 2 }

/** Colours only for a person, and never with NO_COLOR (no-color.org). */
export function processTerminal(env: NodeJS.ProcessEnv = process.env): Terminal {
  const interactive = process.stdout.isTTY === true && env.TERM !== 'dumb'
  const coloured = interactive && (env.NO_COLOR ?? '') === ''
  return {
    write: (text) => void process.stdout.write(text),
    note: (text) => void process.stderr.write(text),
    paint: (colour, text) => (coloured && text !== '' ? `\x1b[${codes[colour]}m${text}\x1b[0m` : text),
    interactive,
    columns: process.stdout.columns || 100,
  }
}

export type Row = readonly string[]

/** Columns as wide as their widest cell; no rows, no table. */
export function table(heads: Row, rows: readonly Row[], terminal: Pick<Terminal, 'paint'>): string {
  if (rows.length === 0) return ''
  const widths = heads.map((head, i) => Math.max(head.length, ...rows.map((row) => shownLength(row[i] ?? ''))))
  const line = (cells: Row) =>
    cells
      .map((cell, i) => (i === cells.length - 1 ? cell : cell + ' '.repeat((widths[i] as number) - shownLength(cell))))
      .join('   ')
      .trimEnd()
  return [terminal.paint('bold', line(heads)), ...rows.map(line)].map((text) => `${text}\n`).join('')
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters.
const colours = /\x1b\[\d+m/g

const shownLength = (text: string): number => text.replace(colours, '').length

/** No wider than the terminal: a line that wraps would be two. What is cut loses its colours. */
export function fitted(line: string, columns: number): string {
  return shownLength(line) <= columns ? line : `${line.replace(colours, '').slice(0, columns - 1)}…`
}

/** The same answer in the form that was asked for. */
export function printed(value: unknown, format: string, forPeople: () => string): string {
  if (format === 'json') return `${JSON.stringify(value, undefined, 2)}\n`
  // A detour through JSON: what is undefined is left out, and nothing becomes an anchor. Many readers take `no` for false: it is quoted.
  if (format === 'yaml')
    return stringify(JSON.parse(JSON.stringify(value)), { aliasDuplicateObjects: false, compat: 'yaml-1.1' })
  return forPeople()
}

/** `4s`, `3m`, `2h`, `5d`: how long ago. */
export function age(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  if (seconds < 120) return `${seconds}s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86_400)}d`
}
