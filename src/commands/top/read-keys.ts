// Decodes what a terminal sends when keys are pressed. Pure.

import type { Key } from './view-state.ts'

/** The sequences of xterm and of the Linux console, in both cursor modes. */
const sequences: Readonly<Record<string, Key>> = {
  '\x1b[A': 'up',
  '\x1bOA': 'up',
  '\x1b[B': 'down',
  '\x1bOB': 'down',
  '\x1b[5~': 'page-up',
  '\x1b[6~': 'page-down',
  '\x1b[H': 'home',
  '\x1bOH': 'home',
  '\x1b[1~': 'home',
  '\x1b[7~': 'home',
  '\x1b[F': 'end',
  '\x1bOF': 'end',
  '\x1b[4~': 'end',
  '\x1b[8~': 'end',
}

const controls: Readonly<Record<string, Key>> = {
  '\x03': 'ctrl-c',
  '\r': 'enter',
  '\n': 'enter',
  '\x7f': 'backspace',
  '\b': 'backspace',
  '\x1b': 'escape',
}

const start = '\x1b'
const parts = new RegExp(`${start}\\[[0-9;?]*[ -/]*[@-~]|${start}O[@-~]|[^]`, 'gu')

/** Returns the keys of one chunk of input. A terminal sends the sequence of a key in one piece; unknown sequences are left out. */
export function readKeys(input: string): readonly Key[] {
  return (input.match(parts) ?? []).flatMap((part) => {
    const key = sequences[part] ?? controls[part]
    if (key !== undefined) return [key]
    return part >= ' ' && part.length === 1 ? [part] : []
  })
}
