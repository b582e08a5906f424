// YAML or JSON text to a v1alpha1 document, remembering on which line each field stands.

import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, parseDocument, visit, type YAMLMap } from 'yaml'
import { describeError, ProxyError } from '../lib/errors.ts'
import { apiVersion, documentKind } from './configuration.ts'
import { readValue, type Setting } from './setting.ts'
import { settingByPath } from './settings-table.ts'
import { codecs, type Value } from './values.ts'

export interface DecodedConfig {
  /** Values that the file gives, by path, zeros included. */
  readonly values: ReadonlyMap<string, Value>
  /** Line of each field and list entry (`nodePortAddresses[0]`), by path. */
  readonly lines: ReadonlyMap<string, number>
  readonly warnings: readonly string[]
}

interface Reading {
  readonly file: string
  readonly root: ReturnType<typeof parse>
  readonly lineOf: (node: unknown) => number
  readonly values: Map<string, Value>
  readonly lines: Map<string, number>
  readonly warnings: string[]
  readonly problems: string[]
}

interface Entry {
  readonly key: string
  readonly keyNode: unknown
  readonly node: Node | null
}

/** Throws with every error of the file. Unknown and repeated fields are only warned about, as in kube-proxy's v1alpha1. */
export function decode(file: string, text: string): DecodedConfig {
  const counter = new LineCounter()
  const root = parse(text, counter)
  const failed = root.errors.find((error) => error.code !== 'MULTIPLE_DOCS')
  if (failed !== undefined) {
    const { line } = counter.linePos(failed.pos[0])
    throw new ProxyError('config', `${file}:${line}: not valid YAML or JSON: ${failed.message}`)
  }
  checkAliases(file, root, counter)
  if (!isMap(root.contents)) throw new ProxyError('config', `${file}:1: must be a YAML or JSON object`)
  const reading: Reading = {
    file,
    root,
    lineOf: (node) => counter.linePos((node as Node | null)?.range?.[0] ?? 0).line,
    values: new Map(),
    lines: new Map(),
    warnings: [],
    problems: [],
  }
  const more = root.errors[0]
  if (more !== undefined) {
    reading.warnings.push(`${file}:${counter.linePos(more.pos[0]).line}: only the first document of the file is read`)
  }
  checkKind(reading, root.contents)
  readMap(reading, root.contents, '')
  if (reading.problems.length > 0) throw new ProxyError('config', reading.problems.join('; '))
  return reading
}

/** YAML 1.1 as kube-proxy's reader knows it: `yes` is a boolean, but there are no base-60 numbers and no dates. */
function parse(text: string, lineCounter: LineCounter) {
  return parseDocument(text, {
    version: '1.1',
    uniqueKeys: false,
    prettyErrors: false,
    logLevel: 'error',
    lineCounter,
    customTags: (tags) =>
      tags.filter(
        (tag) => typeof tag === 'string' || (tag.tag !== 'tag:yaml.org,2002:timestamp' && tag.format !== 'TIME'),
      ),
  })
}

/** An alias must have an anchor before it, not around it, and not stand for a flood of copies. */
function checkAliases(file: string, root: ReturnType<typeof parse>, counter: LineCounter): void {
  const fail = (line: number, what: string) => {
    throw new ProxyError('config', `${file}:${line}: not valid YAML or JSON: ${what}`)
  }
  visit(root, {
    Alias(_, alias) {
      const at = alias.range?.[0] ?? 0
      const target = alias.resolve(root)
      const { line } = counter.linePos(at)
      if (target === undefined) fail(line, `alias *${alias.source} has no anchor`)
      else if ((target.range?.[2] ?? 0) > at) fail(line, `alias *${alias.source} stands inside its own anchor`)
    },
  })
  try {
    root.toJS()
  } catch (error) {
    fail(1, describeError(error))
  }
}

function checkKind(reading: Reading, map: YAMLMap): void {
  for (const [name, allowed] of [
    ['apiVersion', apiVersion],
    ['kind', documentKind],
  ] as const) {
    const entry = entriesOf(reading, map).findLast(({ key }) => key === name)
    const given = entry?.node?.toJS(reading.root)
    if (given === allowed) continue
    const line = reading.lineOf(entry?.keyNode ?? map)
    const what = entry === undefined ? 'missing' : `given ${JSON.stringify(given)}`
    throw new ProxyError('config', `${reading.file}:${line}: ${name}: ${what}, allowed: ${allowed}`)
  }
}

function readMap(reading: Reading, map: YAMLMap, prefix: string): void {
  const seen = new Map<string, number>()
  for (const { key, keyNode, node } of entriesOf(reading, map)) {
    const path = prefix + key
    const line = reading.lineOf(keyNode)
    const where = `${reading.file}:${line}: ${path}:`
    const before = seen.get(key)
    if (before !== undefined)
      reading.warnings.push(`${where} given a second time (first on line ${before}); this one counts`)
    seen.set(key, line)
    if (before !== undefined) forget(reading, path)
    if (prefix === '' && (key === 'apiVersion' || key === 'kind')) continue
    const row = settingByPath.get(path)
    const target = isAlias(node) ? node.resolve(reading.root) : node
    if (row !== undefined) readField(reading, row, target, line)
    else if (!isBlock(path)) reading.warnings.push(`${where} unknown field, ignored`)
    else if (isMap(target)) readMap(reading, target, `${path}.`)
    else if (!isNull(target)) {
      reading.problems.push(`${where} given ${plainText(reading, target)}, allowed: an object`)
    }
  }
}

function readField(reading: Reading, row: Setting, node: unknown, line: number): void {
  const path = row.path as string
  reading.lines.set(path, line)
  if (isSeq(node)) {
    for (const [i, item] of node.items.entries()) reading.lines.set(`${path}[${i}]`, reading.lineOf(item))
  }
  if (isNull(node)) return
  const plain = (node as Node).toJS(reading.root)
  const value = readValue(row, plain)
  if (value === undefined) {
    const allowed = fileForm(row)
    reading.problems.push(`${reading.file}:${line}: ${path}: given ${JSON.stringify(plain)}, allowed: ${allowed}`)
  } else {
    reading.values.set(path, value)
    if (row.deprecated !== undefined && value !== row.default) {
      reading.warnings.push(`${reading.file}:${line}: ${path}: ${row.deprecated}`)
    }
  }
}

/** A list, a map and an address read otherwise in a file than on a command line. */
function fileForm(row: Setting): string {
  if (row.kind === 'list') return 'a list of strings'
  if (row.kind === 'gates') return 'an object whose values are true or false'
  if (row.kind === 'vmodule') return 'a list of objects with filePattern and verbosity'
  return ['ip', 'ipPort', 'portRange'].includes(row.kind) ? 'a string' : codecs[row.kind].allowed
}

/** The pairs of a map, those it merges in with `<<` first, so that its own win. */
function entriesOf(reading: Reading, map: YAMLMap): Entry[] {
  const merged: Entry[] = []
  const own: Entry[] = []
  for (const pair of map.items) {
    const key = isScalar(pair.key) ? String(pair.key.value) : String(pair.key)
    const node = pair.value as Node | null
    if (key === '<<' || (isScalar(pair.key) && typeof pair.key.value === 'symbol')) {
      const sources = isSeq(node) ? node.items : [node]
      for (const source of sources) {
        const target = isAlias(source) ? source.resolve(reading.root) : source
        if (isMap(target)) merged.push(...entriesOf(reading, target))
      }
    } else own.push({ key, keyNode: pair.key, node })
  }
  const ownKeys = new Set(own.map(({ key }) => key))
  return [...merged.filter(({ key }) => !ownKeys.has(key)), ...own]
}

/** The earlier of two equal keys must leave nothing behind, also when it was an object. */
function forget(reading: Reading, path: string): void {
  for (const map of [reading.values, reading.lines]) {
    for (const known of map.keys()) {
      if (known === path || known.startsWith(`${path}.`) || known.startsWith(`${path}[`)) map.delete(known)
    }
  }
}

const isBlock = (path: string): boolean => [...settingByPath.keys()].some((known) => known.startsWith(`${path}.`))

const isNull = (node: unknown): boolean =>
  node === null || node === undefined || (isScalar(node) && (node.value === null || node.value === undefined))

const plainText = (reading: Reading, node: unknown): string => JSON.stringify((node as Node).toJS(reading.root))
