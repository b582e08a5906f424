// Strategic merge patch, which kubectl edit, apply and label send: lists of named things merge by their key. Pure.

import { copy, type Draft, isObject, type Json } from './json.ts'
import type { ListOf, Schema } from './schema.ts'
import { badRequest } from './status.ts'

const directive = '$patch'
const orderPrefix = '$setElementOrder/'
const deletePrefix = '$deleteFromPrimitiveList/'
const retainKeys = '$retainKeys'

/** Throws a 400 Status if a list with a merge key gets an element without it. */
export function strategicPatch(schema: Schema, target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return copy(patch)
  const command = patch[directive]
  if (command === 'delete') return undefined
  if (command !== undefined && command !== 'replace' && command !== 'merge') {
    throw badRequest(`error decoding patch: unrecognized type: ${JSON.stringify(command)}`)
  }
  const made: Draft = isObject(target) && command !== 'replace' ? { ...target } : {}
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith('$')) continue
    const below = fieldOf(schema, key)
    if (value === null) delete made[key]
    else if (Array.isArray(value)) made[key] = mergeList(below, made[key], value, key)
    else {
      const merged = strategicPatch(below, made[key], value)
      if (merged === undefined) delete made[key]
      else made[key] = merged
    }
  }
  applyDirectives(schema, made, patch)
  return made
}

function applyDirectives(schema: Schema, made: Draft, patch: Json): void {
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith(deletePrefix) && Array.isArray(value)) {
      const name = key.slice(deletePrefix.length)
      const list = made[name]
      if (Array.isArray(list)) made[name] = list.filter((element) => !value.includes(element))
    }
    if (key.startsWith(orderPrefix) && Array.isArray(value)) {
      const name = key.slice(orderPrefix.length)
      const below = fieldOf(schema, name)
      const list = made[name]
      if (Array.isArray(list) && below.type === 'list') made[name] = reorder(below, list, value)
    }
  }
  const kept = patch[retainKeys]
  if (Array.isArray(kept)) for (const key of Object.keys(made)) if (!kept.includes(key)) delete made[key]
}

function mergeList(schema: Schema, target: unknown, patch: readonly unknown[], name: string): unknown[] {
  if (patch.some((element) => isObject(element) && element[directive] === 'replace')) {
    return copy(patch.filter((element) => !(isObject(element) && element[directive] === 'replace')))
  }
  const key = schema.type === 'list' ? schema.mergeKey : undefined
  if (schema.type !== 'list' || key === undefined) return copy([...patch])
  const list: unknown[] = Array.isArray(target) ? [...target] : []
  for (const element of patch) {
    if (key === '') {
      if (!list.includes(element)) list.push(element)
      continue
    }
    if (!isObject(element)) throw badRequest(`error decoding patch: elements of ${name} must be objects`)
    if (!Object.hasOwn(element, key)) {
      throw badRequest(
        `error decoding patch: map: ${JSON.stringify(element)} does not contain declared merge key: ${key}`,
      )
    }
    const at = list.findIndex((held) => isObject(held) && held[key] === element[key])
    if (element[directive] === 'delete') {
      if (at >= 0) list.splice(at, 1)
    } else if (at >= 0) list[at] = strategicPatch(schema.of, list[at], element)
    else list.push(strategicPatch(schema.of, {}, element))
  }
  return list
}

/** Those that the order names stand as it says; others stay behind the one that they stood behind. */
function reorder(schema: ListOf, list: readonly unknown[], order: readonly unknown[]): unknown[] {
  const key = schema.mergeKey
  const identity = (element: unknown): unknown =>
    key !== undefined && key !== '' && isObject(element) ? element[key] : element
  const rank = new Map(order.map((element, i) => [identity(element), i]))
  let last = -1
  const ranked = list.map((element, i) => {
    const own = rank.get(identity(element))
    if (own !== undefined) last = own
    return { element, rank: own ?? last, listed: own !== undefined, i }
  })
  ranked.sort((a, b) => a.rank - b.rank || Number(b.listed) - Number(a.listed) || a.i - b.i)
  return ranked.map(({ element }) => element)
}

const unknownField: Schema = { type: 'any' }

export function fieldOf(schema: Schema, key: string): Schema {
  if (schema.type === 'object' && Object.hasOwn(schema.fields, key)) return schema.fields[key] as Schema
  return schema.type === 'map' ? schema.of : unknownField
}
