// Checks that docs/semantics.md lists the ids of cases that tests and scenarios use, no others, and that nothing cites another document.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const root = join(import.meta.dirname, '..')

function readAll(folder: string, pattern: RegExp): readonly { readonly path: string; readonly text: string }[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => pattern.test(name))
    .map((name) => join(folder, name))
    .filter((path) => path !== 'test/semantics.test.ts')
    .map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }))
}

const tests = readAll('test', /\.(?:ts|yaml)$/)

/** Case ids (`G8`, `J7a` of case `J7`), packets (`F26`) and scenarios (`S4a`, `S12-1` of `S12`); not patterns such as `S4*`. */
const id = /(?<![\w.:/%$-])(?:([A-EG-JPW]\d{1,2})[a-z]?|(F\d{1,3})|(S\d{1,2}[a-h]?))(?![\w*?])/g

const listed = new Set(
  [
    ...readFileSync(join(root, 'docs/semantics.md'), 'utf8').matchAll(/^(?:\| |\*\*)([A-Z]\d+[a-h]?)(?: \||\*\*)/gm),
  ].map((match) => match[1] as string),
)

const used = new Map<string, string>()
for (const { path, text } of tests) {
  for (const match of text.matchAll(id)) used.set((match[1] ?? match[2] ?? match[3]) as string, path)
}

describe('docs/semantics.md', () => {
  it('lists every id that tests and scenarios use', () => {
    expect([...used].filter(([name]) => !listed.has(name))).toEqual([])
  })

  it('lists no id that nothing uses', () => {
    expect([...listed].filter((name) => !used.has(name))).toEqual([])
  })

  it('is the only document that is cited by number', () => {
    const citation = /§|\bspec(?:ification)? \d|\b[A-H]\.\d{1,2}\b/i
    const files = [...tests, ...readAll('src', /\.(?:ts|md)$/), ...readAll('bench', /\.ts$/)]
    const citing = files
      .filter(({ path }) => path !== 'test/style.test.ts')
      .flatMap(({ path, text }) =>
        text.split('\n').flatMap((line) => (citation.test(line) ? [`${path}: ${line.trim()}`] : [])),
      )
    expect(citing).toEqual([])
  })
})
