// From a request's body to an object that may be stored: decoding, identity, defaults, validation. Pure but for what it is given.

import type { Allocations } from '../controllers/allocate.ts'
import { badRequest, invalid, type Subject } from '../schema/api-status.ts'
import { Problems } from '../schema/field-errors.ts'
import { child, copy, equal, isObject, type Json, type MutableJson, text, texts, whole } from '../schema/json.ts'
import { objectMeta } from '../schema/kinds.ts'
import { decode, type Schema } from '../schema/schema.ts'
import {
  apiVersionOf,
  metaOf,
  named,
  nameOf,
  namespaceOf,
  type ServedResource,
  stored,
} from '../schema/served-resources.ts'
import { validateMeta, validateMetaChange } from '../schema/validate-object.ts'
import {
  alignClusterIps,
  allocateService,
  assignFamilies,
  dropTypeFields,
  keepAllocations,
} from './service-admission.ts'

export const aboutStorage = ({ group, plural }: ServedResource, name: string): Subject => ({
  group,
  kind: plural,
  name,
})
export const aboutContent = ({ group, kind }: ServedResource, name: string): Subject => ({ group, kind, name })

export type FieldValidation = 'Ignore' | 'Warn' | 'Strict'

/** The object in its stored form; unknown fields are refused, or named in `warn`. Throws a Status. */
export function decodeBody(
  resource: ServedResource,
  body: unknown,
  { fieldValidation, warn }: { fieldValidation: FieldValidation; warn: (text: string) => void },
): MutableJson {
  const { kind } = resource
  if (!isObject(body))
    throw badRequest(`the object provided is unrecognized (must be of type ${kind}): it is no object`)
  const [givenKind, givenVersion] = [text(body, 'kind') || kind, text(body, 'apiVersion') || apiVersionOf(resource)]
  if (givenKind !== kind || givenVersion !== apiVersionOf(resource)) {
    throw badRequest(
      givenKind === kind
        ? `the API version in the data (${givenVersion}) does not match the expected API version (${apiVersionOf(resource)})`
        : `${givenKind} in version "${version(givenVersion)}" cannot be handled as a ${kind}: it is another kind`,
    )
  }
  const { object, unknown, mismatch } = decode(resource.shape, body)
  const refuse = (why: string) =>
    badRequest(`${kind} in version "${resource.version}" cannot be handled as a ${kind}: ${why}`)
  if (mismatch !== undefined) throw refuse(mismatch)
  const told = unknown.slice(0, 20).map((path) => `unknown field "${path}"`)
  if (told.length > 0 && fieldValidation === 'Strict') throw refuse(`strict decoding error: ${told.join(', ')}`)
  if (fieldValidation === 'Warn') for (const each of told) warn(each)
  return stored(resource, object)
}

const version = (apiVersion: string): string => apiVersion.slice(apiVersion.indexOf('/') + 1)

/** Fields in the order in which people are used to read them, and no empty ones in the metadata. */
export function arrange(resource: ServedResource, object: Json): MutableJson {
  const metadata: MutableJson = {}
  const given = metaOf(object)
  for (const key of Object.keys(objectMeta.fields)) {
    const value = given[key]
    const vacant = value === undefined || value === '' || (Array.isArray(value) && value.length === 0)
    if (!vacant && !(isObject(value) && Object.keys(value).length === 0)) metadata[key] = value
    // Keeps the place of what the registry fills in.
    else if (key === 'resourceVersion') metadata[key] = ''
  }
  const form = resource.toStored === undefined ? resource : named(resource.plural)
  const { kind: _, apiVersion: __, metadata: ___, ...rest } = inOrder(form.shape, object)
  return { kind: resource.kind, apiVersion: apiVersionOf(form), metadata, ...rest }
}

function inOrder<T>(schema: Schema, value: T): T {
  if (Array.isArray(value) && schema.type === 'list') return value.map((each) => inOrder(schema.of, each)) as T
  if (!isObject(value) || schema.type !== 'object') return value
  const made: MutableJson = {}
  for (const [key, below] of Object.entries(schema.fields)) {
    if (Object.hasOwn(value, key)) made[key] = inOrder(below, value[key])
  }
  for (const key of Object.keys(value)) if (!Object.hasOwn(made, key)) made[key] = value[key]
  return made as T
}

/** Completes and checks a new version of an object. Throws a 422 Status. */
export function finish(
  resource: ServedResource,
  object: MutableJson,
  old: Json | undefined,
  allocations: Allocations,
): MutableJson {
  const problems = new Problems()
  const isService = resource.plural === 'services'
  if (isService && old !== undefined) {
    dropTypeFields(object, old)
    keepAllocations(object, old)
  }
  resource.complete(object)
  if (isService) {
    alignClusterIps(object, old)
    assignFamilies(object, old, allocations.families(), problems)
  }
  validateMeta(object, resource.nameRule, problems)
  if (old !== undefined) validateMetaChange(object, old, problems)
  resource.validate(object, old, problems)
  const owner = `${namespaceOf(object)}/${nameOf(object)}`
  if (isService && problems.causes.length === 0) allocateService(object, owner, allocations, problems)
  if (problems.causes.length > 0) throw invalid(aboutContent(resource, nameOf(object)), problems.causes)
  return arrange(resource, object)
}

/** Carries over what a writer of the whole object may not touch. */
export function inherit(
  resource: ServedResource,
  object: MutableJson,
  old: Json,
  part: 'main' | 'status',
): MutableJson {
  const was = metaOf(old)
  const metadata: MutableJson = { ...metaOf(object) }
  for (const field of [
    'uid',
    'creationTimestamp',
    'generation',
    'deletionTimestamp',
    'deletionGracePeriodSeconds',
    'generateName',
  ]) {
    if (was[field] === undefined) delete metadata[field]
    else if (field !== 'uid' || metadata.uid === undefined) metadata[field] = was[field]
  }
  metadata.name ??= was.name
  if (was.namespace !== undefined) metadata.namespace ??= was.namespace
  if (metadata.managedFields === undefined && was.managedFields !== undefined)
    metadata.managedFields = was.managedFields
  if (part === 'status') {
    return { ...(copy(old) as MutableJson), metadata: { ...was, ...statusMeta(metadata) }, status: object.status ?? {} }
  }
  const status =
    resource.status === 'none'
      ? {}
      : resource.status === 'record' && object.status !== undefined
        ? { status: object.status }
        : { status: copy(old.status) }
  const { status: _, ...rest } = object
  return { ...rest, metadata, ...(status.status === undefined ? {} : status) }
}

/** Of the metadata, a write of the status may change these. */
const statusMeta = (metadata: Json): MutableJson => {
  const made: MutableJson = {}
  for (const field of ['labels', 'annotations', 'managedFields'])
    if (metadata[field] !== undefined) made[field] = metadata[field]
  return made
}

/** Whether anything but bookkeeping differs. */
export function sameContent(a: Json, b: Json): boolean {
  const strip = (object: Json): Json => {
    const { resourceVersion: _, managedFields: __, ...metadata } = metaOf(object)
    return { ...object, metadata }
  }
  return equal(strip(a), strip(b)) && equal(metaOf(a).managedFields, metaOf(b).managedFields)
}

/** Counts generations of what is not metadata or status. */
export function nextGeneration(resource: ServedResource, object: MutableJson, old: Json | undefined): void {
  if (!resource.generation) return
  const metadata = object.metadata as MutableJson
  if (old === undefined) {
    metadata.generation = 1
    return
  }
  const bare = ({ metadata: _, status: __, ...rest }: Json): Json => rest
  const was = whole(metaOf(old), 'generation')
  metadata.generation = equal(bare(object), bare(old)) ? was : was + 1
}

export const finalizersOf = (object: Json): readonly string[] => texts(metaOf(object), 'finalizers')
export const terminating = (object: Json): boolean => metaOf(object).deletionTimestamp !== undefined
export const statusOf = (object: Json): Json => child(object, 'status')
