// Builds OpenAPI documents from the schemas. kubectl reads in them how to merge lists, what to explain, and what the server validates.

import { createHash } from 'node:crypto'
import { getObject, type Json, type MutableJson } from '../schema/json.ts'
import type { ListSchema, ObjectSchema, Schema } from '../schema/schema.ts'
import { apiVersionOf, resources, type ServedResource } from '../schema/served-resources.ts'

const info = { title: 'Sluice', version: 'v1.36.4' }

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

const groupVersionKind = ({ group, version, kind }: ServedResource): Json => ({ group, kind, version })

function schemasOf(served: readonly ServedResource[], version: OpenApiVersion): Json {
  const definitions: MutableJson = {}
  for (const resource of served) {
    const { name } = resource.schema
    addDefinition(resource.schema, version, definitions)
    const kinds = [groupVersionKind(resource)]
    definitions[name] = { ...getObject(definitions, name), 'x-kubernetes-group-version-kind': kinds }
    definitions[`${name}List`] = listDefinition(resource, version)
  }
  return definitions
}

/** Adds the schema, and the schemas of all objects in it, by their names. */
function addDefinition(schema: ObjectSchema, version: OpenApiVersion, definitions: MutableJson): void {
  if (Object.hasOwn(definitions, schema.name)) return
  const properties: MutableJson = {}
  definitions[schema.name] = {
    type: 'object',
    properties,
    ...(schema.open === true ? { 'x-kubernetes-preserve-unknown-fields': true } : {}),
  }
  for (const [name, field] of Object.entries(schema.fields)) {
    properties[name] = describeSchema(field, version, (inner) => addDefinition(inner, version, definitions))
  }
}

const listDefinition = (resource: ServedResource, version: OpenApiVersion): Json => ({
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

function pathsOf(served: readonly ServedResource[], version: OpenApiVersion): Json {
  const paths: MutableJson = {}
  for (const resource of served) {
    const { namespaced, plural, readOnly, status } = resource
    const root = resource.group === '' ? '/api/v1' : `/apis/${apiVersionOf(resource)}`
    const collection = `${root}${namespaced ? '/namespaces/{namespace}' : ''}/${plural}`
    const describe = (methods: readonly Method[], scope: 'object' | 'collection') =>
      operations(resource, methods, scope, version)
    if (namespaced) paths[`${root}/${plural}`] = describe(['get'], 'collection')
    paths[collection] = describe(readOnly ? ['get'] : ['get', 'post'], 'collection')
    paths[`${collection}/{name}`] = describe(readOnly ? ['get'] : ['get', 'put', 'patch', 'delete'], 'object')
    if (status !== 'none') paths[`${collection}/{name}/status`] = describe(['get', 'put', 'patch'], 'object')
  }
  return paths
}

function operations(
  resource: ServedResource,
  methods: readonly Method[],
  scope: 'object' | 'collection',
  version: OpenApiVersion,
): Json {
  const isCollection = scope === 'collection'
  const describe = (method: Method): Json => ({
    operationId: `${method}${resource.group}${resource.kind}${isCollection ? 'List' : ''}`,
    parameters: parameters[method].map((name) => version.describeParameter(name, parameterTypes.get(name) ?? 'string')),
    responses: { '200': { description: 'OK' } },
    'x-kubernetes-action': isCollection && method === 'get' ? 'list' : method,
    'x-kubernetes-group-version-kind': groupVersionKind(resource),
  })
  return Object.fromEntries(methods.map((method) => [method, describe(method)]))
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
    paths: pathsOf(resources, v2),
    definitions: schemasOf(resources, v2),
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

const groupPath = (resource: ServedResource): string =>
  resource.group === '' ? 'api/v1' : `apis/${apiVersionOf(resource)}`

/** The document of a group by its path, `api/v1`; undefined if the group is not served. */
export function openApiV3(path: string): string | undefined {
  const served = resources.filter((resource) => groupPath(resource) === path)
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
    for (const path of new Set(resources.map(groupPath))) {
      const hash = createHash('sha256')
        .update(openApiV3(path) ?? '')
        .digest('hex')
        .toUpperCase()
      paths[path] = { serverRelativeURL: `/openapi/v3/${path}?hash=${hash}` }
    }
    return { paths }
  })
}
