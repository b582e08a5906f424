// Decodes YAML or JSON text to values of the fields of one kind of document, and records the line of each field. Pure.

import {
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  type Pair,
  parseDocument,
  visit,
  type YAMLMap,
} from 'yaml'
import { describeError, ProxyError } from '../lib/errors.ts'
import { codecs, type Value } from './codecs.ts'
import { type FieldSetting, readValue, type Setting } from './setting.ts'

/** A kind of document, and the rows of its fields. */
export interface DocumentSchema {
  readonly apiVersion: string
  readonly kind: string
  readonly settings: ReadonlyMap<string, FieldSetting>
}

export interface DecodedConfig {
  /** Values that the file gives, by path, zeros included. */
  readonly values: ReadonlyMap<string, Value>
  /** Line of each field and list entry (`nodePortAddresses[0]`), by path. */
  readonly lines: ReadonlyMap<string, number>
  readonly warnings: readonly string[]
}

/** Throws one error that lists every problem. As in kube-proxy's v1alpha1, unknown and repeated fields only cause warnings. */
export function decode(file: string, text: string, schema: DocumentSchema): DecodedConfig {
  return new Decoder(file, text, schema).decode()
}

type Root = ReturnType<typeof parse>

interface Entry {
  readonly key: string
  readonly keyNode: unknown
  readonly node: unknown
}

class Decoder {
  readonly #file: string
  readonly #schema: DocumentSchema
  readonly #counter = new LineCounter()
  readonly #root: Root
  readonly #values = new Map<string, Value>()
  readonly #lines = new Map<string, number>()
  readonly #warnings: string[] = []
  readonly #problems: string[] = []

  constructor(file: string, text: string, schema: DocumentSchema) {
    this.#file = file
    this.#schema = schema
    this.#root = parse(text, this.#counter)
  }

  decode(): DecodedConfig {
    this.#checkSyntax()
    const { contents } = this.#root
    if (!isMap(contents)) throw new ProxyError('config', `${this.#file}:1: must be a YAML or JSON object`)
    this.#checkHeader(contents, 'apiVersion', this.#schema.apiVersion)
    this.#checkHeader(contents, 'kind', this.#schema.kind)
    this.#readMap(contents, '')
    if (this.#problems.length > 0) throw new ProxyError('config', this.#problems.join('; '))
    return { values: this.#values, lines: this.#lines, warnings: this.#warnings }
  }

  #checkSyntax(): void {
    for (const { code, pos, message } of this.#root.errors) {
      const { line } = this.#counter.linePos(pos[0])
      if (code !== 'MULTIPLE_DOCS') throw this.#syntaxError(line, message)
      this.#warnings.push(`${this.#file}:${line}: only the first document of the file is read`)
    }
    visit(this.#root, {
      Alias: (_, alias) => {
        const start = alias.range?.[0] ?? 0
        const target = alias.resolve(this.#root)
        const { line } = this.#counter.linePos(start)
        if (target === undefined) throw this.#syntaxError(line, `alias *${alias.source} has no anchor`)
        if ((target.range?.[2] ?? 0) > start) {
          throw this.#syntaxError(line, `alias *${alias.source} stands inside its own anchor`)
        }
      },
    })
    try {
      // The parser refuses a document whose aliases expand to too many copies, but only here.
      this.#root.toJS()
    } catch (error) {
      throw this.#syntaxError(1, describeError(error))
    }
  }

  #syntaxError(line: number, problem: string): ProxyError {
    return new ProxyError('config', `${this.#file}:${line}: not valid YAML or JSON: ${problem}`)
  }

  #checkHeader(map: YAMLMap, name: string, allowed: string): void {
    const entry = listEntries(this.#root, map).findLast(({ key }) => key === name)
    const given = this.#plain(entry?.node)
    if (given === allowed) return
    const line = this.#lineOf(entry?.keyNode ?? map)
    const what = entry === undefined ? 'missing' : `given ${JSON.stringify(given)}`
    throw new ProxyError('config', `${this.#file}:${line}: ${name}: ${what}, allowed: ${allowed}`)
  }

  #readMap(map: YAMLMap, prefix: string): void {
    const seen = new Map<string, number>()
    for (const { key, keyNode, node } of listEntries(this.#root, map)) {
      const path = prefix + key
      const line = this.#lineOf(keyNode)
      const first = seen.get(key)
      if (first !== undefined) {
        this.#warn(line, path, `given a second time (first on line ${first}); this one counts`)
        this.#forget(path)
      }
      seen.set(key, line)
      if (path !== 'apiVersion' && path !== 'kind') this.#readEntry(path, line, resolve(this.#root, node))
    }
  }

  #readEntry(path: string, line: number, node: unknown): void {
    const row = this.#schema.settings.get(path)
    if (row !== undefined) this.#readField(row, node, line)
    else if (!this.#isBlock(path)) this.#warn(line, path, 'unknown field, ignored')
    else if (isMap(node)) this.#readMap(node, `${path}.`)
    else if (!isNull(node)) this.#refuse(line, path, this.#plain(node), 'an object')
  }

  #readField(row: FieldSetting, node: unknown, line: number): void {
    const { path } = row
    this.#lines.set(path, line)
    if (isSeq(node)) {
      for (const [i, item] of node.items.entries()) this.#lines.set(`${path}[${i}]`, this.#lineOf(item))
    }
    if (isNull(node)) return
    const plain = this.#plain(node)
    const value = readValue(row, nameSwitch(row, plain))
    if (value === undefined) {
      this.#refuse(line, path, plain, describeAllowed(row))
      return
    }
    this.#values.set(path, value)
    if (row.deprecated !== undefined && value !== row.default) this.#warn(line, path, row.deprecated)
  }

  /** Removes what an earlier entry with the same key has left, also if the entry was an object. */
  #forget(path: string): void {
    for (const map of [this.#values, this.#lines]) {
      for (const known of map.keys()) {
        if (known === path || known.startsWith(`${path}.`) || known.startsWith(`${path}[`)) map.delete(known)
      }
    }
  }

  #isBlock(path: string): boolean {
    return [...this.#schema.settings.keys()].some((known) => known.startsWith(`${path}.`))
  }

  #warn(line: number, path: string, warning: string): void {
    this.#warnings.push(`${this.#file}:${line}: ${path}: ${warning}`)
  }

  #refuse(line: number, path: string, given: unknown, allowed: string): void {
    this.#problems.push(`${this.#file}:${line}: ${path}: given ${JSON.stringify(given)}, allowed: ${allowed}`)
  }

  #lineOf(node: unknown): number {
    return this.#counter.linePos(isNode(node) ? (node.range?.[0] ?? 0) : 0).line
  }

  #plain(node: unknown): unknown {
    return isNode(node) ? node.toJS(this.#root) : node
  }
}

/** YAML 1.1 reads `on` and `off` without quotes as booleans. */
function nameSwitch({ words }: FieldSetting, value: unknown): unknown {
  const word = value === true ? 'on' : 'off'
  return typeof value === 'boolean' && words?.includes(word) ? word : value
}

/** Parses YAML 1.1 as kube-proxy's reader does: `yes` is a boolean, but there are no base-60 numbers and no dates. */
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

/** The entries of a map. Entries that `<<` merges come first, and only if the map does not have their key itself. */
function listEntries(root: Root, map: YAMLMap): readonly Entry[] {
  const own = map.items
    .filter((pair) => !isMerge(pair))
    .map((pair) => ({ key: readKey(pair), keyNode: pair.key, node: pair.value }))
  const ownKeys = new Set(own.map(({ key }) => key))
  const merged = map.items
    .filter(isMerge)
    .flatMap(({ value }) => (isSeq(value) ? value.items : [value]))
    .map((source) => resolve(root, source))
    .flatMap((source) => (isMap(source) ? listEntries(root, source) : []))
  return [...merged.filter(({ key }) => !ownKeys.has(key)), ...own]
}

const readKey = ({ key }: Pair): string => String(isScalar(key) ? key.value : key)

const isMerge = (pair: Pair): boolean =>
  readKey(pair) === '<<' || (isScalar(pair.key) && typeof pair.key.value === 'symbol')

const resolve = (root: Root, node: unknown): unknown => (isAlias(node) ? node.resolve(root) : node)

/** Describes what a field allows in a file. Lists, maps and addresses look different on a command line. */
function describeAllowed(row: Setting): string {
  if (row.kind === 'list') return 'a list of strings'
  if (row.kind === 'gates') return 'an object whose values are true or false'
  if (row.kind === 'vmodule') return 'a list of objects with filePattern and verbosity'
  return ['ip', 'ipPort', 'portRange'].includes(row.kind) ? 'a string' : codecs[row.kind].allowed
}

const isNull = (node: unknown): boolean =>
  node === null || node === undefined || (isScalar(node) && (node.value === null || node.value === undefined))
