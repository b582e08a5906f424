// The flags that the proxy gives to Node: what is measured must run with them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'

export const script = join(import.meta.dirname, '../bin/kube-proxy')

/** As its first line has them. */
export function nodeFlags(): readonly string[] {
  const first = readFileSync(script, 'utf8').split('\n', 1)[0] as string
  return /node (.*)$/.exec(first)?.[1]?.split(' ') ?? []
}
