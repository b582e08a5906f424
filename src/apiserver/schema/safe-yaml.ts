// Parses YAML with limits on its nesting: the parser is recursive, and Node crashes if the stack runs out inside it. Pure.

import { parse } from 'yaml'
import { parseJson } from './json.ts'

const maxFlowDepth = 200
const maxIndent = 500

/**
 * Throws a SyntaxError; called before the parser. A block can nest no deeper than the characters before its first word, and a flow
 * collection no deeper than its open brackets. Brackets inside strings count too; no manifest has two hundred of them.
 */
export function checkNesting(source: string): void {
  for (const line of source.split('\n')) {
    if (indentOf(line) > maxIndent) throw new SyntaxError('the YAML is indented too deeply')
  }
  let depth = 0
  for (const [bracket] of source.matchAll(/[[\]{}]/g)) {
    if (bracket === '[' || bracket === '{') depth++
    else depth = Math.max(0, depth - 1)
    if (depth > maxFlowDepth) throw new SyntaxError('the YAML nests too deeply')
  }
}

/** The number of characters before the first word: blanks, and the indicators that open a nested block. */
const indentOf = (line: string): number => /^[ \t\r?:-]*/.exec(line)?.[0].length ?? 0

/** Converts the document to JSON and back, so that the limits of JSON hold as well. Throws an error with a readable message. */
export function parseYaml(source: string): unknown {
  checkNesting(source)
  return parseJson(JSON.stringify(parse(source, { maxAliasCount: 100, logLevel: 'error' })) ?? 'null')
}
