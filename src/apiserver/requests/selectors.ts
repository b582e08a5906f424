// Parses and matches label and field selectors, with the errors of the real kube-apiserver. Pure.

import { badRequest } from '../schema/api-status.ts'
import { isLabelName, isLabelValue } from '../schema/name-rules.ts'

export type LabelMap = Readonly<Record<string, unknown>>

type Operator = '=' | '!=' | 'in' | 'notin' | 'exists' | '!' | '>' | '<'

export interface Requirement {
  readonly key: string
  readonly operator: Operator
  readonly values: readonly string[]
}

/** Throws a Status 400. An empty selector matches everything. */
export function parseLabelSelector(text: string): readonly Requirement[] {
  const tokens = new TokenReader(text)
  const requirements: Requirement[] = []
  while (!tokens.isAtEnd) {
    requirements.push(parseRequirement(tokens))
    if (tokens.isAtEnd) break
    const separator = tokens.next()
    if (!isSign(separator, ',')) throw unparsable(`found '${separator.text}', expected: ',' or 'end of string'`)
    if (tokens.isAtEnd) throw unparsable("found '', expected: identifier after ','")
  }
  for (const requirement of requirements) checkRequirement(requirement)
  return requirements
}

function checkRequirement({ key, values, operator }: Requirement): void {
  if (!isLabelName(key))
    throw badRequest(`unable to parse requirement: <nil>: Invalid value: "${key}": not a valid label key`)
  if (operator === '>' || operator === '<') return
  const bad = values.find((value) => !isLabelValue(value))
  if (bad !== undefined)
    throw badRequest(`unable to parse requirement: values: Invalid value: "${bad}": not a valid label value`)
}

function parseRequirement(tokens: TokenReader): Requirement {
  const first = tokens.next()
  if (isSign(first, '!')) return { key: parseWord(tokens), operator: '!', values: [] }
  if (!first.isWord) throw unparsable(`found '${first.text}', expected: !, identifier, or 'end of string'`)
  const key = first.text
  if (tokens.isAtEnd || isSign(tokens.peek(), ',')) return { key, operator: 'exists', values: [] }
  const operator = tokens.next().text
  const parseValues = operators.get(operator)
  if (parseValues === undefined) throw unparsable(`found '${operator}', expected: in, notin, =, ==, !=, gt, lt`)
  return { key, ...parseValues(tokens) }
}

/** Parses what follows the operator. */
type ValuesParser = (tokens: TokenReader) => Omit<Requirement, 'key'>

const operators: ReadonlyMap<string, ValuesParser> = new Map<string, ValuesParser>([
  ['=', (tokens) => ({ operator: '=', values: [parseValue(tokens)] })],
  ['==', (tokens) => ({ operator: '=', values: [parseValue(tokens)] })],
  ['!=', (tokens) => ({ operator: '!=', values: [parseValue(tokens)] })],
  ['>', (tokens) => ({ operator: '>', values: [parseBound(tokens)] })],
  ['<', (tokens) => ({ operator: '<', values: [parseBound(tokens)] })],
  ['in', (tokens) => ({ operator: 'in', values: parseValueList(tokens) })],
  ['notin', (tokens) => ({ operator: 'notin', values: parseValueList(tokens) })],
])

function parseWord(tokens: TokenReader): string {
  const token = tokens.next()
  if (!token.isWord) throw unparsable(`found '${token.text}', expected: identifier`)
  return token.text
}

/** `a=` asks for the empty value. */
const parseValue = (tokens: TokenReader): string =>
  tokens.isAtEnd || isSign(tokens.peek(), ',') ? '' : parseWord(tokens)

function parseBound(tokens: TokenReader): string {
  const bound = parseValue(tokens)
  if (!isInteger(bound))
    throw badRequest(
      `unable to parse requirement: values[0]: Invalid value: "${bound}": for 'Gt', 'Lt' operators, the value must be an integer`,
    )
  return bound
}

function parseValueList(tokens: TokenReader): readonly string[] {
  if (tokens.next().text !== '(') throw unparsable("found '', expected: '('")
  const values: string[] = []
  for (;;) {
    const token = tokens.peek()
    if (token.isWord) values.push(tokens.next().text)
    else if (token.text === ',' || token.text === ')') values.push('')
    else throw unparsable(`found '${token.text}', expected: ',', ')' or identifier`)
    const separator = tokens.next()
    if (separator.text === ')') return [...new Set(values)]
    if (separator.text !== ',') throw unparsable(`found '${separator.text}', expected: ',' or ')'`)
  }
}

interface Token {
  readonly text: string
  /** False for signs and for the end. */
  readonly isWord: boolean
}
const end: Token = { text: '', isWord: false }

const isSign = (token: Token, sign: string): boolean => token.text === sign && !token.isWord

class TokenReader {
  readonly #tokens: readonly Token[]
  #at = 0

  constructor(text: string) {
    this.#tokens = [...text.matchAll(/(==|!=|[=!<>(),])|[^\s=!<>(),]+/g)].map(([match, sign]) => ({
      text: match,
      isWord: sign === undefined,
    }))
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#tokens.length
  }

  peek(): Token {
    return this.#tokens[this.#at] ?? end
  }

  next(): Token {
    return this.#tokens[this.#at++] ?? end
  }
}

const unparsable = (why: string) => badRequest(`unable to parse requirement: ${why}`)
const isInteger = (text: string): boolean => /^-?\d+$/.test(text)

export function matchesLabels(requirements: readonly Requirement[], labels: LabelMap): boolean {
  return requirements.every(({ key, operator, values }) => {
    const value = Object.hasOwn(labels, key) ? String(labels[key]) : undefined
    switch (operator) {
      case 'exists':
        return value !== undefined
      case '!':
        return value === undefined
      case '=':
      case 'in':
        return value !== undefined && values.includes(value)
      case '!=':
      case 'notin':
        return value === undefined || !values.includes(value)
      default: {
        if (value === undefined || !isInteger(value)) return false
        const [left, right] = [BigInt(value), BigInt(values[0] ?? '')]
        return operator === '>' ? left > right : left < right
      }
    }
  })
}

/** Matches a plain map of labels, which is how a service selects pods. */
export const matchesMap = (selector: LabelMap, labels: LabelMap): boolean =>
  Object.keys(selector).every((key) => Object.hasOwn(labels, key) && labels[key] === selector[key])

export interface FieldRequirement {
  readonly field: string
  /** False for `!=`. */
  readonly equal: boolean
  readonly value: string
}

/** Throws a Status 400 for a field that is not in `known`. Values may contain the escapes `\,` `\=` and `\\`. */
export function parseFieldSelector(text: string, known: readonly string[]): readonly FieldRequirement[] {
  return splitTerms(text)
    .filter((term) => term !== '')
    .map((term) => {
      const match = /^((?:[^\\=!]|\\.)+?)(==|!=|=)((?:[^\\=]|\\.)*)$/s.exec(term)
      if (match === null) throw badRequest(`invalid selector: '${term}'; can't understand '${term}'`)
      const [, field = '', sign, raw = ''] = match
      if (!known.includes(field)) throw badRequest(`field label not supported: ${field}`)
      if (/\\[^\\,=]|\\$/.test(raw))
        throw badRequest(`invalid field selector: invalid escape sequence in value: ${raw}`)
      return { field, equal: sign !== '!=', value: raw.replace(/\\(.)/g, '$1') }
    })
}

/** Splits at commas that are not escaped. */
const splitTerms = (text: string): readonly string[] =>
  [...text.matchAll(/((?:[^\\,]|\\.?)*)(?:,|$)/gs)].map(([, term = '']) => term)

export const matchesFields = (requirements: readonly FieldRequirement[], read: (field: string) => string): boolean =>
  requirements.every(({ field, equal, value }) => (read(field) === value) === equal)
