// Checks the structure of src: which folder may import which, which files are pure, that names are unique, and that files, folders and
// functions stay small. The rules for prose are in style.test.ts.

import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, normalize } from 'node:path'
import { parseSync } from 'oxc-parser'
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

/** The rooms that a room may import from, besides itself. The order of the rows is the order of the layers. */
const doors: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  model: ['lib'],
  sys: ['lib'],
  backend: ['lib', 'model', 'sys'],
  engine: ['lib', 'model', 'backend'],
  kube: ['lib', 'model'],
  http: ['lib', 'model', 'sys', 'backend', 'engine'],
  apiserver: ['lib', 'model', 'sys'],
  config: ['lib'],
  inspect: ['lib', 'model', 'backend', 'engine', 'http'],
  daemon: ['lib', 'model', 'sys', 'backend', 'engine', 'kube', 'http', 'config', 'inspect'],
  commands: ['lib', 'model', 'sys', 'backend', 'engine', 'kube', 'http', 'apiserver', 'config', 'inspect', 'daemon'],
  main: ['lib', 'config', 'daemon', 'commands'],
}

/** The proxy modes: sibling folders, which use the same file names on purpose. */
const modes = ['nftables', 'iptables', 'ipvs', 'userspace']

describe('the doors between rooms', () => {
  it('finds the sources', () => {
    expect(sources.length).toBeGreaterThan(200)
  })

  it.each(sources.map((source) => [source.path, source] as const))('%s imports only what its room may', (_, source) => {
    for (const target of localImports(source)) {
      expect([source.room, ...(doors[source.room] ?? [])], `${source.path} imports ${target}`).toContain(roomOf(target))
    }
  })

  it('keeps the modes apart: a mode imports no other mode, and the toolkits import no mode', () => {
    const wrong = sources.flatMap((source) => {
      const own = backendFolder(source.path)
      if (own === undefined) return []
      const foreign = localImports(source)
        .map(backendFolder)
        .filter((folder) => folder !== undefined && folder !== own && modes.includes(folder))
      return foreign.map((folder) => `${source.path} imports backend/${folder}`)
    })
    expect(wrong).toEqual([])
  })

  it('no file outside src/backend and src/config names a mode', () => {
    // lib and sys know no modes: there the words are names of kernel subsystems and of programs.
    const others = sources.filter(({ room }) => !['backend', 'config', 'lib', 'sys'].includes(room))
    // `config.ipvs` and `ipvs: {` are sections of the configuration; a string, or a key with a value, names a mode.
    const named = new RegExp(`(?<![-\\w./])(?:${modes.join('|')})(?![-\\w]|\\.\\w|: \\{$)`)
    const comment = /(^|\s)(?:\/\/|\/\*\*|\*) .*$/
    const lines = others.flatMap(({ path, text }) => text.split('\n').map((line) => ({ path, line })))
    expect(lines.filter(({ line }) => named.test(line.replace(comment, '')))).toEqual([])
    const imported = others.filter((source) =>
      localImports(source).some((to) => modes.includes(backendFolder(to) ?? '')),
    )
    expect(imported.map(({ path }) => path)).toEqual([])
  })

  it('keeps the layers of the embedded API server in order', () => {
    const layers: Readonly<Record<string, readonly string[]>> = {
      schema: [],
      store: ['schema'],
      requests: ['schema', 'store'],
      controllers: ['schema', 'store', 'requests'],
      manifests: ['schema', 'store', 'requests'],
      protobuf: ['schema'],
      http: ['schema', 'store', 'requests', 'protobuf'],
    }
    const layerOf = (path: string) => (path.startsWith('apiserver/') ? path.split('/')[1] : undefined) ?? ''
    const wrong = sources
      .filter(({ path }) => layerOf(path) in layers)
      .flatMap((source) => {
        const layer = layerOf(source.path)
        const allowed = [layer, ...(layers[layer] ?? [])]
        const targets = localImports(source).filter((target) => roomOf(target) === 'apiserver')
        return targets
          .filter((target) => !allowed.includes(layerOf(target)))
          .map((target) => `${source.path} imports ${target}`)
      })
    expect(wrong).toEqual([])
  })

  it('lets only sys/libc.ts call native code', () => {
    const users = sources.filter((source) => source.imports.includes('koffi')).map((source) => source.path)
    expect(users.filter((path) => path !== 'sys/libc.ts')).toEqual([])
  })

  it('keeps the clock injected in the engine and in the API client', () => {
    for (const source of sources.filter((s) => s.room === 'engine' || s.room === 'kube')) {
      expect(source.text, source.path).not.toMatch(/Date\.now|performance\.now|setTimeout\(|setInterval\(/)
    }
  })
})

/** True if a file imports only types from a module, which leaves nothing at run time. */
const isTypeImport = (source: Source, specifier: string): boolean =>
  new RegExp(`^import type .* from '${specifier}'$`, 'm').test(source.text)

describe('the page of the dashboard', () => {
  const folder = join(root, '..', 'web')
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => /\.tsx?$/.test(path))
    .map((path) => ({ path, text: readFileSync(join(folder, path), 'utf8') }))

  it('imports only types of the admin socket from the program', () => {
    const imports = files.flatMap(({ path, text }) =>
      [...text.matchAll(/^import (type )?[^']*? from '(\.[^']+)'/gm)]
        .filter(([, , specifier = '']) => specifier.includes('/src/'))
        .map(([, kind, specifier]) => ({ path, isType: kind !== undefined, specifier })),
    )
    expect(imports.length).toBeGreaterThan(5)
    expect(
      imports.filter(({ isType, specifier }) => !isType || !/\/src\/http\/admin[\w-]*\.ts$/.test(specifier ?? '')),
    ).toEqual([])
  })

  it('has small files, each with a sentence that says what it does and a line in its README.md', () => {
    const list = readFileSync(join(folder, 'README.md'), 'utf8')
    for (const { path, text } of files) {
      expect(text.split('\n')[0], path).toMatch(/^\/\/ \S.{20,}/)
      expect(text.split('\n').length, path).toBeLessThanOrEqual(400)
      expect(list, path).toContain(path)
    }
  })

  it('never sets HTML from text', () => {
    for (const { path, text } of files)
      expect(text, path).not.toMatch(/innerHTML|dangerouslySet|insertAdjacent|document\.write/)
  })
})

describe('pure files', () => {
  const pure = sources.filter(isPure)

  it('are many', () => {
    expect(pure.length).toBeGreaterThan(50)
  })

  it.each(pure.map((source) => [source.path, source] as const))('%s has no I/O, clock or randomness', (_, source) => {
    const allowed = new Set(['node:crypto', 'node:buffer', 'node:util', 'yaml'])
    const foreign = source.imports.filter((specifier) => !specifier.startsWith('.') && !allowed.has(specifier))
    expect(foreign.filter((specifier) => !isTypeImport(source, specifier))).toEqual([])
    if (source.path === 'lib/time.ts' || source.path === 'lib/log.ts') return
    expect(source.text).not.toMatch(
      /Date\.now|performance\.now|Math\.random|randomBytes|randomUUID|new Date\(\)|setTimeout|setInterval|process\./,
    )
  })

  it('import values only from pure files', () => {
    const paths = new Set(pure.map(({ path }) => path))
    const wrong = pure.flatMap((source) =>
      valueImports(source)
        .filter((target) => !paths.has(target))
        .map((target) => `${source.path} imports ${target}`),
    )
    expect(wrong).toEqual([])
  })

  it.each(pure.map((source) => [source.path, source] as const))('%s keeps no module-level state', (_, source) => {
    // The queue of turns of the event loop is one per process by nature.
    if (source.path === 'lib/time.ts') return
    const mutable =
      /^(?:export )?(?:let .*|const \w+(?:: (?!Readonly|readonly)[^=]*)? = (?:new (?:Map|Set|WeakMap)(?:<[^=]*>)?\(\)|new \w*Array\([1-9].*|Buffer\.alloc.*|\[\]))$/gm
    expect(source.text.match(mutable) ?? []).toEqual([])
  })
})

describe('names', () => {
  it('has no base name twice outside the sibling modes, and none twice within a mode', () => {
    const groups = new Map<string, string[]>()
    for (const { path } of sources) {
      const mode = backendFolder(path)
      const scope = mode !== undefined && modes.includes(mode) ? mode : ''
      const key = `${scope}/${basename(path)}`
      groups.set(key, [...(groups.get(key) ?? []), path])
    }
    expect([...groups.values()].filter((paths) => paths.length > 1)).toEqual([])
  })

  it('has no exported type name twice', () => {
    const owners = new Map<string, string[]>()
    for (const { path, text } of sources) {
      for (const [, name] of text.matchAll(/^export (?:type|interface|(?:abstract )?class|enum) (\w+)/gm)) {
        owners.set(name as string, [...(owners.get(name as string) ?? []), path])
      }
    }
    expect([...owners].filter(([, paths]) => paths.length > 1)).toEqual([])
  })
})

describe('sizes', () => {
  it('opens every file with a sentence that says what it does', () => {
    for (const source of sources) expect(source.text.split('\n')[0], source.path).toMatch(/^\/\/ \S.{20,}/)
  })

  it('splits files before they become dumping grounds', () => {
    for (const source of sources) expect(source.text.split('\n').length, source.path).toBeLessThanOrEqual(400)
  })

  it('has no folder with more than 18 files', () => {
    const counts = new Map<string, number>()
    for (const { path } of sources) counts.set(dirname(path), (counts.get(dirname(path)) ?? 0) + 1)
    expect([...counts].filter(([, count]) => count > 18)).toEqual([])
  })

  it.each(sources.map((source) => [source.path, source] as const))('%s has short and flat functions', (_, source) => {
    const program = parseSync(source.path, source.text).program as unknown as SyntaxNode
    const lineAt = (offset: number) => source.text.slice(0, offset).split('\n').length
    const deep = findDeepNesting(program, 3).map(({ start }) => `line ${lineAt(start)} is nested more than 3 deep`)
    const long = findFunctions(program)
      .filter(({ start, end }) => lineAt(end) - lineAt(start) >= 50)
      .map(({ start }) => `the function in line ${lineAt(start)} has more than 50 lines`)
    expect([...deep, ...long]).toEqual([])
  })
})

describe('README.md', () => {
  const listed = new Map(
    readdirSync(root, { recursive: true, encoding: 'utf8' })
      .filter((path) => basename(path) === 'README.md')
      .map((path) => [dirname(path), readFileSync(join(root, path), 'utf8')]),
  )
  it('names only files that exist', () => {
    const paths = sources.map(({ path }) => `/src/${path}`)
    const missing = [...listed].flatMap(([folder, text]) =>
      [...text.matchAll(/`((?:[a-z-]+\/)*[a-z-]+\.ts)`/g)]
        .map((match) => match[1] as string)
        .filter((name) => !/^(?:test|bench)\//.test(name) && !paths.some((path) => path.endsWith(`/${name}`)))
        .map((name) => `${folder}/README.md names ${name}`),
    )
    expect(missing).toEqual([])
  })
})

describe('the reading order of a folder', () => {
  const folders = new Set(
    readdirSync(root, { recursive: true, encoding: 'utf8' })
      .filter((path) => basename(path) === 'README.md')
      .map(dirname),
  )
  const nearest = (folder: string): string | undefined => {
    if (folders.has(folder)) return folder
    return folder === '.' ? undefined : nearest(dirname(folder))
  }
  /** A file is named by its name, or by a folder that it is in: `traits/`. */
  const isNamed = (file: string, text: string): boolean =>
    text.includes(basename(file)) ||
    dirname(file)
      .split('/')
      .some((part) => text.includes(`\`${part}/\``))

  it('names every file in the nearest README.md', () => {
    const unnamed = sources.flatMap(({ path }) => {
      const folder = nearest(dirname(path))
      if (folder === undefined) return []
      const text = readFileSync(join(root, folder, 'README.md'), 'utf8')
      return isNamed(path.slice(folder.length + 1), text) ? [] : [`${folder}/README.md does not name ${path}`]
    })
    expect(unnamed).toEqual([])
  })
})

describe('ARCHITECTURE.md', () => {
  it('names only files that exist', () => {
    const text = readFileSync(join(root, '..', 'ARCHITECTURE.md'), 'utf8')
    const named = [...text.matchAll(/`((?:[a-z-]+\/)*[a-z-]+\.ts)`/g)].map((match) => match[1] as string)
    expect(named.length).toBeGreaterThan(60)
    const paths = sources.map(({ path }) => `src/${path}`)
    expect(
      named.filter(
        (name) => !name.startsWith('test/') && !paths.some((path) => path === name || path.endsWith(`/${name}`)),
      ),
    ).toEqual([])
  })
})

interface SyntaxNode {
  readonly type: string
  readonly start: number
  readonly end: number
}

const controlFlow = new Set([
  'IfStatement',
  'ForStatement',
  'ForInStatement',
  'ForOfStatement',
  'WhileStatement',
  'DoWhileStatement',
  'SwitchStatement',
  'TryStatement',
])

/** The control statements that lie deeper than `limit` within their function. `else if` continues a level; a function starts at 0. */
function findDeepNesting(program: SyntaxNode, limit: number): readonly SyntaxNode[] {
  const found: SyntaxNode[] = []
  const visit = (node: SyntaxNode, depth: number, elseIf: boolean): void => {
    const starts = /Function/.test(node.type)
    const nests = controlFlow.has(node.type) && !elseIf
    const here = starts ? 0 : depth + (nests ? 1 : 0)
    if (nests && here > limit) found.push(node)
    for (const [name, child] of childrenOf(node)) {
      visit(child, here, name === 'alternate' && child.type === 'IfStatement')
    }
  }
  visit(program, 0, false)
  return found
}

/** All functions and methods, including those inside others. */
function findFunctions(node: SyntaxNode): readonly SyntaxNode[] {
  const inside = childrenOf(node).flatMap(([, child]) => findFunctions(child))
  return /^(?:FunctionDeclaration|FunctionExpression|ArrowFunctionExpression)$/.test(node.type)
    ? [node, ...inside]
    : inside
}

const childrenOf = (node: SyntaxNode): readonly (readonly [name: string, child: SyntaxNode])[] =>
  Object.entries(node).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).filter(isNode).map((child) => [name, child] as const),
  )

const isNode = (value: unknown): value is SyntaxNode => typeof value === 'object' && value !== null && 'type' in value

function isPure(source: Source): boolean {
  if (source.room === 'model' || source.room === 'lib') return true
  if (/^backend\/[^/]+\/(base|plan|entries)\.ts$/.test(source.path)) return true
  const header = source.text.slice(0, source.text.search(/^(?!\/\/)/m))
  return /\bPure\b/.test(header)
}

const localImports = (source: Source): readonly string[] =>
  source.imports
    .filter((specifier) => specifier.startsWith('.') && specifier.endsWith('.ts'))
    .map((specifier) => normalize(join(dirname(source.path), specifier)))

/** The local files of which something is imported or exported that exists at run time, not only types. */
function valueImports(source: Source): readonly string[] {
  const statements = source.text.matchAll(
    /^(?:import|export) (?!type )([^';]*?)\bfrom '(\.[^']+)'|^import '(\.[^']+)'/gm,
  )
  return [...statements]
    .filter(([, names = '']) => names.replaceAll(/\btype \w+/g, '').match(/\w/) !== null || names === '')
    .map(([, , from, alone]) => normalize(join(dirname(source.path), (from ?? alone) as string)))
}

/** `nftables` of `backend/nftables/plan.ts`; undefined outside the folders below backend. */
function backendFolder(path: string): string | undefined {
  const [room, folder, rest] = path.split('/')
  return room === 'backend' && rest !== undefined ? folder : undefined
}

function roomOf(path: string): string {
  return path.includes('/') ? (path.split('/')[0] as string) : path.replace(/\.ts$/, '')
}
