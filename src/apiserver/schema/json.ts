// JSON values as the API server holds them: safe parsing, copies, comparison; objects in the registry are never changed in place.

export type Json = Readonly<Record<string, unknown>>
/** An object that is being made and that nobody else has yet. */
export type MutableJson = Record<string, unknown>

export const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const empty: Json = Object.freeze({})
const none: readonly never[] = Object.freeze([])

export const child = (from: Json | undefined, name: string): Json => {
  const value = from?.[name]
  return isObject(value) ? value : empty
}

export const items = (from: Json | undefined, name: string): readonly unknown[] => {
  const value = from?.[name]
  return Array.isArray(value) ? value : none
}

export const objects = (from: Json | undefined, name: string): readonly Json[] => items(from, name).filter(isObject)

export const texts = (from: Json | undefined, name: string): readonly string[] =>
  items(from, name).filter((value) => typeof value === 'string')

export const text = (from: Json | undefined, name: string): string => {
  const value = from?.[name]
  return typeof value === 'string' ? value : ''
}

export const whole = (from: Json | undefined, name: string): number => {
  const value = from?.[name]
  return typeof value === 'number' ? value : 0
}

/** The object below `name`, made if it is not there; `from` must be a draft all the way down. */
export function mutableCopy(from: MutableJson, name: string): MutableJson {
  if (!isObject(from[name])) from[name] = {}
  return from[name] as MutableJson
}

export function copy<T>(value: T): T {
  if (Array.isArray(value)) return value.map(copy) as T
  if (!isObject(value)) return value
  const made: MutableJson = {}
  for (const key of Object.keys(value)) made[key] = copy(value[key])
  return made as T
}

export function equal(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((value, i) => equal(value, b[i]))
  if (!isObject(a) || !isObject(b)) return false
  const keys = Object.keys(a)
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]))
}

const maxDepth = 100

/**
 * Throws a SyntaxError. Refuses what nests so deeply that walking it could exhaust the stack, and drops `__proto__`, which
 * would change the shape of whatever it is merged into.
 */
export function parseJson(source: string): unknown {
  if (depthOf(source) > maxDepth) throw new SyntaxError(`exceeded max depth of ${maxDepth}`)
  if (!/__proto__|\\u005f/i.test(source)) return JSON.parse(source)
  return JSON.parse(source, (_, value) => {
    if (!isObject(value) || !Object.hasOwn(value, '__proto__')) return value
    return Object.fromEntries(Object.entries(value).filter(([key]) => key !== '__proto__'))
  })
}

function depthOf(source: string): number {
  let depth = 0
  let deepest = 0
  let quoted = false
  for (let i = 0; i < source.length; i++) {
    const c = source.charCodeAt(i)
    if (quoted) {
      if (c === 92) i++
      else if (c === 34) quoted = false
    } else if (c === 34) quoted = true
    else if (c === 123 || c === 91) {
      if (++depth > deepest) deepest = depth
    } else if (c === 125 || c === 93) depth--
  }
  return deepest
}
