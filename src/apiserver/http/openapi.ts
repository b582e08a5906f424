// Builds OpenAPI documents from the schemas. kubectl reads in them how to merge lists, what to explain, and what the server validates.

import { createHash } from 'node:crypto'
import { getObject, type Json, type MutableJson } from '../schema/json.ts'
import type { ListSchema, ObjectSchema, Schema } from '../schema/schema.ts'
import { resources, type ServedResource } from '../schema/served-resources.ts'
import { reviews } from './access-reviews.ts'
import { commonDescriptions, objectDescriptions } from './object-descriptions.ts'
import { recordDescriptions } from './record-descriptions.ts'

const info = { title: 'Sluice', version: 'v1.36.4' }

interface DocumentedResource
  extends Pick<
    ServedResource,
    'group' | 'version' | 'plural' | 'kind' | 'namespaced' | 'schema' | 'readOnly' | 'status'
  > {
  /** True if objects can only be created: the answer to a creation is all there is of them. */
  readonly isReview: boolean
}

const documented: readonly DocumentedResource[] = [
  ...resources.map((one) => ({ ...one, isReview: false })),
  ...reviews.map((one) => ({ ...one, isReview: true, readOnly: false, status: 'none' as const })),
]

const descriptions = { ...objectDescriptions, ...recordDescriptions }

/** What `kubectl explain` says about a field, or about the object itself if the field is ''. */
const describe = (schemaName: string, field: string): string | undefined =>
  descriptions[schemaName]?.[field] ?? (field === '' ? undefined : commonDescriptions[field])

/** What differs between the versions of OpenAPI. */
interface OpenApiVersion {
  readonly refer: (schemaName: string) => Json
  readonly describeParameter: (name: string, type: string) => Json
}
const v2: OpenApiVersion = {
  refer: (name) => ({ $ref: `#/definitions/${name}` }),
  describeParameter: (name, type) => ({ name, in: 'query', type, uniqueItems: true }),
}
const v3: OpenApiVersion = {
  // In version 3 a reference may not have other fields beside it.
  refer: (name) => ({ allOf: [{ $ref: `#/components/schemas/${name}` }] }),
  describeParameter: (name, type) => ({ name, in: 'query', schema: { type, uniqueItems: true } }),
}

const groupVersionKind = ({ group, version, kind }: DocumentedResource): Json => ({ group, kind, version })

function schemasOf(served: readonly DocumentedResource[], version: OpenApiVersion): Json {
  const definitions: MutableJson = {}
  for (const resource of served) {
    const { name } = resource.schema
    addDefinition(resource.schema, version, definitions)
    const kinds = [groupVersionKind(resource)]
    definitions[name] = { ...getObject(definitions, name), 'x-kubernetes-group-version-kind': kinds }
    if (!resource.isReview) definitions[`${name}List`] = listDefinition(resource, version)
  }
  return definitions
}

/** Adds the schema, and the schemas of all objects in it, by their names. */
function addDefinition(schema: ObjectSchema, version: OpenApiVersion, definitions: MutableJson): void {
  if (Object.hasOwn(definitions, schema.name)) return
  const properties: MutableJson = {}
  definitions[schema.name] = {
    type: 'object',
    description: describe(schema.name, ''),
    properties,
    ...(schema.open === true ? { 'x-kubernetes-preserve-unknown-fields': true } : {}),
  }
  for (const [name, field] of Object.entries(schema.fields)) {
    const type = describeSchema(field, version, (inner) => addDefinition(inner, version, definitions))
    properties[name] = { ...type, description: describe(schema.name, name) }
  }
}

const listDefinition = (resource: DocumentedResource, version: OpenApiVersion): Json => ({
  type: 'object',
  required: ['items'],
  properties: {
    apiVersion: { type: 'string' },
    kind: { type: 'string' },
    metadata: { type: 'object' },
    items: { type: 'array', items: version.refer(resource.schema.name) },
  },
  'x-kubernetes-group-version-kind': [{ ...groupVersionKind(resource), kind: `${resource.kind}List` }],
})

function describeSchema(schema: Schema, version: OpenApiVersion, add: (schema: ObjectSchema) => void): Json {
  switch (schema.type) {
    case 'object':
      add(schema)
      return version.refer(schema.name)
    case 'map':
      return { type: 'object', additionalProperties: describeSchema(schema.of, version, add) }
    case 'list':
      return { type: 'array', items: describeSchema(schema.of, version, add), ...describeMerge(schema) }
    case 'any':
      return { 'x-kubernetes-preserve-unknown-fields': true }
    case 'int-or-string':
      return { type: 'string', format: 'int-or-string', 'x-kubernetes-int-or-string': true }
    case 'time':
      return { type: 'string', format: 'date-time' }
    default:
      return { type: schema.type, ...(schema.format === undefined ? {} : { format: schema.format }) }
  }
}

/** How patches merge a list. */
function describeMerge({ mergeKey, keys }: ListSchema): Json {
  if (mergeKey === undefined) return { 'x-kubernetes-list-type': 'atomic' }
  const strategy = { 'x-kubernetes-patch-strategy': 'merge' }
  if (mergeKey === '') return { 'x-kubernetes-list-type': 'set', ...strategy }
  return {
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': keys,
    'x-kubernetes-patch-merge-key': mergeKey,
    ...strategy,
  }
}

type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

/** kubectl looks for these parameters to find out whether the server validates fields and has dry runs. */
const parameters: Readonly<Record<Method, readonly string[]>> = {
  get: [],
  post: ['dryRun', 'fieldManager', 'fieldValidation'],
  put: ['dryRun', 'fieldManager', 'fieldValidation'],
  patch: ['dryRun', 'fieldManager', 'fieldValidation', 'force'],
  delete: ['dryRun', 'gracePeriodSeconds', 'propagationPolicy'],
}
/** The types of the parameters that are not strings. */
const parameterTypes: ReadonlyMap<string, string> = new Map([
  ['force', 'boolean'],
  ['gracePeriodSeconds', 'integer'],
])

function pathsOf(served: readonly DocumentedResource[], version: OpenApiVersion): Json {
  const paths: MutableJson = {}
  for (const resource of served) {
    const { namespaced, plural, readOnly, status, isReview } = resource
    const root = `/${groupPath(resource)}`
    const collection = `${root}${namespaced ? '/namespaces/{namespace}' : ''}/${plural}`
    const list = (methods: readonly Method[], scope: 'object' | 'collection') =>
      operations(resource, methods, scope, version)
    if (isReview) {
      paths[collection] = list(['post'], 'object')
      continue
    }
    if (namespaced) paths[`${root}/${plural}`] = list(['get'], 'collection')
    paths[collection] = list(readOnly ? ['get'] : ['get', 'post'], 'collection')
    paths[`${collection}/{name}`] = list(readOnly ? ['get'] : ['get', 'put', 'patch', 'delete'], 'object')
    if (status !== 'none') paths[`${collection}/{name}/status`] = list(['get', 'put', 'patch'], 'object')
  }
  return paths
}

function operations(
  resource: DocumentedResource,
  methods: readonly Method[],
  scope: 'object' | 'collection',
  version: OpenApiVersion,
): Json {
  const isCollection = scope === 'collection'
  const operation = (method: Method): Json => ({
    operationId: `${method}${resource.group}${resource.kind}${isCollection ? 'List' : ''}`,
    parameters: parameters[method].map((name) => version.describeParameter(name, parameterTypes.get(name) ?? 'string')),
    responses: { '200': { description: 'OK' } },
    'x-kubernetes-action': isCollection && method === 'get' ? 'list' : method,
    'x-kubernetes-group-version-kind': groupVersionKind(resource),
  })
  return Object.fromEntries(methods.map((method) => [method, operation(method)]))
}

/** Documents that were built already, by path; they never change. */
const documents = new Map<string, string>()

function buildOnce(path: string, build: () => Json): string {
  let text = documents.get(path)
  if (text === undefined) {
    text = JSON.stringify(build())
    documents.set(path, text)
  }
  return text
}

export const openApiV2 = (): string =>
  buildOnce('v2', () => ({
    swagger: '2.0',
    info,
    paths: pathsOf(documented, v2),
    definitions: schemasOf(documented, v2),
  }))

export const openApiBinaryType = 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf'

/**
 * An empty document in the binary form of version 2. kubectl reads it when version 3 lacks a kind, and reports that the server has no such
 * kind only if version 2 lacks it as well.
 */
export function openApiV2Binary(): string {
  const field = (number: number, value: string): string => String.fromCharCode((number << 3) | 2, value.length) + value
  return field(1, '2.0') + field(2, field(1, info.title) + field(2, info.version)) + field(8, '') + field(9, '')
}

const groupPath = ({ group, version }: DocumentedResource): string =>
  group === '' ? `api/${version}` : `apis/${group}/${version}`

/** The document of a group by its path, `api/v1`; undefined if the group is not served. */
export function openApiV3(path: string): string | undefined {
  const served = documented.filter((resource) => groupPath(resource) === path)
  if (served.length === 0) return undefined
  return buildOnce(path, () => ({
    openapi: '3.0.0',
    info,
    paths: pathsOf(served, v3),
    components: { schemas: schemasOf(served, v3) },
  }))
}

export function openApiIndex(): string {
  return buildOnce('v3', () => {
    const paths: MutableJson = {}
    for (const path of new Set(documented.map(groupPath))) {
      const hash = createHash('sha256')
        .update(openApiV3(path) ?? '')
        .digest('hex')
        .toUpperCase()
      paths[path] = { serverRelativeURL: `/openapi/v3/${path}?hash=${hash}` }
    }
    return { paths }
  })
}
