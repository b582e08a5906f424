// Server-side apply by fields: which fields an applier sets, how they merge, which ones it gives up, and which conflict. Pure.
//
// Only appliers own fields here. The real server also tracks the fields that plain updates change. Without that, an apply can overwrite a
// field that a user edited, which --force-conflicts would do anyway.

import { deepEqual } from '../../lib/equal.ts'
import { deepCopy, isEmpty, isObject, type Json, type MutableJson } from '../schema/json.ts'
import { fieldSchema, type ListSchema, type Schema } from '../schema/schema.ts'

/** Kubernetes' FieldsV1: `f:name` for a field, `k:{"port":80}` or `v:"x"` for an element, `.` for the element itself. */
export type FieldSet = { readonly [key: string]: FieldSet }

/** Fields of an apply configuration that no applier can own. */
const unownedFields = new Set(['apiVersion', 'kind'])
const unownedMetadata = new Set([
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

/** The fields that the configuration sets and its applier will own. */
export function ownedFields(schema: Schema, config: Json): FieldSet {
  const ownable: MutableJson = {}
  for (const [key, value] of Object.entries(config).filter(([name]) => !unownedFields.has(name))) {
    if (key !== 'metadata') ownable[key] = value
    else if (isObject(value)) {
      const metadata = Object.entries(value).filter(([name]) => !unownedMetadata.has(name))
      if (metadata.length > 0) ownable.metadata = Object.fromEntries(metadata)
    }
  }
  return fieldsOf(schema, ownable)
}

type KeyedListSchema = ListSchema & { readonly keys: readonly string[] }

/** True if the elements of the list have identities; other lists are owned as a whole. */
const isKeyedList = (schema: Schema): schema is KeyedListSchema => schema.type === 'list' && schema.keys !== undefined
const hasFields = (schema: Schema): boolean => schema.type === 'object' || schema.type === 'map'

function fieldsOf(schema: Schema, value: unknown): FieldSet {
  const fields: Record<string, FieldSet> = {}
  if (isObject(value) && hasFields(schema)) {
    for (const [key, inner] of Object.entries(value)) fields[`f:${key}`] = fieldsOf(fieldSchema(schema, key), inner)
  } else if (Array.isArray(value) && isKeyedList(schema)) {
    for (const element of value) {
      fields[elementKey(schema, element)] = isObject(element) ? { '.': {}, ...fieldsOf(schema.of, element) } : {}
    }
  }
  return fields
}

/** Key fields that an apply configuration may leave out, with the defaults that identify the element then. */
const keyDefaults: Readonly<Record<string, unknown>> = { protocol: 'TCP' }

function elementKey({ keys }: KeyedListSchema, element: unknown): string {
  if (keys.length === 0 || !isObject(element)) return `v:${JSON.stringify(element)}`
  const pairs = [...keys].sort().map((key) => [key, element[key] ?? keyDefaults[key] ?? null])
  return `k:${JSON.stringify(Object.fromEntries(pairs))}`
}

/** Returns the target with the fields of the configuration replaced and its keyed lists merged. */
export function mergeConfiguration(schema: Schema, target: unknown, config: unknown): unknown {
  if (isObject(config) && hasFields(schema)) {
    const merged: MutableJson = isObject(target) ? { ...target } : {}
    for (const [key, value] of Object.entries(config))
      merged[key] = mergeConfiguration(fieldSchema(schema, key), merged[key], value)
    return merged
  }
  if (!Array.isArray(config) || !isKeyedList(schema)) return deepCopy(config)
  const list: unknown[] = Array.isArray(target) ? [...target] : []
  for (const element of config) {
    const key = elementKey(schema, element)
    const index = list.findIndex((each) => elementKey(schema, each) === key)
    if (index >= 0) list[index] = mergeConfiguration(schema.of, list[index], element)
    else list.push(deepCopy(element))
  }
  return list
}

/** The fields that an applier owned before, those that it owns now, and those of the other appliers. */
export interface Ownership {
  readonly before: FieldSet
  readonly after: FieldSet
  readonly others: readonly FieldSet[]
}

/** Returns the target without the fields that the applier gives up and no other applier owns. */
export function removeGivenUp(schema: Schema, target: unknown, ownership: Ownership): unknown {
  if (Array.isArray(target) && isKeyedList(schema)) {
    return target.flatMap((element) => {
      const inner = ownershipBelow(ownership, elementKey(schema, element))
      if (inner === 'untouched') return [element]
      return inner === 'gone' ? [] : [removeGivenUp(schema.of, element, inner)]
    })
  }
  if (!isObject(target)) return target
  const kept: MutableJson = {}
  for (const [key, value] of Object.entries(target)) {
    const inner = ownershipBelow(ownership, `f:${key}`)
    if (inner === 'untouched') kept[key] = value
    else if (inner !== 'gone') {
      const rest = removeGivenUp(fieldSchema(schema, key), value, inner)
      // A container that the applier no longer sets goes with the last field in it.
      const isEmptied = ownership.after[`f:${key}`] === undefined && isEmpty(rest) && !isEmpty(value)
      if (!isEmptied) kept[key] = rest
    }
  }
  return kept
}

function ownershipBelow({ before, after, others }: Ownership, key: string): 'untouched' | 'gone' | Ownership {
  const owned = before[key]
  if (owned === undefined) return 'untouched'
  const otherOwned = others.map((set) => set[key]).filter((set) => set !== undefined)
  const isLeaf = isEmpty(owned)
  const isGivenUp = after[key] === undefined && otherOwned.length === 0
  if (isGivenUp && (isLeaf || !key.startsWith('f:'))) return 'gone'
  if (isLeaf) return 'untouched'
  return { before: owned, after: after[key] ?? {}, others: otherOwned }
}

/** The values that a conflict compares, and where they are. */
interface Comparison {
  readonly schema: Schema
  readonly current: unknown
  readonly config: unknown
  readonly path: string
}

/** Returns the paths of fields that `owner` has applied and that `config` would change. */
export function findConflicts(schema: Schema, current: unknown, config: unknown, owner: FieldSet): readonly string[] {
  return compareOwned({ schema, current, config, path: '' }, owner)
}

function compareOwned(comparison: Comparison, owner: FieldSet): readonly string[] {
  const { schema, current, config, path } = comparison
  if (isObject(config) && hasFields(schema)) {
    return Object.entries(config).flatMap(([key, value]) => {
      const set = owner[`f:${key}`]
      if (set === undefined) return []
      const inner = isObject(current) ? current[key] : undefined
      return compareOwned(
        { schema: fieldSchema(schema, key), current: inner, config: value, path: `${path}.${key}` },
        set,
      )
    })
  }
  if (!Array.isArray(config) || !isKeyedList(schema)) return deepEqual(current, config) ? [] : [path]
  const list = Array.isArray(current) ? current : []
  return config.flatMap((element) => {
    const key = elementKey(schema, element)
    const set = owner[key]
    if (set === undefined) return []
    const inner = list.find((candidate) => elementKey(schema, candidate) === key)
    return compareOwned({ schema: schema.of, current: inner, config: element, path: `${path}[${key.slice(2)}]` }, set)
  })
}
