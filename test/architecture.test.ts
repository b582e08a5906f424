// Guards the doors between rooms: which folder may import which, and who may touch what (design: rooms table).

import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { describe, expect, it } from 'vitest'

const root = join(import.meta.dirname, '..', 'src')

interface Source {
  readonly path: string
  readonly room: string
  readonly imports: readonly string[]
  readonly text: string
}

const sources: readonly Source[] = readdirSync(root, { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.ts'))
  .map((path) => {
    const text = readFileSync(join(root, path), 'utf8')
    const imports = [...text.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)].map((match) => match[1] as string)
    return { path, room: roomOf(path), imports, text }
  })

/** Which rooms a room may import from; itself always. Downwards only. */
const doors: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  model: ['lib'],
  sys: ['lib'],
  backend: ['lib', 'model', 'sys'],
  engine: ['lib', 'model', 'backend'],
  kube: ['lib', 'model'],
  http: ['lib', 'model', 'backend', 'engine'],
  apiserver: ['lib', 'model'],
  config: ['lib'],
  inspect: ['lib', 'model', 'backend', 'engine', 'http'],
  daemon: ['lib', 'model', 'sys', 'backend', 'engine', 'kube', 'http', 'config', 'inspect'],
  commands: ['lib', 'model', 'sys', 'backend', 'engine', 'kube', 'http', 'apiserver', 'config', 'inspect', 'daemon'],
  main: ['daemon', 'commands'],
}

const pure = (source: Source) =>
  source.room === 'model' || source.room === 'lib' || /^backend\/[^/]+\/(base|plan|encode)\.ts$/.test(source.path)

describe('the doors between rooms', () => {
  it('finds the sources', () => {
    expect(sources.length).toBeGreaterThan(5)
  })

  it.each(sources.map((source) => [source.path, source] as const))('%s imports only what its room may', (_, source) => {
    for (const specifier of source.imports.filter((s) => s.startsWith('.') && s.endsWith('.ts'))) {
      const target = roomOf(normalize(join(dirname(source.path), specifier)))
      expect([source.room, ...(doors[source.room] ?? [])], `${source.path} imports ${specifier}`).toContain(target)
    }
  })

  it('lets only sys/libc.ts call native code', () => {
    const users = sources.filter((source) => source.imports.includes('koffi')).map((source) => source.path)
    expect(users.filter((path) => path !== 'sys/libc.ts')).toEqual([])
  })

  it('keeps I/O, clocks and randomness out of the pure rooms', () => {
    const allowed = new Set(['node:crypto', 'node:buffer'])
    for (const source of sources.filter(pure)) {
      const outside = source.imports.filter((s) => !s.startsWith('.') && !allowed.has(s))
      expect(outside, source.path).toEqual([])
      if (source.path !== 'lib/time.ts' && source.path !== 'lib/log.ts') {
        expect(source.text, source.path).not.toMatch(/Date\.now|performance\.now|Math\.random|new Date\(\)|setTimeout/)
      }
    }
  })

  it('keeps the clock injected in the engine and in the API client', () => {
    for (const source of sources.filter((s) => s.room === 'engine' || s.room === 'kube')) {
      expect(source.text, source.path).not.toMatch(/Date\.now|performance\.now|setTimeout\(|setInterval\(/)
    }
  })

  it('opens every file with a sign that says what the room is for', () => {
    for (const source of sources) expect(source.text.split('\n')[0], source.path).toMatch(/^\/\/ \S.{20,}/)
  })

  it('splits files before they become dumping grounds', () => {
    for (const source of sources) expect(source.text.split('\n').length, source.path).toBeLessThanOrEqual(400)
  })
})

function roomOf(path: string): string {
  return path.includes('/') ? (path.split('/')[0] as string) : path.replace(/\.ts$/, '')
}
