// Checks the prose of src against the rules in CONTRIBUTING.md: whole sentences, plain words, and no documents that are not in the repo.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const root = join(import.meta.dirname, '..', 'src')

/** What a reader stumbles over, and what to write instead. */
const rules: readonly { readonly pattern: RegExp; readonly advice: string }[] = [
  { pattern: /(?:\/\*\*|\/\/|^ +\*) Of [a-z`]/, advice: 'begin with the subject, not with "Of …"' },
  {
    pattern: /(?<!\bthere )\bis no (?:valid|ip|cidr|port|name|address|number|directory|file|url|error|such)\b/i,
    advice: 'write "is not a valid …" or "is not a …"',
  },
  { pattern: /\b(?:anew|whoever|whosoever|dearer)\b/i, advice: 'write "again", "the process that", "more expensive"' },
  { pattern: /§|\bspec(?:ification)? \d/i, advice: 'cite docs/semantics.md, or state the fact' },
]

const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.ts'))

describe('prose', () => {
  it.each(files)('%s is plain English', (path) => {
    const lines = readFileSync(join(root, path), 'utf8').split('\n')
    const found = lines.flatMap((line, index) =>
      rules
        .filter(({ pattern }) => pattern.test(line))
        .map(({ advice }) => `line ${index + 1}: ${advice}: ${line.trim().slice(0, 100)}`),
    )
    expect(found).toEqual([])
  })
})
