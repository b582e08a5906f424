// Parses the command-line syntax of Kubernetes programs (pflag): no other parser reads `-v=4`, bare booleans and lists in this way. Pure.

import { ProxyError } from '../../lib/errors.ts'
import { codecs, type Value } from '../codecs.ts'
import { type CommandLine, type FlagSetting, type FlagValues, parseValue, type TypedSetting } from '../setting.ts'

export interface ParsedFlags<R extends TypedSetting> extends CommandLine<R> {
  /** Arguments that are not flags. */
  readonly rest: readonly string[]
  /** One warning for each deprecated flag that was given. */
  readonly warnings: readonly string[]
}

/** Throws a ProxyError with code 'usage' that names the flag, the given text and what is allowed. */
export function parseFlags<R extends TypedSetting & FlagSetting>(
  table: readonly R[],
  argv: readonly string[],
): ParsedFlags<R> {
  const given = new Map<string, Value>()
  const rest: string[] = []
  const queue = [...argv]
  for (let argument = queue.shift(); argument !== undefined; argument = queue.shift()) {
    if (argument === '--') {
      rest.push(...queue)
      break
    }
    if (argument === '-' || !argument.startsWith('-')) rest.push(argument)
    else if (argument.startsWith('--')) parseLong(table, argument, queue, given)
    else parseShort(table, argument, queue, given)
  }
  const warnings = table
    .filter((row) => row.deprecated !== undefined && given.has(row.flag))
    .map((row) => `flag --${row.flag} is deprecated: ${row.deprecated}`)
  return { values: collectValues(table, given), given: new Set(given.keys()), rest, warnings }
}

/** The cast holds because each value is its row's default or comes from its row's codec. */
function collectValues<R extends TypedSetting & FlagSetting>(
  table: readonly R[],
  given: ReadonlyMap<string, Value>,
): FlagValues<R> {
  return Object.fromEntries(table.map((row) => [row.flag, given.get(row.flag) ?? row.default])) as FlagValues<R>
}

function parseLong(table: readonly FlagSetting[], argument: string, queue: string[], given: Map<string, Value>): void {
  const body = argument.slice(2)
  if (body.startsWith('-') || body.startsWith('=')) throw new ProxyError('usage', `bad flag syntax: ${argument}`)
  const equals = body.indexOf('=')
  const name = (equals < 0 ? body : body.slice(0, equals)).replaceAll('_', '-')
  const row = table.find((each) => each.flag === name)
  if (row === undefined) throw new ProxyError('usage', `unknown flag: --${name}${suggest(table, name)}`)
  const text = equals < 0 ? (codecs[row.kind].bare ?? queue.shift()) : body.slice(equals + 1)
  assign(row, `--${row.flag}`, text, given)
}

/** Parses `-v4`, `-v=4`, `-v 4`, and several letters in a row if only the last one takes a value. */
function parseShort(table: readonly FlagSetting[], argument: string, queue: string[], given: Map<string, Value>): void {
  for (let letters = argument.slice(1); letters !== ''; ) {
    const letter = letters.charAt(0)
    const row = table.find((each) => each.shorthand === letter)
    if (row === undefined) throw new ProxyError('usage', `unknown shorthand flag: '${letter}' in ${argument}`)
    const { bare } = codecs[row.kind]
    if (letters.length > 2 && letters[1] === '=') {
      assign(row, `-${letter}`, letters.slice(2), given)
      return
    }
    if (bare === undefined) {
      assign(row, `-${letter}`, letters.length > 1 ? letters.slice(1) : queue.shift(), given)
      return
    }
    assign(row, `-${letter}`, bare, given)
    letters = letters.slice(1)
  }
}

function assign(row: FlagSetting, shown: string, text: string | undefined, given: Map<string, Value>): void {
  const { allowed } = codecs[row.kind]
  if (text === undefined) throw new ProxyError('usage', `${shown}: needs a value, allowed: ${allowed}`)
  const value = parseValue(row, text, given.get(row.flag) ?? row.default, !given.has(row.flag))
  if (value === undefined) {
    throw new ProxyError('usage', `${shown}: given ${JSON.stringify(text)}, allowed: ${allowed}`)
  }
  given.set(row.flag, value)
}

function suggest(table: readonly FlagSetting[], name: string): string {
  const near = table.map((row) => row.flag).filter((flag) => flag.length > 2 && countEdits(flag, name) <= 2)
  return near.length === 0 ? '' : ` (did you mean ${near.map((flag) => `--${flag}`).join(' or ')}?)`
}

/** Letters to change, add or remove to turn one word into the other. */
function countEdits(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (const [i, letter] of [...a].entries()) {
    let left = i + 1
    const next = [left]
    for (const [j, above] of row.slice(1).entries()) {
      const change = (row[j] ?? 0) + (letter === b[j] ? 0 : 1)
      left = Math.min(change, above + 1, left + 1)
      next.push(left)
    }
    row = next
  }
  return row.at(-1) ?? 0
}
