// Server-side apply: creates or merges an object, and records in managedFields which fields the applier owns. Pure.

import { type StatusCause, StatusError, subjectDetails } from '../schema/api-status.ts'
import { deepCopy, getObjects, getString, isObject, type Json, type MutableJson } from '../schema/json.ts'
import { metadataOf, nameOf } from '../schema/object-metadata.ts'
import { apiVersionOf, type ServedResource } from '../schema/served-resources.ts'
import { resourceSubject } from './admission.ts'
import { type FieldSet, findConflicts, mergeConfiguration, ownedFields, removeGivenUp } from './field-ownership.ts'

export interface ApplyRequest {
  readonly current: Json | undefined
  readonly config: Json
  readonly manager: string
  readonly force: boolean
  readonly subresource: string
  readonly now: string
}

/** Throws a Status 409 if another applier owns a field with another value and `force` is not set. */
export function applyConfiguration(resource: ServedResource, request: ApplyRequest): MutableJson {
  const { current, manager, force, subresource } = request
  const config = ownableConfiguration(resource, request.config, subresource)
  const after = ownedFields(resource.schema, config)
  const entries = getObjects(metadataOf(current ?? {}), 'managedFields')
  const isOwn = (entry: Json) =>
    entry.operation === 'Apply' && entry.manager === manager && getString(entry, 'subresource') === subresource
  const own = entries.find(isOwn)
  const others = entries.filter((entry) => !isOwn(entry))
  const conflicts = others.flatMap((entry) => conflictsWith(resource, entry, current, config))
  if (conflicts.length > 0 && !force) throw conflictError(resource, nameOf(config), conflicts)
  const remaining = conflicts.length > 0 ? others.map((entry) => withoutFields(entry, after)) : others
  const merged = mergeConfiguration(resource.schema, current === undefined ? {} : deepCopy(current), config)
  const ownership = { before: fieldsOf(own), after, others: remaining.map(fieldsOf) }
  const object = removeGivenUp(resource.schema, merged, ownership) as MutableJson
  const isUnchanged = own !== undefined && JSON.stringify(own.fieldsV1) === JSON.stringify(after)
  const entry = {
    manager,
    operation: 'Apply',
    apiVersion: apiVersionOf(resource),
    time: isUnchanged ? own.time : request.now,
    fieldsType: 'FieldsV1',
    fieldsV1: after,
    ...(subresource === '' ? {} : { subresource }),
  }
  return { ...object, metadata: { ...metadataOf(object), managedFields: [entry, ...remaining] } }
}

/** An applier cannot own fields that its request cannot change; otherwise no request could ever remove them. */
function ownableConfiguration(resource: ServedResource, config: Json, subresource: string): Json {
  const { spec, status, ...rest } = config
  if (subresource === 'status') return status === undefined ? rest : { ...rest, status }
  return resource.status === 'subresource' && spec !== undefined ? { ...rest, spec } : config
}

const fieldsOf = (entry: Json | undefined): FieldSet =>
  // Only the server writes managedFields.
  isObject(entry?.fieldsV1) ? (entry.fieldsV1 as FieldSet) : {}

interface Conflict {
  readonly path: string
  readonly manager: string
}

/** In the metadata, only labels and annotations can conflict. */
function conflictsWith(
  resource: ServedResource,
  entry: Json,
  current: Json | undefined,
  config: Json,
): readonly Conflict[] {
  return findConflicts(resource.schema, current, config, fieldsOf(entry))
    .filter((path) => !path.startsWith('.metadata.') || /^\.metadata\.(labels|annotations)/.test(path))
    .filter((path) => path !== '.kind' && path !== '.apiVersion')
    .map((path) => ({ path, manager: getString(entry, 'manager') }))
}

/** The other applier in a forced conflict no longer owns the fields. */
const withoutFields = (entry: Json, fields: FieldSet): Json => ({
  ...entry,
  fieldsV1: subtractFields(fieldsOf(entry), fields),
})

function subtractFields(from: FieldSet, fields: FieldSet): FieldSet {
  const rest: Record<string, FieldSet> = {}
  for (const [key, inner] of Object.entries(from)) {
    const other = fields[key]
    if (other === undefined || key === '.') rest[key] = inner
    else if (Object.keys(inner).length > 0) {
      const innerRest = subtractFields(inner, other)
      if (Object.keys(innerRest).some((name) => name !== '.')) rest[key] = innerRest
    }
  }
  return rest
}

function conflictError(resource: ServedResource, name: string, conflicts: readonly Conflict[]): StatusError {
  const causes = conflicts.map(
    ({ path, manager }): StatusCause => ({
      reason: 'FieldManagerConflict',
      message: `conflict with "${manager}"`,
      field: path,
    }),
  )
  const noun = conflicts.length === 1 ? 'conflict' : 'conflicts'
  const managers = [...new Set(conflicts.map(({ manager }) => `"${manager}"`))].join(', ')
  const paths = conflicts.map(({ path }) => path).join(', ')
  return new StatusError({
    code: 409,
    reason: 'Conflict',
    message: `Apply failed with ${conflicts.length} ${noun}: ${noun} with ${managers}: ${paths}`,
    details: { ...subjectDetails(resourceSubject(resource, name)), causes },
  })
}
