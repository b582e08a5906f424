// What a command prints to, and formats for people and programs: colours, JSON and YAML. open-terminal.ts opens the real terminal. Pure.

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
