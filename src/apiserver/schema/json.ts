// JSON values as the API server holds them: typed reads of fields, deep copies, safe parsing. Objects in the registry are never changed in
// place. Comparison is in lib/equal.ts. Pure.

export type Json = Readonly<Record<string, unknown>>
/** An object that is still being built; no one else holds it yet. */
export type MutableJson = Record<string, unknown>

export const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const emptyObject: Json = Object.freeze({})
const emptyList: readonly never[] = Object.freeze([])

/** The object in the field; an empty object if there is none. */
export const getObject = (from: Json | undefined, name: string): Json => {
  const value = from?.[name]
  return isObject(value) ? value : emptyObject
}

/** The list in the field; an empty list if there is none. */
export const getList = (from: Json | undefined, name: string): readonly unknown[] => {
  const value = from?.[name]
  return Array.isArray(value) ? value : emptyList
}

/** The objects among the elements of a list. */
export const getObjects = (from: Json | undefined, name: string): readonly Json[] =>
  getList(from, name).filter(isObject)

/** The strings among the elements of a list. */
export const getStrings = (from: Json | undefined, name: string): readonly string[] =>
  getList(from, name).filter((value) => typeof value === 'string')

/** The string in the field; '' if there is none. */
export const getString = (from: Json | undefined, name: string): string => {
  const value = from?.[name]
  return typeof value === 'string' ? value : ''
}

/** The number in the field; 0 if there is none. */
export const getNumber = (from: Json | undefined, name: string): number => {
  const value = from?.[name]
  return typeof value === 'number' ? value : 0
}

/** The object in the field, created if it is missing. `from` must be mutable all the way down. */
export function ensureObject(from: MutableJson, name: string): MutableJson {
  if (!isObject(from[name])) from[name] = {}
  return from[name] as MutableJson
}

/** Like `getObjects`, for an object that is mutable all the way down. */
export const getMutableObjects = (from: MutableJson, name: string): readonly MutableJson[] =>
  getObjects(from, name) as readonly MutableJson[]

export function deepCopy<T>(value: T): T {
  if (Array.isArray(value)) return value.map(deepCopy) as T
  if (!isObject(value)) return value
  const copy: MutableJson = {}
  for (const key of Object.keys(value)) copy[key] = deepCopy(value[key])
  return copy as T
}

/** A copy of an object of the registry, which the caller may change. */
export const mutableCopy = (object: Json): MutableJson => deepCopy(object) as MutableJson

/** True for `{}` and `[]`. */
export const isEmpty = (value: unknown): boolean =>
  Array.isArray(value) ? value.length === 0 : isObject(value) && Object.keys(value).length === 0

const maxDepth = 100

/**
 * Throws a SyntaxError. Refuses JSON that nests so deeply that a recursive function over it could exhaust the stack. Drops
 * `__proto__`, which would change the prototype of any object that it is merged into.
 */
export function parseJson(source: string): unknown {
  if (depthOf(source) > maxDepth) throw new SyntaxError(`exceeded max depth of ${maxDepth}`)
  if (!/__proto__|\\u005f/i.test(source)) return JSON.parse(source)
  return JSON.parse(source, (_, value) => {
    if (!isObject(value) || !Object.hasOwn(value, '__proto__')) return value
    return Object.fromEntries(Object.entries(value).filter(([key]) => key !== '__proto__'))
  })
}

const quote = 0x22
const backslash = 0x5c
const openBrace = 0x7b
const closeBrace = 0x7d
const openBracket = 0x5b
const closeBracket = 0x5d

function depthOf(source: string): number {
  let depth = 0
  let deepest = 0
  let isQuoted = false
  for (let i = 0; i < source.length; i++) {
    const c = source.charCodeAt(i)
    if (isQuoted) {
      if (c === backslash) i++
      else if (c === quote) isQuoted = false
    } else if (c === quote) isQuoted = true
    else if (c === openBrace || c === openBracket) {
      if (++depth > deepest) deepest = depth
    } else if (c === closeBrace || c === closeBracket) depth--
  }
  return deepest
}
