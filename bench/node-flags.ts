// Reads the flags that bin/kube-proxy gives to Node: measured programs must run with them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'

export const script = join(import.meta.dirname, '../bin/kube-proxy')

/** Returns the flags in the first line of the script. */
export function nodeFlags(): readonly string[] {
  const first = readFileSync(script, 'utf8').split('\n', 1)[0] as string
  return /node (.*)$/.exec(first)?.[1]?.split(' ') ?? []
}
