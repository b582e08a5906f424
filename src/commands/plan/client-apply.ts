// Merges a file into a present object as `kubectl apply` does: fields that the last applied file had and this one lacks are removed. Pure.

import { strategicPatch } from '../../apiserver/requests/strategic.ts'
import { isObject, type Json, type MutableJson, parseJson } from '../../apiserver/schema/json.ts'
import { annotationsOf, metadataOf } from '../../apiserver/schema/object-metadata.ts'
import { fieldSchema, type ObjectSchema, type Schema } from '../../apiserver/schema/schema.ts'
import { deepEqual } from '../../lib/equal.ts'

const lastApplied = 'kubectl.kubernetes.io/last-applied-configuration'

/** Returns the file that `kubectl apply` applied last; undefined if another client wrote the object. */
export function lastAppliedTo(current: Json): Json | undefined {
  const text = annotationsOf(current)[lastApplied]
  if (typeof text !== 'string') return undefined
  try {
    const file = parseJson(text)
    return isObject(file) ? file : undefined
  } catch {
    return undefined
  }
}

/** Returns the present object with the changes that applying the file would make. */
export function mergeApplied(schema: ObjectSchema, file: Json, current: Json): Json {
  const kept = removeGivenUp(schema, current, { before: lastAppliedTo(current) ?? {}, after: file })
  // What only the server writes stays as it is.
  const { status: _, ...config } = file
  return strategicPatch(schema, kept, config) as Json
}

interface FileVersions {
  readonly before: unknown
  readonly after: unknown
}

/** Removes the fields and list elements that only the file's old version has. */
function removeGivenUp(schema: Schema, current: unknown, { before, after }: FileVersions): unknown {
  if (isObject(current) && isObject(before)) return removeFields(schema, current, { before, after })
  if (Array.isArray(current) && Array.isArray(before) && schema.type === 'list' && schema.mergeKey !== undefined) {
    const identify = (element: unknown): unknown =>
      schema.mergeKey !== '' && isObject(element) ? element[schema.mergeKey ?? ''] : element
    const find = (list: unknown, element: unknown): unknown =>
      Array.isArray(list) ? list.find((each) => deepEqual(identify(each), identify(element))) : undefined
    return current.flatMap((element) => {
      const [had, has] = [find(before, element), find(after, element)]
      if (had !== undefined && has === undefined) return []
      return [removeGivenUp(schema.of, element, { before: had, after: has })]
    })
  }
  return current
}

function removeFields(schema: Schema, current: Json, versions: { before: Json; after: unknown }): Json {
  const { before } = versions
  const after = isObject(versions.after) ? versions.after : {}
  const kept: MutableJson = { ...current }
  for (const key of Object.keys(before)) {
    if (!Object.hasOwn(kept, key)) continue
    if (!Object.hasOwn(after, key)) delete kept[key]
    else kept[key] = removeGivenUp(fieldSchema(schema, key), kept[key], { before: before[key], after: after[key] })
  }
  return kept
}

/** Returns the JSON merge patch that turns one object into the other; undefined if they are equal. */
export function mergePatchBetween(from: unknown, to: unknown): unknown {
  if (deepEqual(from, to)) return undefined
  if (!isObject(from) || !isObject(to)) return to
  const patch: MutableJson = {}
  for (const key of new Set([...Object.keys(from), ...Object.keys(to)])) {
    if (deepEqual(from[key], to[key])) continue
    patch[key] = to[key] === undefined ? null : mergePatchBetween(from[key], to[key])
  }
  return patch
}

/** Returns who applies this object by server-side apply; '' if it is not applied so. */
export function applierOf(current: Json): string {
  const fields = metadataOf(current).managedFields
  const entries = Array.isArray(fields) ? fields.filter(isObject) : []
  const applier = entries.find(({ operation, subresource }) => operation === 'Apply' && (subresource ?? '') === '')
  return typeof applier?.manager === 'string' ? applier.manager : ''
}
