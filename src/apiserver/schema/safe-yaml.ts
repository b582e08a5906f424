// YAML that is safe to read: the parser is recursive, and Node dies if it runs out of stack in the middle of it. Pure.

import { parse } from 'yaml'
import { parseJson } from './json.ts'

const maxFlowDepth = 200
const maxColumn = 500

/**
 * Throws a SyntaxError before the parser is asked. A block can nest no deeper than the columns before its first word; a flow
 * no deeper than its open brackets. Brackets in strings count too, which no manifest has two hundred of.
 */
export function checkNesting(source: string): void {
  let depth = 0
  let column = 0
  let leading = true
  for (let i = 0; i < source.length; i++) {
    const c = source.charCodeAt(i)
    if (c === 10) {
      column = 0
      leading = true
    } else if (leading) {
      // space, tab, carriage return, - ? :
      leading = c === 32 || c === 9 || c === 13 || c === 45 || c === 63 || c === 58
      if (leading && ++column > maxColumn) throw new SyntaxError('the YAML is indented too deeply')
    }
    if (c === 91 || c === 123) depth++
    else if (c === 93 || c === 125) depth = Math.max(0, depth - 1)
    if (depth > maxFlowDepth) throw new SyntaxError('the YAML nests too deeply')
  }
}

/** Through JSON, so that the limits of JSON hold as well. Throws an error for people. */
export function parseYaml(source: string): unknown {
  checkNesting(source)
  return parseJson(JSON.stringify(parse(source, { maxAliasCount: 100, logLevel: 'error' })) ?? 'null')
}
