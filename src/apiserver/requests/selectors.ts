// Label and field selectors: parsing with the API server's errors, and matching. Pure.

import { badRequest } from '../schema/api-status.ts'
import { isLabelName, isLabelValue } from '../schema/name-rules.ts'

export type LabelMap = Readonly<Record<string, unknown>>

type Operator = '=' | '!=' | 'in' | 'notin' | 'exists' | '!' | '>' | '<'

export interface Requirement {
  readonly key: string
  readonly operator: Operator
  readonly values: readonly string[]
}

/** Throws a 400 Status. An empty selector matches everything. */
export function parseLabelSelector(text: string): readonly Requirement[] {
  const tokens = tokenize(text)
  const requirements: Requirement[] = []
  let at = 0
  const peek = () => tokens[at] ?? end
  const next = () => tokens[at++] ?? end
  while (peek() !== end) {
    requirements.push(requirement(next, peek))
    const separator = next()
    if (separator === end) break
    if (separator.text !== ',' || separator.word)
      throw unparsable(`found '${separator.text}', expected: ',' or 'end of string'`)
    if (peek() === end) throw unparsable("found '', expected: identifier after ','")
  }
  for (const { key, values, operator } of requirements) {
    if (!isLabelName(key))
      throw badRequest(`unable to parse requirement: <nil>: Invalid value: "${key}": not a valid label key`)
    const bad = operator === '>' || operator === '<' ? undefined : values.find((value) => !isLabelValue(value))
    if (bad !== undefined)
      throw badRequest(`unable to parse requirement: values: Invalid value: "${bad}": not a valid label value`)
  }
  return requirements
}

function requirement(next: () => Token, peek: () => Token): Requirement {
  const first = next()
  if (first.text === '!' && !first.word) {
    const key = next()
    if (!key.word) throw unparsable(`found '${key.text}', expected: identifier`)
    return { key: key.text, operator: '!', values: [] }
  }
  if (!first.word) throw unparsable(`found '${first.text}', expected: !, identifier, or 'end of string'`)
  const key = first.text
  const sign = peek()
  if (sign === end || (sign.text === ',' && !sign.word)) return { key, operator: 'exists', values: [] }
  next()
  switch (sign.text) {
    case '=':
    case '==':
      return { key, operator: '=', values: [value(next, peek)] }
    case '!=':
      return { key, operator: '!=', values: [value(next, peek)] }
    case '>':
    case '<': {
      const bound = value(next, peek)
      if (!/^-?\d+$/.test(bound))
        throw badRequest(
          `unable to parse requirement: values[0]: Invalid value: "${bound}": for 'Gt', 'Lt' operators, the value must be an integer`,
        )
      return { key, operator: sign.text, values: [bound] }
    }
    case 'in':
    case 'notin':
      return { key, operator: sign.text, values: valueList(next, peek) }
    default:
      throw unparsable(`found '${sign.text}', expected: in, notin, =, ==, !=, gt, lt`)
  }
}

function value(next: () => Token, peek: () => Token): string {
  // `a=` asks for the empty value.
  if (peek() === end || (peek().text === ',' && !peek().word)) return ''
  const token = next()
  if (!token.word) throw unparsable(`found '${token.text}', expected: identifier`)
  return token.text
}

function valueList(next: () => Token, peek: () => Token): readonly string[] {
  if (next().text !== '(') throw unparsable("found '', expected: '('")
  const values: string[] = []
  for (;;) {
    const token = peek()
    if (token.word) values.push(next().text)
    else if (token.text === ',' || token.text === ')') values.push('')
    else throw unparsable(`found '${token.text}', expected: ',', ')' or identifier`)
    const separator = next()
    if (separator.text === ')') return [...new Set(values)]
    if (separator.text !== ',') throw unparsable(`found '${separator.text}', expected: ',' or ')'`)
  }
}

interface Token {
  readonly text: string
  readonly word: boolean
}
const end: Token = { text: '', word: false }

function tokenize(text: string): readonly Token[] {
  const tokens: Token[] = []
  for (const [match] of text.matchAll(/==|!=|[=!<>(),]|[^\s=!<>(),]+/g)) {
    tokens.push({ text: match, word: !/^(==|!=|[=!<>(),])$/.test(match) })
  }
  return tokens
}

const unparsable = (why: string) => badRequest(`unable to parse requirement: ${why}`)

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
        if (value === undefined || !/^-?\d+$/.test(value)) return false
        const [left, right] = [BigInt(value), BigInt(values[0] as string)]
        return operator === '>' ? left > right : left < right
      }
    }
  })
}

/** A plain map, as services select pods by. */
export const matchesMap = (selector: LabelMap, labels: LabelMap): boolean =>
  Object.keys(selector).every((key) => Object.hasOwn(labels, key) && labels[key] === selector[key])

export interface FieldRequirement {
  readonly field: string
  readonly equal: boolean
  readonly value: string
}

/** Throws a 400 Status for a field that `known` does not have. Values may hold `\,` `\=` and `\\`. */
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

function splitTerms(text: string): readonly string[] {
  const terms: string[] = []
  let term = ''
  for (let i = 0; i < text.length; i++) {
    const c = text[i] as string
    if (c === '\\') {
      term += c + (text[++i] ?? '')
    } else if (c === ',') {
      terms.push(term)
      term = ''
    } else term += c
  }
  return [...terms, term]
}

export const matchesFields = (requirements: readonly FieldRequirement[], read: (field: string) => string): boolean =>
  requirements.every(({ field, equal, value }) => (read(field) === value) === equal)
