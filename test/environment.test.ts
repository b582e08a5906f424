// Checks that test/README.md lists every environment variable that tests, benches, scripts and packaging read, no others, and no missing
// file, and that the documents for users name every variable of Sluice that the program reads.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'

const root = join(import.meta.dirname, '..')

const sources = ['test', 'bench', 'scripts', 'packaging'].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(?:ts|mjs)$/.test(name))
    .map((name) => join(folder, name))
    .filter((path) => path !== 'test/environment.test.ts')
    .map((path) => readFileSync(join(root, path), 'utf8')),
)

/** Also names that are destructured: `const { NAME } = process.env`. */
const read = new Set(
  sources.flatMap((text) => [
    ...[...text.matchAll(/process\.env\.([A-Z]\w*)/g)].map((match) => match[1] as string),
    ...[...text.matchAll(/process\.env\[(['"])(\w+)\1\]/g)].map((match) => match[2] as string),
    ...[...text.matchAll(/\{([^{}]*)\} = process\.env/g)].flatMap(
      (match) => (match[1] as string).match(/[A-Z]\w{2,}/g) ?? [],
    ),
  ]),
)

const section = readFileSync(join(root, 'test/README.md'), 'utf8').split('## Environment variables')[1] as string
const listed = new Set(
  [...section.matchAll(/^\| ([^|]*) \|/gm)].flatMap((row) =>
    [...(row[1] as string).matchAll(/`([A-Z]\w+)/g)].map((match) => match[1] as string),
  ),
)

it('test/README.md lists every environment variable that is read', () => {
  expect([...read].filter((name) => !listed.has(name))).toEqual([])
})

it('test/README.md lists no variable that nothing reads', () => {
  expect([...listed].filter((name) => !read.has(name))).toEqual([])
})

it('test/README.md names only files that exist', () => {
  const readme = readFileSync(join(root, 'test/README.md'), 'utf8')
  const files = [...readme.matchAll(/`([\w./-]+\.(?:ts|mjs|md))`/g)].map((match) => match[1] as string)
  expect(files.filter((file) => !existsSync(join(root, 'test', file)) && !existsSync(join(root, file)))).toEqual([])
})

it('the documents name every variable of Sluice that the program reads', () => {
  const readAll = (folder: string, ending: string) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith(ending))
      .map((name) => readFileSync(join(root, folder, name), 'utf8'))
      .join('\n')
  const documents = [readAll('docs', '.md'), readAll('src', '.md'), section].join('\n')
  const names = new Set(readAll('src', '.ts').match(/\bSLUICE_[A-Z_]+\b/g))
  expect(names.size).toBeGreaterThan(3)
  expect([...names].filter((name) => !documents.includes(name))).toEqual([])
})

it('test/hostile/README.md names tests that exist', () => {
  const text = readFileSync(join(root, 'test/hostile/README.md'), 'utf8')
  const named = [...text.matchAll(/`(test\/[^`]+\.test\.ts)`: ([^|]+?) \|/g)]
  expect(named.length).toBeGreaterThan(30)
  const missing = named.filter(([, file = '', title = '']) => !readFileSync(join(root, file), 'utf8').includes(title))
  expect(missing.map(([cell]) => cell)).toEqual([])
})
