// Applies strategic merge patches, which `kubectl edit`, `apply` and `label` send: lists of named elements merge by their key. Pure.

import { badRequest } from '../schema/api-status.ts'
import { deepCopy, getList, isObject, type Json, type MutableJson } from '../schema/json.ts'
import { fieldSchema, type ListSchema, type Schema } from '../schema/schema.ts'

const directive = '$patch'
const orderPrefix = '$setElementOrder/'
const deletePrefix = '$deleteFromPrimitiveList/'
const retainKeys = '$retainKeys'

/** Returns undefined if the patch deletes the target. Throws a Status 400 if an element of a keyed list has no key. */
export function strategicPatch(schema: Schema, target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return deepCopy(patch)
  const command = patch[directive]
  if (command === 'delete') return undefined
  if (command !== undefined && command !== 'replace' && command !== 'merge') {
    throw badRequest(`error decoding patch: unrecognized type: ${JSON.stringify(command)}`)
  }
  const merged: MutableJson = isObject(target) && command !== 'replace' ? { ...target } : {}
  for (const [key, value] of Object.entries(patch).filter(([name]) => !name.startsWith('$'))) {
    const result = value === null ? undefined : mergeField(fieldSchema(schema, key), merged[key], value, key)
    if (result === undefined) delete merged[key]
    else merged[key] = result
  }
  applyListDirectives(schema, merged, patch, isObject(target) ? target : {})
  const retained = patch[retainKeys]
  if (Array.isArray(retained)) for (const key of Object.keys(merged)) if (!retained.includes(key)) delete merged[key]
  return merged
}

function mergeField(schema: Schema, target: unknown, patch: unknown, name: string): unknown {
  return Array.isArray(patch) ? mergeList(schema, target, patch, name) : strategicPatch(schema, target, patch)
}

function applyListDirectives(schema: Schema, merged: MutableJson, patch: Json, target: Json): void {
  for (const [key, value] of Object.entries(patch)) {
    const name = key.slice(key.indexOf('/') + 1)
    const list = merged[name]
    if (!Array.isArray(value) || !Array.isArray(list)) continue
    if (key.startsWith(deletePrefix)) merged[name] = list.filter((element) => !value.includes(element))
    const field = fieldSchema(schema, name)
    if (key.startsWith(orderPrefix) && field.type === 'list')
      merged[name] = reorder(field, list, value, getList(target, name))
  }
}

const isReplaceDirective = (element: unknown): boolean => isObject(element) && element[directive] === 'replace'

function mergeList(schema: Schema, target: unknown, patch: readonly unknown[], name: string): unknown[] {
  if (patch.some(isReplaceDirective)) return deepCopy(patch.filter((element) => !isReplaceDirective(element)))
  if (schema.type !== 'list' || schema.mergeKey === undefined) return deepCopy([...patch])
  const old: readonly unknown[] = Array.isArray(target) ? target : []
  const list = [...old]
  if (schema.mergeKey === '') {
    for (const element of patch) if (!list.includes(element)) list.push(element)
    return list
  }
  for (const element of patch) mergeElement({ list, schema, key: schema.mergeKey, name }, element)
  return reorder(schema, list, patch, old)
}

interface KeyedList {
  readonly list: unknown[]
  readonly schema: ListSchema
  readonly key: string
  /** The name of the field, for errors. */
  readonly name: string
}

function mergeElement({ list, schema, key, name }: KeyedList, element: unknown): void {
  if (!isObject(element)) throw badRequest(`error decoding patch: elements of ${name} must be objects`)
  if (!Object.hasOwn(element, key)) {
    throw badRequest(
      `error decoding patch: map: ${JSON.stringify(element)} does not contain declared merge key: ${key}`,
    )
  }
  const index = list.findIndex((each) => isObject(each) && each[key] === element[key])
  if (element[directive] === 'delete') {
    if (index >= 0) list.splice(index, 1)
  } else if (index >= 0) list[index] = strategicPatch(schema.of, list[index], element)
  else list.push(strategicPatch(schema.of, {}, element))
}

/**
 * Merges two sequences: the elements that the patch lists, in its order, and the others, in their old order. Of two old elements the
 * one that stood first comes first; if one of them is new, the listed one does.
 */
function reorder(
  schema: ListSchema,
  list: readonly unknown[],
  order: readonly unknown[],
  old: readonly unknown[],
): unknown[] {
  const key = schema.mergeKey ?? ''
  const identityOf = (element: unknown): unknown => (key !== '' && isObject(element) ? element[key] : element)
  const indexIn = (elements: readonly unknown[]) => new Map(elements.map((element, i) => [identityOf(element), i]))
  const [orderIndex, oldIndex] = [indexIn(order), indexIn(old)]
  const orderOf = (element: unknown) => orderIndex.get(identityOf(element)) ?? -1
  const listed = list.filter((element) => orderOf(element) >= 0).sort((a, b) => orderOf(a) - orderOf(b))
  const others = list.filter((element) => orderOf(element) < 0)
  const merged: unknown[] = []
  while (listed.length > 0 && others.length > 0) {
    const [left, right] = [oldIndex.get(identityOf(listed[0])), oldIndex.get(identityOf(others[0]))]
    const isListedFirst = left === undefined || right === undefined || left < right
    merged.push(isListedFirst ? listed.shift() : others.shift())
  }
  return [...merged, ...listed, ...others]
}
