// Reads a text file that may be missing or unreadable, as files below /proc often are.

import { readFileSync } from 'node:fs'

/** Returns '' if the file cannot be read. */
export function readTextOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
