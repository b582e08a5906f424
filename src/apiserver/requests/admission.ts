// Turns the body of a request into an object that may be stored: decoding, identity, defaults, validation, order of fields. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { badRequest, invalid, type StatusSubject } from '../schema/api-status.ts'
import { FieldErrors } from '../schema/field-errors.ts'
import {
  deepCopy,
  getNumber,
  getString,
  isEmpty,
  isObject,
  type Json,
  type MutableJson,
  mutableCopy,
} from '../schema/json.ts'
import { objectMeta } from '../schema/kinds.ts'
import { metadataOf, nameOf } from '../schema/object-metadata.ts'
import { decodeObject, type Schema } from '../schema/schema.ts'
import { apiVersionOf, getResource, type ServedResource, toStoredForm } from '../schema/served-resources.ts'
import { validateMetadata, validateMetadataChange } from '../schema/validate-metadata.ts'
import type { Allocations } from './allocations.ts'
import {
  alignClusterIps,
  assignFamilies,
  checkAddresses,
  dropTypeFields,
  keepAllocations,
} from './service-admission.ts'
import { allocateClusterIps, allocatePorts } from './service-allocation.ts'

/** The subject of failures about storage: they name the resource, `services`. */
export const resourceSubject = ({ group, plural }: ServedResource, name: string): StatusSubject => ({
  group,
  kind: plural,
  name,
})
/** The subject of failures about content: they name the kind, `Service`. */
export const kindSubject = ({ group, kind }: ServedResource, name: string): StatusSubject => ({ group, kind, name })

export type FieldValidation = 'Ignore' | 'Warn' | 'Strict'

export interface DecodeOptions {
  readonly fieldValidation: FieldValidation
  readonly warn: (text: string) => void
}

const maxReportedFields = 20

/** Returns the object in its stored form. Unknown fields are refused, or reported to `warn`. Throws a Status 400. */
export function decodeBody(resource: ServedResource, body: unknown, options: DecodeOptions): MutableJson {
  if (!isObject(body))
    throw badRequest(`the object provided is unrecognized (must be of type ${resource.kind}): it is not an object`)
  checkKind(resource, body)
  const { object, unknown, mismatch } = decodeObject(resource.schema, body)
  if (mismatch !== undefined) throw badRequest(describeMismatch(resource, mismatch.message))
  if (unknown.length > 0 && options.fieldValidation === 'Strict')
    throw badRequest(describeUnknownFields(resource, unknown))
  if (options.fieldValidation === 'Warn') for (const warning of listUnknownFields(unknown)) options.warn(warning)
  return toStoredForm(resource, object)
}

/** Says why a body is not an object of this kind. */
export const describeMismatch = ({ kind, version }: ServedResource, why: string): string =>
  `${kind} in version "${version}" cannot be handled as a ${kind}: ${why}`

export const describeUnknownFields = (resource: ServedResource, unknown: readonly string[]): string =>
  describeMismatch(resource, `strict decoding error: ${listUnknownFields(unknown).join(', ')}`)

const listUnknownFields = (unknown: readonly string[]): readonly string[] =>
  unknown.slice(0, maxReportedFields).map((path) => `unknown field "${path}"`)

/** The body may leave out its kind and version, which the path has already. */
function checkKind(resource: ServedResource, body: Json): void {
  const apiVersion = apiVersionOf(resource)
  const givenKind = getString(body, 'kind') || resource.kind
  const givenVersion = getString(body, 'apiVersion') || apiVersion
  if (givenKind !== resource.kind) {
    const version = givenVersion.slice(givenVersion.indexOf('/') + 1)
    throw badRequest(`${givenKind} in version "${version}" cannot be handled as a ${resource.kind}: it is another kind`)
  }
  if (givenVersion !== apiVersion) {
    throw badRequest(
      `the API version in the data (${givenVersion}) does not match the expected API version (${apiVersion})`,
    )
  }
}

/** Puts the fields into the order in which the real server prints them, and drops empty metadata. */
export function orderFields(resource: ServedResource, object: Json): MutableJson {
  const stored = resource.toStored === undefined ? resource : getResource(resource.plural)
  const { kind: _, apiVersion: __, metadata: ___, ...rest } = orderBySchema(stored.schema, object)
  return { kind: resource.kind, apiVersion: apiVersionOf(stored), metadata: orderMetadata(metadataOf(object)), ...rest }
}

function orderMetadata(given: Json): MutableJson {
  const metadata: MutableJson = {}
  for (const key of Object.keys(objectMeta.fields)) {
    const value = given[key]
    if (value !== undefined && value !== '' && !isEmpty(value)) metadata[key] = value
    // The registry fills it in; the empty value keeps its place in the order.
    else if (key === 'resourceVersion') metadata[key] = ''
  }
  return metadata
}

/** Returns a copy with the fields of the schema first, in its order, and all other fields after them. */
function orderBySchema<T>(schema: Schema, value: T): T {
  if (Array.isArray(value) && schema.type === 'list') return value.map((each) => orderBySchema(schema.of, each)) as T
  if (!isObject(value) || schema.type !== 'object') return value
  const ordered: MutableJson = {}
  for (const [key, field] of Object.entries(schema.fields)) {
    if (Object.hasOwn(value, key)) ordered[key] = orderBySchema(field, value[key])
  }
  for (const key of Object.keys(value)) if (!Object.hasOwn(ordered, key)) ordered[key] = value[key]
  return ordered as T
}

/** Sets defaults, allocates and validates a new version of an object. Throws a Status 422. */
export function admit(
  resource: ServedResource,
  object: MutableJson,
  old: Json | undefined,
  allocations: Allocations,
): MutableJson {
  const errors = new FieldErrors()
  const isService = resource.plural === 'services'
  if (isService && old !== undefined) {
    dropTypeFields(object, old)
    keepAllocations(object, old)
  }
  resource.setDefaults(object)
  const refuse = () => {
    if (!errors.isEmpty) throw invalid(kindSubject(resource, nameOf(object)), errors.causes)
  }
  if (isService) {
    // The real server ends at the first of these steps that finds a fault, and validates all other fields afterwards.
    alignClusterIps(object, old)
    const families = allocations.families()
    const isNew = old === undefined
    const steps = [
      () => checkAddresses(object, errors),
      () => assignFamilies(object, old, families, errors),
      () => allocateClusterIps(object, old, allocations, errors),
      () => allocatePorts(object, allocations, isNew, errors),
    ]
    for (const step of steps) {
      step()
      refuse()
    }
  }
  validateMetadata(object, resource.nameRule, errors)
  if (old !== undefined) validateMetadataChange(object, old, errors)
  resource.validate(object, old, errors)
  refuse()
  return orderFields(resource, object)
}

/** Metadata that only the server writes. */
const serverMetadata = [
  'uid',
  'creationTimestamp',
  'generation',
  'deletionTimestamp',
  'deletionGracePeriodSeconds',
  'generateName',
]
/** Metadata that a write of the status may change. */
const statusMetadata = ['labels', 'annotations', 'managedFields']

/** Copies from the old object what a write of this part may not change. */
export function keepServerFields(
  resource: ServedResource,
  object: MutableJson,
  old: Json,
  part: 'main' | 'status',
): MutableJson {
  const metadata = keepServerMetadata(metadataOf(object), metadataOf(old))
  if (part === 'status') {
    const changed = statusMetadata.filter((field) => metadata[field] !== undefined)
    return {
      ...mutableCopy(old),
      metadata: { ...metadataOf(old), ...Object.fromEntries(changed.map((field) => [field, metadata[field]])) },
      status: object.status ?? {},
    }
  }
  const { status: given, ...rest } = object
  const status = resource.status === 'record' && given !== undefined ? given : deepCopy(old.status)
  return { ...rest, metadata, ...(resource.status === 'none' || status === undefined ? {} : { status }) }
}

function keepServerMetadata(given: Json, old: Json): MutableJson {
  const metadata: MutableJson = { ...given }
  for (const field of serverMetadata) {
    if (old[field] === undefined) delete metadata[field]
    // A uid that the client sends stays, so that validation can compare it.
    else if (field !== 'uid' || metadata.uid === undefined) metadata[field] = old[field]
  }
  metadata.name ??= old.name
  if (old.namespace !== undefined) metadata.namespace ??= old.namespace
  if (old.managedFields !== undefined) metadata.managedFields ??= old.managedFields
  return metadata
}

/** True if the objects differ at most in their version. */
export function hasSameContent(a: Json, b: Json): boolean {
  const withoutVersion = (object: Json): Json => {
    const { resourceVersion: _, ...metadata } = metadataOf(object)
    return { ...object, metadata }
  }
  return deepEqual(withoutVersion(a), withoutVersion(b))
}

/** Sets `metadata.generation`, which counts the changes of everything but metadata and status. */
export function setGeneration(resource: ServedResource, object: MutableJson, old: Json | undefined): void {
  if (!resource.generation) return
  const withoutCounted = ({ metadata: _, status: __, ...rest }: Json): Json => rest
  const before = old === undefined ? 0 : getNumber(metadataOf(old), 'generation')
  const isChanged = old === undefined || !deepEqual(withoutCounted(object), withoutCounted(old))
  object.metadata = { ...metadataOf(object), generation: isChanged ? before + 1 : before }
}
