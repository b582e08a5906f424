// Parses YAML with limits on its size and nesting: the parser takes about 10 µs per token, and it is recursive. Pure.

import { type Document, isScalar, Lexer, parseDocument, visit, type YAMLMap } from 'yaml'
import { parseJson } from './json.ts'

/** kubectl and client-go send JSON, also for server-side apply, so these limits concern people with curl. JSON may have 3 MB. */
const maxBytes = 256 << 10
const maxTokens = 10_000
const maxDepth = 50
/** Each alias copies what it stands for. */
const maxAliases = 20

/** Tokens of the lexer that stand for no text: a document begins, and the next token is the text of a scalar. */
const documentMark = '\x02'
const scalarMark = '\x1f'
const opening = new Set(['[', '{'])
const closing = new Set([']', '}'])
const indicators = new Set(['-', '?', ':'])

/**
 * Throws a SyntaxError with a readable message. Takes time in proportion to the source, which keeps the proxy in the same process
 * running: the document may have 256 KB and 10,000 tokens, nested 50 deep.
 */
export function parseYaml(source: string): unknown {
  const json = parseIfJson(source)
  if (json !== undefined) return json.value
  if (Buffer.byteLength(source) > maxBytes) {
    throw new SyntaxError(`the YAML is longer than ${maxBytes} bytes; send JSON, which may be longer`)
  }
  checkTokens(source, maxTokens)
  // The message of a pretty error quotes the source, and to find the quote costs time for each error.
  const document = parseDocument(source, { uniqueKeys: false, prettyErrors: false, logLevel: 'error' })
  const [error] = document.errors
  if (error !== undefined) throw new SyntaxError(error.message)
  const duplicate = findDuplicateKey(document)
  if (duplicate !== undefined) throw new SyntaxError(`the key ${JSON.stringify(duplicate.key)} is set twice`)
  return toJson(document)
}

/** JSON is YAML, too. */
function parseIfJson(source: string): { readonly value: unknown } | undefined {
  if (!/^\s*[[{]/.test(source)) return undefined
  try {
    return { value: parseJson(source) }
  } catch {
    return undefined
  }
}

/** Converts the document to JSON and back, so that the limits of JSON hold as well. Throws an error with a readable message. */
export const toJson = (document: Document): unknown =>
  parseJson(JSON.stringify(document.toJS({ maxAliasCount: 100 })) ?? 'null')

/** The parser's own check compares each key with all keys before it. */
export function findDuplicateKey(document: Document): { readonly key: string; readonly offset: number } | undefined {
  let found: { key: string; offset: number } | undefined
  visit(document, {
    Map(_, map: YAMLMap) {
      const keys = new Set<string>()
      for (const { key } of map.items) {
        if (!isScalar(key)) continue
        const name = String(key.value)
        if (keys.has(name)) {
          found = { key: name, offset: key.range?.[0] ?? 0 }
          return visit.BREAK
        }
        keys.add(name)
      }
      return undefined
    },
  })
  return found
}

/**
 * Called before the parser; throws a SyntaxError. Refuses deep nesting, for which the parser has no limit, many aliases, and keys after
 * `?`, for which the time grows with the third power of the nesting; no field of Kubernetes needs them.
 */
export function checkTokens(source: string, limit = Number.POSITIVE_INFINITY): void {
  const nesting = new Nesting()
  let tokens = 0
  let aliases = 0
  let isScalarText = false
  for (const token of new Lexer().lex(source)) {
    if (token === documentMark) continue
    if (token === scalarMark) {
      isScalarText = true
      continue
    }
    nesting.add(token, isScalarText)
    if (nesting.depth > maxDepth) throw new SyntaxError(`the YAML nests deeper than ${maxDepth} levels`)
    if (!isScalarText) {
      if (token === '?') throw new SyntaxError('the YAML has a key after "?", which is not supported here')
      if (token.startsWith('*') && ++aliases > maxAliases)
        throw new SyntaxError(`the YAML has more than ${maxAliases} aliases`)
    }
    if (!isBlank(token) && ++tokens > limit)
      throw new SyntaxError(`the YAML has more than ${limit} tokens; send JSON, which may be longer`)
    isScalarText = false
  }
}

const isBlank = (token: string): boolean => token[0] === ' ' || token[0] === '\t'

/** Follows the tokens of a source and knows how deep the parser would be in its recursion. */
class Nesting {
  /** The columns at which open blocks begin. */
  readonly #blocks: number[] = []
  #flows = 0
  /** Colons since the last line, comma or bracket: each would be a mapping inside a mapping. */
  #colons = 0
  #column = 0
  /** True while the line has only blanks and indicators so far. */
  #isLineStart = true

  get depth(): number {
    return this.#blocks.length + this.#flows + this.#colons
  }

  add(token: string, isScalarText: boolean): void {
    if (isScalarText) this.#addContent()
    else if (token === '\n' || token === '\r\n') this.#startLine()
    else if (opening.has(token)) this.#changeFlow(1)
    else if (closing.has(token)) this.#changeFlow(-1)
    else if (token === ',') this.#colons = 0
    else if (indicators.has(token)) this.#addIndicator(token)
    else if (!isBlank(token) && !token.startsWith('#')) this.#addContent()
    const newline = token.lastIndexOf('\n')
    this.#column = newline < 0 ? this.#column + token.length : token.length - newline - 1
    if (isScalarText && newline >= 0) this.#startLine()
  }

  #startLine(): void {
    this.#isLineStart = true
    if (this.#flows === 0) this.#colons = 0
  }

  #changeFlow(by: 1 | -1): void {
    this.#addContent()
    this.#flows = Math.max(0, this.#flows + by)
    this.#colons = 0
  }

  #addIndicator(token: string): void {
    this.#enterBlock()
    if (token === ':') this.#colons++
  }

  #addContent(): void {
    this.#enterBlock()
    this.#isLineStart = false
  }

  #enterBlock(): void {
    if (!this.#isLineStart || this.#flows > 0) return
    while ((this.#blocks.at(-1) ?? -1) > this.#column) this.#blocks.pop()
    if ((this.#blocks.at(-1) ?? -1) < this.#column) this.#blocks.push(this.#column)
  }
}
