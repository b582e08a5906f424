// Checks the prose of the repo against the rules in CONTRIBUTING.md: whole sentences, plain words, and no documents that are not in the repo.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const root = join(import.meta.dirname, '..')

/** What a reader stumbles over, and what to write instead. */
const rules: readonly { readonly pattern: RegExp; readonly advice: string }[] = [
  { pattern: /(?:\/\*\*|\/\/|^ +\*|^#) Of [a-z`]/, advice: 'begin with the subject, not with "Of …"' },
  { pattern: /(?:\/\*\*|\/\/|^ +\*) (?:Who|Whom|Whose|That (?:is|are|was|were)) /, advice: 'begin with the subject' },
  {
    pattern: /(?<!\bthere )\bis no (?:valid|ip|cidr|port|name|address|number|directory|file|url|error|such|service)\b/i,
    advice: 'write "is not a valid …" or "is not a …"',
  },
  {
    pattern: /\b(?:anew|whoever|whosoever|dearer|thereby|somebody)\b/i,
    advice: 'write "again", "the process that", "more expensive", "another program"',
  },
  { pattern: /\bonly (?:if|when|after) [^,.:;]+, (?:it|they|the) /i, advice: 'put the condition last' },
  { pattern: /§|\bspec(?:ification)? \d/i, advice: 'cite docs/semantics.md, or state the fact' },
]

/** These files quote what the rules forbid. */
const quoting = ['CONTRIBUTING.md', 'test/style.test.ts', 'test/semantics.test.ts']

const files = ['src', 'test', 'bench', 'packaging', 'scripts', 'docs', 'deploy', 'web']
  .flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name)),
  )
  .concat(readdirSync(root))
  .filter((path) => /\.(?:tsx?|mjs|md|yaml)$/.test(path) && !quoting.includes(path))

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
