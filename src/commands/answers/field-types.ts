// The types of fields in the JSON of the commands, and how JSON Schema and people write them. Pure.

export type FieldType =
  | { readonly is: 'string' | 'time' | 'integer' | 'number' | 'boolean' }
  | { readonly is: 'family' }
  | { readonly is: 'enum'; readonly words: readonly string[] }
  | { readonly is: 'list'; readonly of: FieldType }
  | { readonly is: 'nullable'; readonly of: FieldType }
  | { readonly is: 'object'; readonly name: string }

export interface AnswerField {
  readonly type: FieldType
  readonly about: string
  readonly optional?: true
}

export type AnswerFields = Readonly<Record<string, AnswerField>>

export const text: FieldType = { is: 'string' }
export const time: FieldType = { is: 'time' }
export const integer: FieldType = { is: 'integer' }
export const number: FieldType = { is: 'number' }
export const boolean: FieldType = { is: 'boolean' }
export const family: FieldType = { is: 'family' }
export const oneOf = (...words: readonly string[]): FieldType => ({ is: 'enum', words })
export const list = (of: FieldType): FieldType => ({ is: 'list', of })
export const nullable = (of: FieldType): FieldType => ({ is: 'nullable', of })
export const ref = (name: string): FieldType => ({ is: 'object', name })

/** A field that is always there. */
export const field = (type: FieldType, about: string): AnswerField => ({ type, about })

/** A field that may be absent. */
export const optional = (type: FieldType, about: string): AnswerField => ({ type, about, optional: true })

type Schema = Readonly<Record<string, unknown>>

export function schemaOf(type: FieldType): Schema {
  switch (type.is) {
    case 'time':
      return { type: 'string', format: 'date-time' }
    case 'family':
      return { enum: [4, 6] }
    case 'enum':
      return { enum: type.words }
    case 'list':
      return { type: 'array', items: schemaOf(type.of) }
    case 'nullable':
      return { anyOf: [schemaOf(type.of), { type: 'null' }] }
    case 'object':
      return { $ref: `#/$defs/${type.name}` }
    default:
      return { type: type.is }
  }
}

/** All fields are listed: a field that no document describes is an error. */
export const objectSchema = (about: string, fields: AnswerFields): Schema => ({
  type: 'object',
  description: about,
  properties: Object.fromEntries(
    Object.entries(fields).map(([name, { type, about: description }]) => [name, { ...schemaOf(type), description }]),
  ),
  required: Object.entries(fields).flatMap(([name, one]) => (one.optional ? [] : [name])),
  additionalProperties: false,
})

export function describeType(type: FieldType): string {
  switch (type.is) {
    case 'time':
      return 'string, RFC 3339 time'
    case 'family':
      return '4 or 6'
    case 'enum':
      return type.words.map((word) => (word === '' ? '`""`' : `\`${word}\``)).join(', ')
    case 'list':
      return `list of ${describeType(type.of)}`
    case 'nullable':
      return `${describeType(type.of)}, or null`
    case 'object':
      return `[${type.name}](#${type.name.toLowerCase()})`
    default:
      return type.is
  }
}

export interface AnswerObject {
  readonly about: string
  readonly fields: AnswerFields
}
