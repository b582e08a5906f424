// Server-side apply: which fields an applier asked for, what to merge, what to give up, and who disagrees. Pure.
//
// Only appliers own fields here. The real server also tracks what plain updates touch; without that an apply can take a
// field that somebody edited, which is what --force-conflicts would do anyway.

import { copy, equal, isObject, type Json, type MutableJson } from '../schema/json.ts'
import type { ListOf, Schema } from '../schema/schema.ts'
import { fieldOf } from './strategic.ts'

/** Kubernetes' FieldsV1: `f:name`, `k:{"port":80}`, `v:"x"`, `.` for the element itself. */
export type FieldSet = { readonly [key: string]: FieldSet }

/** Fields of an apply configuration that nobody can own. */
const unowned = new Set(['apiVersion', 'kind'])
const unownedMeta = new Set([
  'name',
  'namespace',
  'generateName',
  'uid',
  'resourceVersion',
  'generation',
  'creationTimestamp',
  'managedFields',
  'selfLink',
  'deletionTimestamp',
  'deletionGracePeriodSeconds',
])

export function ownedFields(schema: Schema, config: Json): FieldSet {
  const bare: MutableJson = {}
  for (const [key, value] of Object.entries(config)) {
    if (unowned.has(key)) continue
    if (key !== 'metadata') bare[key] = value
    else if (isObject(value)) {
      const kept = Object.entries(value).filter(([name]) => !unownedMeta.has(name))
      if (kept.length > 0) bare.metadata = Object.fromEntries(kept)
    }
  }
  return fieldsOf(schema, bare)
}

function fieldsOf(schema: Schema, value: unknown): FieldSet {
  const made: Record<string, FieldSet> = {}
  if (isObject(value) && (schema.type === 'object' || schema.type === 'map')) {
    for (const [key, inner] of Object.entries(value)) made[`f:${key}`] = fieldsOf(fieldOf(schema, key), inner)
  } else if (Array.isArray(value) && schema.type === 'list' && schema.keys !== undefined) {
    for (const element of value) {
      made[elementKey(schema, element)] = isObject(element) ? { '.': {}, ...fieldsOf(schema.of, element) } : {}
    }
  }
  return made
}

/** Defaults of key fields are filled in before this is asked, so that `k:` has all of them. */
function elementKey(schema: ListOf, element: unknown): string {
  if (schema.keys?.length === 0 || !isObject(element)) return `v:${JSON.stringify(element)}`
  const keys = [...(schema.keys ?? [])].sort()
  return `k:${JSON.stringify(Object.fromEntries(keys.map((key) => [key, element[key] ?? keyDefaults[key] ?? null])))}`
}

const keyDefaults: Readonly<Record<string, unknown>> = { protocol: 'TCP' }

/** The object with the configuration laid over it: listed fields replaced, keyed lists merged. */
export function overlay(schema: Schema, target: unknown, config: unknown): unknown {
  if (isObject(config) && (schema.type === 'object' || schema.type === 'map')) {
    const made: MutableJson = isObject(target) ? { ...target } : {}
    for (const [key, value] of Object.entries(config)) made[key] = overlay(fieldOf(schema, key), made[key], value)
    return made
  }
  if (Array.isArray(config) && schema.type === 'list' && schema.keys !== undefined) {
    const list: unknown[] = Array.isArray(target) ? [...target] : []
    for (const element of config) {
      const key = elementKey(schema, element)
      const at = list.findIndex((held) => elementKey(schema, held) === key)
      if (at >= 0) list[at] = overlay(schema.of, list[at], element)
      else list.push(copy(element))
    }
    return list
  }
  return copy(config)
}

/** Takes away what `before` owned, `after` does not, and nobody in `others` does. */
export function relinquish(
  schema: Schema,
  target: unknown,
  sets: { readonly before: FieldSet; readonly after: FieldSet; readonly others: readonly FieldSet[] },
): unknown {
  if (Array.isArray(target) && schema.type === 'list' && schema.keys !== undefined) {
    return target.flatMap((element) => {
      const key = elementKey(schema, element)
      const fate = below(sets, key)
      if (fate === 'untouched') return [element]
      if (fate === 'gone') return []
      return [relinquish(schema.of, element, fate)]
    })
  }
  if (!isObject(target)) return target
  const made: MutableJson = {}
  for (const [key, value] of Object.entries(target)) {
    const fate = below(sets, `f:${key}`)
    if (fate === 'untouched') made[key] = value
    else if (fate !== 'gone') {
      const left = relinquish(fieldOf(schema, key), value, fate)
      // A container that nobody asks for any more goes with the last of its content.
      const emptied = sets.after[`f:${key}`] === undefined && isVacant(left) && !isVacant(value)
      if (!emptied) made[key] = left
    }
  }
  return made
}

const isVacant = (value: unknown): boolean =>
  Array.isArray(value) ? value.length === 0 : isObject(value) && Object.keys(value).length === 0

function below(
  { before, after, others }: { before: FieldSet; after: FieldSet; others: readonly FieldSet[] },
  key: string,
): 'untouched' | 'gone' | { before: FieldSet; after: FieldSet; others: readonly FieldSet[] } {
  const was = before[key]
  if (was === undefined) return 'untouched'
  const is = after[key]
  const held = others.map((set) => set[key]).filter((set) => set !== undefined)
  const leaf = Object.keys(was).length === 0
  if (is === undefined && held.length === 0 && (leaf || !key.startsWith('f:'))) return 'gone'
  if (leaf) return 'untouched'
  return { before: was, after: is ?? {}, others: held }
}

/** Paths that `config` would change and `owner` has applied with another value. */
export function conflicts(schema: Schema, current: unknown, config: unknown, owner: FieldSet, path = ''): string[] {
  if (isObject(config) && (schema.type === 'object' || schema.type === 'map')) {
    return Object.entries(config).flatMap(([key, value]) => {
      const set = owner[`f:${key}`]
      if (set === undefined) return []
      return conflicts(fieldOf(schema, key), isObject(current) ? current[key] : undefined, value, set, `${path}.${key}`)
    })
  }
  if (Array.isArray(config) && schema.type === 'list' && schema.keys !== undefined) {
    const list = Array.isArray(current) ? current : []
    return config.flatMap((element) => {
      const key = elementKey(schema, element)
      const set = owner[key]
      const held = list.find((candidate) => elementKey(schema, candidate) === key)
      return set === undefined ? [] : conflicts(schema.of, held, element, set, `${path}[${key.slice(2)}]`)
    })
  }
  return equal(current, config) ? [] : [path]
}
