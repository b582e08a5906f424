// Formats and prints what commands say: tables and colours for people, JSON and YAML for programs.

import { stringify } from 'yaml'

export const answerVersion = 'sluice/v1'

export type Colour = 'red' | 'green' | 'yellow' | 'cyan' | 'bold' | 'dim'

export interface Terminal {
  /** Writes a part of the answer to standard output. */
  write(text: string): void
  /** Writes progress, a warning or an error to standard error. */
  note(text: string): void
  paint(colour: Colour, text: string): string
  /** True if a person reads the output. */
  readonly interactive: boolean
  /** Infinity if the output goes to a file or to another program: then nothing is wrapped. */
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
    columns: process.stdout.columns || Number.POSITIVE_INFINITY,
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters.
const colours = /\x1b\[\d+m/g

export const stripColours = (text: string): string => text.replace(colours, '')

/** Formats the answer as --output asks for. docs/json.md describes the fields of each kind, and they stay as they are. */
export function formatAnswer<T extends { readonly kind: string }>(
  answer: T,
  format: string,
  forPeople: () => string,
): string {
  const value = { apiVersion: answerVersion, ...answer }
  if (format === 'json') return `${JSON.stringify(value, undefined, 2)}\n`
  if (format === 'yaml') {
    // The way through JSON leaves out undefined members and prevents anchors. YAML 1.1 readers take a bare `no` for false, so it is quoted.
    return stringify(JSON.parse(JSON.stringify(value)), { aliasDuplicateObjects: false, compat: 'yaml-1.1' })
  }
  return forPeople()
}

export const shorten = (text: string, limit: number): string =>
  text.length <= limit ? text : `${text.slice(0, limit - 1)}…`
