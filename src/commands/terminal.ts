// Formats and prints what commands say: tables and colours for people, JSON and YAML for programs.

import { stringify } from 'yaml'

export type Colour = 'red' | 'green' | 'yellow' | 'cyan' | 'bold' | 'dim'

export interface Terminal {
  /** Writes a part of the answer to standard output. */
  write(text: string): void
  /** Writes progress, a warning or an error to standard error. */
  note(text: string): void
  paint(colour: Colour, text: string): string
  /** True if a person reads the output. */
  readonly interactive: boolean
  readonly columns: number
}

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
    columns: process.stdout.columns || 100,
  }
}

export type Row = readonly string[]

/** Returns '' if there are no rows. Each column is as wide as its widest cell. */
export function formatTable(heads: Row, rows: readonly Row[], terminal: Pick<Terminal, 'paint'>): string {
  if (rows.length === 0) return ''
  const widths = heads.map((head, i) => Math.max(head.length, ...rows.map((row) => visibleLength(row[i] ?? ''))))
  const line = (cells: Row) =>
    cells
      .map((cell, i) => (i === cells.length - 1 ? cell : cell + ' '.repeat((widths[i] ?? 0) - visibleLength(cell))))
      .join('   ')
      .trimEnd()
  return [terminal.paint('bold', line(heads)), ...rows.map(line)].map((text) => `${text}\n`).join('')
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters.
const colours = /\x1b\[\d+m/g

export const stripColours = (text: string): string => text.replace(colours, '')

const visibleLength = (text: string): number => stripColours(text).length

/** Formats the answer as --output asks for. */
export function formatAnswer(value: unknown, format: string, forPeople: () => string): string {
  if (format === 'json') return `${JSON.stringify(value, undefined, 2)}\n`
  if (format === 'yaml') {
    // The way through JSON leaves out undefined members and prevents anchors. YAML 1.1 readers take a bare `no` for false, so it is quoted.
    return stringify(JSON.parse(JSON.stringify(value)), { aliasDuplicateObjects: false, compat: 'yaml-1.1' })
  }
  return forPeople()
}

/** Formats a duration: `4s`, `3m`, `2h`, `5d`. */
export function formatAge(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  if (seconds < 120) return `${seconds}s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86_400)}d`
}

export const shorten = (text: string, limit: number): string =>
  text.length <= limit ? text : `${text.slice(0, limit - 1)}…`
