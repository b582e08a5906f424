// Server-side apply: create or merge, with the applier's fields written down in managedFields. Pure.

import { StatusError } from '../schema/api-status.ts'
import { copy, isObject, type Json, type MutableJson, objects, text } from '../schema/json.ts'
import { apiVersionOf, metaOf, nameOf, type ServedResource } from '../schema/served-resources.ts'
import { aboutStorage } from './admission.ts'
import { conflicts, type FieldSet, overlay, ownedFields, relinquish } from './field-ownership.ts'

interface Application {
  readonly current: Json | undefined
  readonly config: Json
  readonly manager: string
  readonly force: boolean
  readonly subresource: string
  readonly now: string
}

/** Throws a 409 Status if another applier wants something else, and `force` is not given. */
export function applyConfiguration(resource: ServedResource, application: Application): MutableJson {
  const { current, manager, force, subresource } = application
  const config = writable(resource, application.config, subresource)
  const entries = objects(metaOf(current ?? {}), 'managedFields')
  const isOwn = (entry: Json) =>
    entry.operation === 'Apply' && entry.manager === manager && text(entry, 'subresource') === subresource
  const own = entries.find(isOwn)
  const others = entries.filter((entry) => !isOwn(entry))
  const after = ownedFields(resource.shape, config)
  const disputed = others.flatMap((entry) =>
    conflicts(resource.shape, current, config, fieldsOf(entry))
      .filter((path) => !path.startsWith('.metadata.') || /^\.metadata\.(labels|annotations)/.test(path))
      .filter((path) => path !== '.kind' && path !== '.apiVersion')
      .map((path) => ({ path, by: text(entry, 'manager') })),
  )
  if (disputed.length > 0 && !force) throw disagreement(resource, nameOf(config), disputed)
  const keptOthers = disputed.length > 0 ? others.map((entry) => withoutDisputed(entry, after)) : others
  const before = own === undefined ? {} : fieldsOf(own)
  const merged = overlay(resource.shape, current === undefined ? {} : copy(current), config)
  const sets = { before, after, others: keptOthers.map(fieldsOf) }
  const left = relinquish(resource.shape, merged, sets) as MutableJson
  const unchanged = own !== undefined && JSON.stringify(own.fieldsV1) === JSON.stringify(after)
  const entry = {
    manager,
    operation: 'Apply',
    apiVersion: apiVersionOf(resource),
    time: unchanged ? own.time : application.now,
    fieldsType: 'FieldsV1',
    fieldsV1: after,
    ...(subresource === '' ? {} : { subresource }),
  }
  return { ...left, metadata: { ...(left.metadata as Json), managedFields: [entry, ...keptOthers] } }
}

/** What a request cannot change it cannot own either: else nobody could remove it any more. */
function writable(resource: ServedResource, config: Json, subresource: string): Json {
  const { spec, status, ...rest } = config
  if (subresource === 'status') return status === undefined ? rest : { ...rest, status }
  return resource.status === 'subresource' && spec !== undefined ? { ...rest, spec } : config
}

const fieldsOf = (entry: Json): FieldSet => (isObject(entry.fieldsV1) ? (entry.fieldsV1 as FieldSet) : {})

/** Who loses a forced conflict owns the field no more. */
function withoutDisputed(entry: Json, taken: FieldSet): Json {
  return { ...entry, fieldsV1: subtract(fieldsOf(entry), taken) }
}

function subtract(from: FieldSet, taken: FieldSet): FieldSet {
  const made: Record<string, FieldSet> = {}
  for (const [key, below] of Object.entries(from)) {
    const other = taken[key]
    if (other === undefined || key === '.') made[key] = below
    else if (Object.keys(below).length > 0) {
      const rest = subtract(below, other)
      if (Object.keys(rest).some((name) => name !== '.')) made[key] = rest
    }
  }
  return made
}

function disagreement(
  resource: ServedResource,
  name: string,
  disputed: readonly { path: string; by: string }[],
): StatusError {
  const causes = disputed.map(({ path, by }) => ({
    reason: 'FieldManagerConflict',
    message: `conflict with "${by}"`,
    field: path,
  }))
  const count = disputed.length === 1 ? '1 conflict' : `${disputed.length} conflicts`
  const by = [...new Set(disputed.map((each) => `"${each.by}"`))].join(', ')
  const { group, kind } = aboutStorage(resource, name)
  return new StatusError({
    code: 409,
    reason: 'Conflict',
    message: `Apply failed with ${count}: ${count === '1 conflict' ? 'conflict' : 'conflicts'} with ${by}: ${disputed.map(({ path }) => path).join(', ')}`,
    details: { name, ...(group === '' ? {} : { group }), kind, causes },
  })
}
