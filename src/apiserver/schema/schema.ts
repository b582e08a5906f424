// A notation for the shape of API objects; decoding, OpenAPI, strategic merge and field ownership all read the same tables.

import type { Json, MutableJson } from './json.ts'
import { isObject } from './json.ts'

export type Schema = Scalar | MapOf | ListOf | Shape

interface Scalar {
  readonly type: 'string' | 'boolean' | 'integer' | 'int-or-string' | 'time' | 'any'
  readonly format?: string
  /** A pointer in Kubernetes' own types: '' and 0 are told from absent. */
  readonly pointer?: boolean
}
interface MapOf {
  readonly type: 'map'
  readonly of: Schema
}
export interface ListOf {
  readonly type: 'list'
  readonly of: Schema
  /** Elements with equal values of this field are one, for strategic merge. '' for plain values: a set. */
  readonly mergeKey?: string
  /** The same for server-side apply, which may need more fields to tell elements apart. */
  readonly keys?: readonly string[]
}
export interface Shape {
  readonly type: 'object'
  /** As the Kubernetes documentation calls it; the key in OpenAPI documents. */
  readonly name: string
  readonly fields: Readonly<Record<string, Schema>>
  /** Fields that are not listed are kept as they come. */
  readonly open?: boolean
}

export const string: Scalar = { type: 'string' }
export const stringPointer: Scalar = { type: 'string', pointer: true }
export const flag: Scalar = { type: 'boolean' }
export const int32: Scalar = { type: 'integer', format: 'int32' }
export const int32Pointer: Scalar = { type: 'integer', format: 'int32', pointer: true }
export const int64: Scalar = { type: 'integer', format: 'int64' }
export const int64Pointer: Scalar = { type: 'integer', format: 'int64', pointer: true }
export const intOrString: Scalar = { type: 'int-or-string' }
export const time: Scalar = { type: 'time', format: 'date-time' }
export const anything: Scalar = { type: 'any' }
export const mapOf = (of: Schema): MapOf => ({ type: 'map', of })
export const listOf = (of: Schema): ListOf => ({ type: 'list', of })
export const setOf = (of: Schema): ListOf => ({ type: 'list', of, mergeKey: '', keys: [] })
export const keyed = (of: Schema, mergeKey: string, keys: readonly string[] = [mergeKey]): ListOf => ({
  type: 'list',
  of,
  mergeKey,
  keys,
})
export const shape = (name: string, fields: Shape['fields']): Shape => ({ type: 'object', name, fields })
export const openShape = (name: string, fields: Shape['fields']): Shape => ({
  type: 'object',
  name,
  fields,
  open: true,
})

export interface Decoding {
  readonly object: MutableJson
  /** Paths of fields that no one knows; they are left out of the object. */
  readonly unknown: readonly string[]
  /** The first value of a wrong type, in the words of the real server; the object is not to be used then. */
  readonly mismatch: string | undefined
  /** Where that is. */
  readonly mismatchAt: string
}

/** Takes over what the schema knows, and leaves out nulls and empty values as Go's `omitempty` would. */
export function decode(schema: Shape, value: Json): Decoding {
  const reader: Reader = { unknown: [], mismatch: undefined, mismatchAt: '' }
  const object = decodeShape(schema, value, '', reader)
  return { object, unknown: reader.unknown, mismatch: reader.mismatch, mismatchAt: reader.mismatchAt }
}

interface Reader {
  readonly unknown: string[]
  mismatch: string | undefined
  mismatchAt: string
}

function decodeShape(schema: Shape, value: Json, path: string, reader: Reader): MutableJson {
  const made: MutableJson = {}
  for (const key of Object.keys(value)) {
    const inner = value[key]
    const field = Object.hasOwn(schema.fields, key) ? schema.fields[key] : undefined
    const at = path === '' ? key : `${path}.${key}`
    if (field === undefined) {
      if (schema.open === true) made[key] = inner
      else reader.unknown.push(at)
      continue
    }
    if (inner === null || inner === undefined) continue
    const decoded = decodeValue(field, inner, at, `${short(schema.name)}.${plain(at)}`, reader)
    if (!vacant(field, decoded)) made[key] = decoded
  }
  return made
}

function decodeValue(schema: Schema, value: unknown, path: string, type: string, reader: Reader): unknown {
  switch (schema.type) {
    case 'any':
      return value
    case 'object':
      if (!isObject(value)) return wrong(value, path, type, short(schema.name), reader)
      return decodeShape(schema, value, path, reader)
    case 'map': {
      if (!isObject(value)) return wrong(value, path, type, `map[string]${goName(schema.of)}`, reader)
      const made: MutableJson = {}
      for (const [key, inner] of Object.entries(value)) {
        made[key] = inner === null ? zero(schema.of) : decodeValue(schema.of, inner, `${path}.${key}`, type, reader)
      }
      return made
    }
    case 'list':
      if (!Array.isArray(value)) return wrong(value, path, type, `[]${goName(schema.of)}`, reader)
      return value.map((inner, i) =>
        inner === null ? zero(schema.of) : decodeValue(schema.of, inner, `${path}[${i}]`, type, reader),
      )
    default:
      return fits(schema, value) ? value : wrong(value, path, type, goName(schema), reader)
  }
}

function fits(schema: Scalar, value: unknown): boolean {
  switch (schema.type) {
    case 'boolean':
      return typeof value === 'boolean'
    case 'integer':
      return Number.isSafeInteger(value) && (schema.format !== 'int32' || (value as number) === ((value as number) | 0))
    case 'int-or-string':
      return typeof value === 'string' || (Number.isInteger(value) && (value as number) === ((value as number) | 0))
    case 'time':
      return (
        typeof value === 'string' &&
        (value === '' || timeForm.test(value)) &&
        !Number.isNaN(Date.parse(value || '1970'))
      )
    default:
      return typeof value === 'string'
  }
}

const timeForm = /^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/

function vacant(schema: Schema, value: unknown): boolean {
  if (schema.type === 'list') return Array.isArray(value) && value.length === 0
  if (schema.type === 'map') return isObject(value) && Object.keys(value).length === 0
  if (schema.type === 'object' || schema.type === 'any' || schema.type === 'boolean') return false
  return schema.pointer !== true && (value === '' || value === 0) && schema.type !== 'int-or-string'
}

function zero(schema: Schema): unknown {
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

function wrong(value: unknown, path: string, field: string, wanted: string, reader: Reader): undefined {
  const was = Array.isArray(value) ? 'array' : isObject(value) ? 'object' : jsonType(value)
  if (reader.mismatch !== undefined) return undefined
  reader.mismatchAt = path
  reader.mismatch = `json: cannot unmarshal ${was} into Go struct field ${field} of type ${wanted}`
  return undefined
}

const jsonType = (value: unknown): string =>
  typeof value === 'boolean'
    ? 'bool'
    : typeof value === 'number'
      ? `number${Number.isInteger(value) ? '' : ` ${value}`}`
      : 'string'

const short = (name: string): string => name.slice(name.lastIndexOf('.') + 1)
const plain = (path: string): string => path.replace(/\[\d+\]/g, '')

function goName(schema: Schema): string {
  switch (schema.type) {
    case 'object':
      return short(schema.name)
    case 'map':
      return `map[string]${goName(schema.of)}`
    case 'list':
      return `[]${goName(schema.of)}`
    case 'integer':
      return schema.format ?? 'int'
    case 'boolean':
      return 'bool'
    case 'time':
      return 'Time'
    case 'int-or-string':
      return 'intstr.IntOrString'
    default:
      return 'string'
  }
}
