// Strategic merge patch, which kubectl edit, apply and label send: lists of named things merge by their key. Pure.

import { badRequest } from '../schema/api-status.ts'
import { copy, isObject, items, type Json, type MutableJson } from '../schema/json.ts'
import type { ListOf, Schema } from '../schema/schema.ts'

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
  const made: MutableJson = isObject(target) && command !== 'replace' ? { ...target } : {}
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
  applyDirectives(schema, made, patch, isObject(target) ? target : {})
  return made
}

function applyDirectives(schema: Schema, made: MutableJson, patch: Json, target: Json): void {
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
      if (Array.isArray(list) && below.type === 'list') made[name] = reorder(below, list, value, items(target, name))
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
  return key === '' ? list : reorder(schema, list, patch, Array.isArray(target) ? target : [])
}

/**
 * The listed ones stand as the patch lists them, the others as they stood before. Where the two meet, what is new goes first,
 * and what was there before goes by its old place.
 */
function reorder(
  schema: ListOf,
  list: readonly unknown[],
  order: readonly unknown[],
  old: readonly unknown[],
): unknown[] {
  const key = schema.mergeKey
  const identity = (element: unknown): unknown =>
    key !== undefined && key !== '' && isObject(element) ? element[key] : element
  const rank = new Map(order.map((element, i) => [identity(element), i]))
  const place = new Map(old.map((element, i) => [identity(element), i]))
  const rankOf = (element: unknown) => rank.get(identity(element)) ?? -1
  const listed = list.filter((element) => rankOf(element) >= 0).sort((a, b) => rankOf(a) - rankOf(b))
  const others = list.filter((element) => rankOf(element) < 0)
  const made: unknown[] = []
  while (listed.length > 0 || others.length > 0) {
    const [left, right] = [place.get(identity(listed[0])), place.get(identity(others[0]))]
    const takeListed =
      others.length === 0 || (listed.length > 0 && (left === undefined || right === undefined || left < right))
    made.push(takeListed ? listed.shift() : others.shift())
  }
  return made
}

const unknownField: Schema = { type: 'any' }

export function fieldOf(schema: Schema, key: string): Schema {
  if (schema.type === 'object' && Object.hasOwn(schema.fields, key)) return schema.fields[key] as Schema
  return schema.type === 'map' ? schema.of : unknownField
}
