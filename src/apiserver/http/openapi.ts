// OpenAPI documents out of the shapes: kubectl learns from them how to merge, what to explain, and what the server checks.

import { createHash } from 'node:crypto'
import type { Json, MutableJson } from '../schema/json.ts'
import type { Schema, Shape } from '../schema/schema.ts'
import { apiVersionOf, resources, type ServedResource } from '../schema/served-resources.ts'

const info = { title: 'Sluice', version: 'v1.36.4' }

interface Dialect {
  readonly prefix: string
  readonly wrap: (reference: Json) => Json
}
const v2: Dialect = { prefix: '#/definitions/', wrap: (reference) => reference }
// A reference may have no siblings in version 3.
const v3: Dialect = { prefix: '#/components/schemas/', wrap: (reference) => ({ allOf: [reference] }) }

const groupVersionKind = ({ group, version, kind }: ServedResource): Json => ({ group, kind, version })

function schemasOf(served: readonly ServedResource[], dialect: Dialect): Json {
  const made: MutableJson = {}
  const add = (shape: Shape): void => {
    if (Object.hasOwn(made, shape.name)) return
    const properties: MutableJson = {}
    made[shape.name] = {
      type: 'object',
      properties,
      ...(shape.open === true ? { 'x-kubernetes-preserve-unknown-fields': true } : {}),
    }
    for (const [field, schema] of Object.entries(shape.fields)) properties[field] = describe(schema, dialect, add)
  }
  for (const resource of served) {
    add(resource.shape)
    const own = made[resource.shape.name] as MutableJson
    own['x-kubernetes-group-version-kind'] = [groupVersionKind(resource)]
    const listName = `${resource.shape.name}List`
    made[listName] = {
      type: 'object',
      required: ['items'],
      properties: {
        apiVersion: { type: 'string' },
        kind: { type: 'string' },
        metadata: { type: 'object' },
        items: { type: 'array', items: dialect.wrap({ $ref: `${dialect.prefix}${resource.shape.name}` }) },
      },
      'x-kubernetes-group-version-kind': [{ ...groupVersionKind(resource), kind: `${resource.kind}List` }],
    }
  }
  return made
}

function describe(schema: Schema, dialect: Dialect, add: (shape: Shape) => void): Json {
  switch (schema.type) {
    case 'object':
      add(schema)
      return dialect.wrap({ $ref: `${dialect.prefix}${schema.name}` })
    case 'map':
      return { type: 'object', additionalProperties: describe(schema.of, dialect, add) }
    case 'list': {
      const items = describe(schema.of, dialect, add)
      if (schema.mergeKey === undefined) return { type: 'array', items, 'x-kubernetes-list-type': 'atomic' }
      const strategy = { 'x-kubernetes-patch-strategy': 'merge' }
      if (schema.mergeKey === '') return { type: 'array', items, 'x-kubernetes-list-type': 'set', ...strategy }
      return {
        type: 'array',
        items,
        'x-kubernetes-list-type': 'map',
        'x-kubernetes-list-map-keys': schema.keys,
        'x-kubernetes-patch-merge-key': schema.mergeKey,
        ...strategy,
      }
    }
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

type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

/** By these parameters kubectl finds out whether the server checks fields and can try without doing. */
const parameters: Readonly<Record<Method, readonly string[]>> = {
  get: [],
  post: ['dryRun', 'fieldManager', 'fieldValidation'],
  put: ['dryRun', 'fieldManager', 'fieldValidation'],
  patch: ['dryRun', 'fieldManager', 'fieldValidation', 'force'],
  delete: ['dryRun', 'gracePeriodSeconds', 'propagationPolicy'],
}

function pathsOf(served: readonly ServedResource[], version: 2 | 3): Json {
  const made: MutableJson = {}
  for (const resource of served) {
    const root = resource.group === '' ? '/api/v1' : `/apis/${apiVersionOf(resource)}`
    const collection = `${root}${resource.namespaced ? '/namespaces/{namespace}' : ''}/${resource.plural}`
    const writes = resource.readOnly ? [] : (['put', 'patch', 'delete'] as const)
    if (resource.namespaced) made[`${root}/${resource.plural}`] = operations(resource, ['get'], version, true)
    made[collection] = operations(resource, resource.readOnly ? ['get'] : ['get', 'post'], version, true)
    made[`${collection}/{name}`] = operations(resource, ['get', ...writes], version, false)
    if (resource.status !== 'none') {
      made[`${collection}/{name}/status`] = operations(resource, ['get', 'put', 'patch'], version, false)
    }
  }
  return made
}

const actions: Readonly<Record<Method, string>> = {
  get: 'get',
  post: 'post',
  put: 'put',
  patch: 'patch',
  delete: 'delete',
}

function operations(resource: ServedResource, methods: readonly Method[], version: 2 | 3, collection: boolean): Json {
  const made: MutableJson = {}
  for (const method of methods) {
    made[method] = {
      operationId: `${method}${resource.group}${resource.kind}${collection ? 'List' : ''}`,
      parameters: parameters[method].map((name) => parameter(name, version)),
      responses: { '200': { description: 'OK' } },
      'x-kubernetes-action': collection && method === 'get' ? 'list' : actions[method],
      'x-kubernetes-group-version-kind': groupVersionKind(resource),
    }
  }
  return made
}

function parameter(name: string, version: 2 | 3): Json {
  const type = name === 'force' ? 'boolean' : name === 'gracePeriodSeconds' ? 'integer' : 'string'
  return version === 2
    ? { name, in: 'query', type, uniqueItems: true }
    : { name, in: 'query', schema: { type, uniqueItems: true } }
}

const memo = new Map<string, string>()
function remember(key: string, make: () => Json): string {
  let text = memo.get(key)
  if (text === undefined) {
    text = JSON.stringify(make())
    memo.set(key, text)
  }
  return text
}

export const openApiV2 = (): string =>
  remember('v2', () => ({
    swagger: '2.0',
    info,
    // Both events are one kind to most readers; the newer group is served by version 3 only.
    paths: pathsOf(resources, 2),
    definitions: schemasOf(resources, v2),
  }))

export const openApiBinaryType = 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf'

/**
 * The binary form of version 2, which describes nothing: kubectl asks for it only to learn that version 3 does not leave a kind out by
 * mistake, and only then says that the server has no such kind.
 */
export function openApiV2Binary(): string {
  const field = (number: number, value: string): string => String.fromCharCode((number << 3) | 2, value.length) + value
  return field(1, '2.0') + field(2, field(1, info.title) + field(2, info.version)) + field(8, '') + field(9, '')
}

const groupPath = (resource: ServedResource): string =>
  resource.group === '' ? 'api/v1' : `apis/${apiVersionOf(resource)}`

/** By path: `api/v1`. undefined if nothing is served there. */
export function openApiV3(path: string): string | undefined {
  const served = resources.filter((resource) => groupPath(resource) === path)
  if (served.length === 0) return undefined
  return remember(path, () => ({
    openapi: '3.0.0',
    info,
    paths: pathsOf(served, 3),
    components: { schemas: schemasOf(served, v3) },
  }))
}

export function openApiIndex(): string {
  return remember('v3', () => {
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
