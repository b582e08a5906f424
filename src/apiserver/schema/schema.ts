// A notation for the schemas of API objects, and the decoder that reads bodies by them. OpenAPI documents, strategic merge and field
// ownership read the same tables (kinds.ts). Pure.

import { isEmpty, isObject, type Json, type MutableJson } from './json.ts'

export type Schema = ScalarSchema | MapSchema | ListSchema | ObjectSchema

interface ScalarSchema {
  readonly type: 'string' | 'boolean' | 'integer' | 'int-or-string' | 'time' | 'any'
  readonly format?: string
  /** True if the field is a pointer in Kubernetes' Go types: then '' and 0 differ from an absent field. */
  readonly pointer?: boolean
  /** The Go type of a string that has a type of its own. */
  readonly goType?: string
}
interface MapSchema {
  readonly type: 'map'
  readonly of: Schema
}
export interface ListSchema {
  readonly type: 'list'
  readonly of: Schema
  /** Strategic merge treats elements with equal values of this field as one. '' if the list is a set of plain values. */
  readonly mergeKey?: string
  /** The fields that identify an element in server-side apply, which may need more than one. */
  readonly keys?: readonly string[]
}
export interface ObjectSchema {
  readonly type: 'object'
  /** The name in the Kubernetes documentation, which is also the key in OpenAPI documents. */
  readonly name: string
  readonly fields: Readonly<Record<string, Schema>>
  /** True if fields that are not listed are stored unchanged. */
  readonly open?: boolean
}

export const string: ScalarSchema = { type: 'string' }
export const stringPointer: ScalarSchema = { type: 'string', pointer: true }
export const namedString = (name: string): ScalarSchema => ({ type: 'string', goType: `v1.${name}` })
export const namedPointer = (name: string): ScalarSchema => ({ ...namedString(name), pointer: true })
export const boolean: ScalarSchema = { type: 'boolean' }
export const int32: ScalarSchema = { type: 'integer', format: 'int32' }
export const int32Pointer: ScalarSchema = { type: 'integer', format: 'int32', pointer: true }
export const int64: ScalarSchema = { type: 'integer', format: 'int64' }
export const int64Pointer: ScalarSchema = { type: 'integer', format: 'int64', pointer: true }
export const intOrString: ScalarSchema = { type: 'int-or-string' }
export const time: ScalarSchema = { type: 'time', format: 'date-time' }
export const anything: ScalarSchema = { type: 'any' }
export const mapOf = (of: Schema): MapSchema => ({ type: 'map', of })
export const listOf = (of: Schema): ListSchema => ({ type: 'list', of })
export const setOf = (of: Schema): ListSchema => ({ type: 'list', of, mergeKey: '', keys: [] })
export const keyedListOf = (of: Schema, mergeKey: string, keys: readonly string[] = [mergeKey]): ListSchema => ({
  type: 'list',
  of,
  mergeKey,
  keys,
})
export const objectOf = (name: string, fields: ObjectSchema['fields']): ObjectSchema => ({
  type: 'object',
  name,
  fields,
})
export const openObjectOf = (name: string, fields: ObjectSchema['fields']): ObjectSchema => ({
  type: 'object',
  name,
  fields,
  open: true,
})

const unknownField: Schema = { type: 'any' }

/** The schema of a field of an object, or of a value of a map. */
export function fieldSchema(schema: Schema, key: string): Schema {
  if (schema.type === 'map') return schema.of
  const field = schema.type === 'object' && Object.hasOwn(schema.fields, key) ? schema.fields[key] : undefined
  return field ?? unknownField
}

/** A value of a type that its field does not have. */
export interface TypeMismatch {
  readonly path: string
  /** In the words of the real server, which is written in Go. */
  readonly message: string
}

export interface DecodedObject {
  readonly object: MutableJson
  /** Paths of fields that the schema does not have; the object lacks them. */
  readonly unknown: readonly string[]
  /** The first mismatch; the object is unusable then. */
  readonly mismatch: TypeMismatch | undefined
}

/** Copies the fields that the schema has, without nulls and empty values, as Go's `omitempty` does. */
export function decodeObject(schema: ObjectSchema, value: Json): DecodedObject {
  const decoder = new Decoder()
  const object = decoder.decodeFields(schema, value, '')
  return { object, unknown: decoder.unknown, mismatch: decoder.mismatch }
}

/** A place in the body: its path, and the struct field that Go's decoder names in its errors. */
interface Position {
  readonly path: string
  readonly goField: string
}

class Decoder {
  readonly unknown: string[] = []
  mismatch: TypeMismatch | undefined

  decodeFields(schema: ObjectSchema, value: Json, path: string): MutableJson {
    const object: MutableJson = {}
    for (const [key, inner] of Object.entries(value)) {
      const field = Object.hasOwn(schema.fields, key) ? schema.fields[key] : undefined
      const at = path === '' ? key : `${path}.${key}`
      if (field === undefined) {
        if (schema.open === true) object[key] = inner
        else this.unknown.push(at)
      } else if (inner !== null && inner !== undefined) {
        const goField = `${shortName(schema.name)}.${at.replace(/\[\d+\]/g, '')}`
        const decoded = this.#decodeValue(field, inner, { path: at, goField })
        if (!isOmitted(field, decoded)) object[key] = decoded
      }
    }
    return object
  }

  #decodeValue(schema: Schema, value: unknown, at: Position): unknown {
    switch (schema.type) {
      case 'any':
        return value
      case 'object':
        if (!isObject(value)) return this.#refuse(value, schema, at)
        return this.decodeFields(schema, value, at.path)
      case 'map':
        if (!isObject(value)) return this.#refuse(value, schema, at)
        return Object.fromEntries(
          Object.entries(value).map(([key, inner]) => [
            key,
            this.#decodeElement(schema.of, inner, { ...at, path: `${at.path}.${key}` }),
          ]),
        )
      case 'list':
        if (!Array.isArray(value)) return this.#refuse(value, schema, at)
        return value.map((inner, i) => this.#decodeElement(schema.of, inner, { ...at, path: `${at.path}[${i}]` }))
      default:
        return fits(schema, value) ? value : this.#refuse(value, schema, at)
    }
  }

  /** Go decodes a null in a list or map as the zero value. */
  #decodeElement(schema: Schema, value: unknown, at: Position): unknown {
    return value === null ? zeroValue(schema) : this.#decodeValue(schema, value, at)
  }

  #refuse(value: unknown, wanted: Schema, { path, goField }: Position): undefined {
    this.mismatch ??= {
      path,
      message: `json: cannot unmarshal ${jsonType(value)} into Go struct field ${goField} of type ${goType(wanted)}`,
    }
    return undefined
  }
}

function fits(schema: ScalarSchema, value: unknown): boolean {
  switch (schema.type) {
    case 'boolean':
      return typeof value === 'boolean'
    case 'integer':
      return Number.isSafeInteger(value) && (schema.format !== 'int32' || isInt32(value))
    case 'int-or-string':
      return typeof value === 'string' || isInt32(value)
    case 'time':
      return (
        typeof value === 'string' && (value === '' || (timePattern.test(value) && !Number.isNaN(Date.parse(value))))
      )
    default:
      return typeof value === 'string'
  }
}

const timePattern = /^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/

const isInt32 = (value: unknown): boolean => typeof value === 'number' && value === (value | 0)

/** True for the values that Go's `omitempty` leaves out. */
function isOmitted(schema: Schema, value: unknown): boolean {
  switch (schema.type) {
    case 'list':
    case 'map':
      return isEmpty(value)
    case 'object':
    case 'any':
    case 'boolean':
    case 'int-or-string':
      return false
    default:
      return schema.pointer !== true && (value === '' || value === 0)
  }
}

function zeroValue(schema: Schema): unknown {
  switch (schema.type) {
    case 'object':
    case 'map':
      return {}
    case 'list':
      return []
    case 'integer':
    case 'int-or-string':
      return 0
    case 'boolean':
      return false
    default:
      return schema.type === 'any' ? null : ''
  }
}

/** The JSON type of a value as Go's decoder names it. */
function jsonType(value: unknown): string {
  if (Array.isArray(value)) return 'array'
  if (isObject(value)) return 'object'
  if (typeof value === 'boolean') return 'bool'
  if (typeof value !== 'number') return 'string'
  return Number.isInteger(value) ? 'number' : `number ${value}`
}

const shortName = (name: string): string => name.slice(name.lastIndexOf('.') + 1)

function goType(schema: Schema): string {
  switch (schema.type) {
    case 'object':
      return `v1.${shortName(schema.name)}`
    case 'map':
      return `map[string]${goType(schema.of)}`
    case 'list':
      return `[]${goType(schema.of)}`
    case 'integer':
      return schema.format ?? 'int'
    case 'boolean':
      return 'bool'
    case 'time':
      return 'v1.Time'
    case 'int-or-string':
      return 'intstr.IntOrString'
    default:
      return schema.goType ?? 'string'
  }
}
