// The command-line syntax of Kubernetes programs (pflag): no other parser takes `-v=4`, bare booleans and lists the way it does.

import { ProxyError } from '../../lib/errors.ts'
import { parseValue, type Setting } from '../setting.ts'
import { codecs, type Value } from '../values.ts'

export type FlagSetting = Setting & { readonly flag: string }

export interface ParsedFlags {
  /** Values of the flags that were given. */
  readonly given: ReadonlyMap<string, Value>
  /** Arguments that are no flags. */
  readonly rest: readonly string[]
  /** One for each deprecated flag that was used. */
  readonly warnings: readonly string[]
}

/** Throws a ProxyError with code 'usage' that names the flag, what was given and what is allowed. */
export function parseFlags(table: readonly FlagSetting[], argv: readonly string[]): ParsedFlags {
  const given = new Map<string, Value>()
  const rest: string[] = []
  const queue = [...argv]
  for (let argument = queue.shift(); argument !== undefined; argument = queue.shift()) {
    if (argument === '--') {
      rest.push(...queue)
      break
    }
    if (argument === '-' || !argument.startsWith('-')) rest.push(argument)
    else if (argument.startsWith('--')) takeLong(table, argument, queue, given)
    else takeShort(table, argument, queue, given)
  }
  const warnings = table
    .filter((row) => row.deprecated !== undefined && given.has(row.flag))
    .map((row) => `flag --${row.flag} is deprecated: ${row.deprecated}`)
  return { given, rest, warnings }
}

function takeLong(table: readonly FlagSetting[], argument: string, queue: string[], given: Map<string, Value>): void {
  const body = argument.slice(2)
  if (body.startsWith('-') || body.startsWith('=')) throw new ProxyError('usage', `bad flag syntax: ${argument}`)
  const equals = body.indexOf('=')
  const name = (equals < 0 ? body : body.slice(0, equals)).replaceAll('_', '-')
  const row = table.find((each) => each.flag === name)
  if (row === undefined) throw new ProxyError('usage', `unknown flag: --${name}${suggest(table, name)}`)
  const text = equals < 0 ? (codecs[row.kind].bare ?? queue.shift()) : body.slice(equals + 1)
  assign(row, `--${row.flag}`, text, given)
}

/** `-v4`, `-v=4`, `-v 4`, and letters in a row as long as they take no value. */
function takeShort(table: readonly FlagSetting[], argument: string, queue: string[], given: Map<string, Value>): void {
  for (let letters = argument.slice(1); letters !== ''; ) {
    const letter = letters.charAt(0)
    const row = table.find((each) => each.shorthand === letter)
    if (row === undefined) throw new ProxyError('usage', `unknown shorthand flag: '${letter}' in ${argument}`)
    const { bare } = codecs[row.kind]
    if (letters.length > 2 && letters[1] === '=') {
      assign(row, `-${letter}`, letters.slice(2), given)
      return
    }
    if (bare !== undefined) {
      assign(row, `-${letter}`, bare, given)
      letters = letters.slice(1)
    } else {
      assign(row, `-${letter}`, letters.length > 1 ? letters.slice(1) : queue.shift(), given)
      return
    }
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
  const near = table.map((row) => row.flag).filter((flag) => flag.length > 2 && distance(flag, name) <= 2)
  return near.length === 0 ? '' : ` (did you mean ${near.map((flag) => `--${flag}`).join(' or ')}?)`
}

/** Letters to change, add or leave out to make one word of another. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (const [i, letter] of [...a].entries()) {
    const next = [i + 1]
    for (let j = 0; j < b.length; j++) {
      const swap = (row[j] as number) + (letter === b[j] ? 0 : 1)
      next.push(Math.min(swap, (row[j + 1] as number) + 1, (next[j] as number) + 1))
    }
    row = next
  }
  return row[b.length] as number
}
