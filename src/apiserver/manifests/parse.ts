// Parses the objects of a manifest, and finds the line of every field. Pure.

import { type Document, LineCounter, parseAllDocuments } from 'yaml'
import { describeError } from '../../lib/errors.ts'
import { describeMismatch, describeUnknownFields } from '../requests/admission.ts'
import { getString, isObject, type Json, type MutableJson } from '../schema/json.ts'
import { metadataOf, nameOf, namespaceOf } from '../schema/object-metadata.ts'
import { checkTokens, findDuplicateKey, toJson } from '../schema/safe-yaml.ts'
import { decodeObject } from '../schema/schema.ts'
import { findKind, type ServedResource } from '../schema/served-resources.ts'

export interface ManifestProblem {
  readonly file: string
  /** The first line is 1. */
  readonly line: number
  /** '' if the problem is not about one field. */
  readonly field: string
  readonly message: string
}

export interface Manifest {
  readonly resource: ServedResource
  readonly namespace: string
  readonly name: string
  readonly body: Json
  /** The line of a field such as `spec.ports[0].port`, or of the next field above it that the file has. */
  lineOf(field: string): number
}

export interface ParsedManifest {
  readonly manifests: readonly Manifest[]
  readonly problems: readonly ManifestProblem[]
}

/** A well-formed object of a kind that this server does not have. */
export interface UnservedObject {
  readonly file: string
  readonly line: number
  readonly field: string
  readonly apiVersion: string
  readonly kind: string
  /** '' if the object has none. */
  readonly namespace: string
  readonly name: string
}

/** The content of a file whose other kinds belong to another server. */
export interface MixedManifest extends ParsedManifest {
  readonly unserved: readonly UnservedObject[]
}

/** An object of a kind that is not served is a problem of the file. */
export function parseManifests(file: string, source: string): ParsedManifest {
  const { manifests, problems, unserved } = parseMixedManifests(file, source)
  const refused = unserved.map(({ line, field, apiVersion, kind }) => ({
    file,
    line,
    field,
    message: `${kind} of ${apiVersion} is not served here`,
  }))
  return { manifests, problems: [...problems, ...refused] }
}

export function parseMixedManifests(file: string, source: string): MixedManifest {
  try {
    checkTokens(source)
  } catch (error) {
    return { ...invalidFile(file, describeError(error)), unserved: [] }
  }
  const lines = new LineCounter()
  const documents: readonly Document[] = parseAllDocuments(source, {
    lineCounter: lines,
    prettyErrors: true,
    uniqueKeys: false,
  })
  const parsed = documents.map((document) => parseDocument(file, document, lines))
  return {
    manifests: parsed.flatMap(({ manifests }) => manifests),
    problems: parsed.flatMap(({ problems }) => problems),
    unserved: parsed.flatMap(({ unserved }) => unserved ?? []),
  }
}

export const invalidFile = (file: string, message: string, line = 1): ParsedManifest => ({
  manifests: [],
  problems: [{ file, line, field: '', message }],
})

function parseDocument(
  file: string,
  document: Document,
  lines: LineCounter,
): ParsedManifest & { readonly unserved?: readonly UnservedObject[] } {
  const [error] = document.errors
  if (error !== undefined) {
    const message = (error.message.split('\n')[0] ?? '').replace(/ at line \d+, column \d+:?$/, '')
    return invalidFile(file, message, error.linePos?.[0].line)
  }
  const duplicate = findDuplicateKey(document)
  if (duplicate !== undefined) {
    const { line } = lines.linePos(duplicate.offset)
    return invalidFile(file, `the key ${JSON.stringify(duplicate.key)} is set twice`, line)
  }
  let value: unknown
  try {
    value = toJson(document)
  } catch (failure) {
    return invalidFile(file, describeError(failure))
  }
  const manifests: Manifest[] = []
  const problems: ManifestProblem[] = []
  const unserved: UnservedObject[] = []
  for (const { object, path } of expandList(value)) {
    const lineOf = (field: string) => findLine(document, lines, joinPath(path, field))
    const parsed = parseObject(object)
    if ('message' in parsed) {
      const { field, message } = parsed
      problems.push({ file, line: lineOf(field), field: joinPath(path, field), message })
    } else if ('apiVersion' in parsed) {
      unserved.push({ ...parsed, file, line: lineOf('kind'), field: joinPath(path, 'kind') })
    } else manifests.push({ ...parsed, lineOf })
  }
  return { manifests, problems, unserved }
}

/** The objects of a `List`, or the object itself. An empty document has none. */
function expandList(value: unknown): readonly { object: unknown; path: string }[] {
  if (value === null) return []
  if (isObject(value) && getString(value, 'kind').endsWith('List') && Array.isArray(value.items)) {
    return value.items.map((object, i) => ({ object, path: `items[${i}]` }))
  }
  return [{ object: value, path: '' }]
}

interface FieldProblem {
  readonly field: string
  readonly message: string
}

type UnservedIdentity = Pick<UnservedObject, 'apiVersion' | 'kind' | 'namespace' | 'name'>

function parseObject(object: unknown): Omit<Manifest, 'lineOf'> | FieldProblem | UnservedIdentity {
  if (!isObject(object)) return { field: '', message: 'is not an object' }
  const [apiVersion, kind] = [getString(object, 'apiVersion'), getString(object, 'kind')]
  if (apiVersion === '') return { field: 'apiVersion', message: 'Required value' }
  if (kind === '') return { field: 'kind', message: 'Required value' }
  const resource = findKind(apiVersion, kind)
  if (resource === undefined) return { apiVersion, kind, namespace: namespaceOf(object), name: nameOf(object) }
  if (resource.readOnly)
    return { field: 'kind', message: `the server itself writes ${resource.kind}; write an EndpointSlice instead` }
  const problem = findFieldProblem(resource, object)
  if (problem !== undefined) return problem
  const namespace = resource.namespaced ? namespaceOf(object) || 'default' : ''
  return { resource, namespace, name: nameOf(object), body: withNamespace(object, namespace) }
}

function findFieldProblem(resource: ServedResource, object: Json): FieldProblem | undefined {
  const { unknown, mismatch } = decodeObject(resource.schema, object)
  if (mismatch !== undefined) return { field: mismatch.path, message: describeMismatch(resource, mismatch.message) }
  if (unknown[0] !== undefined) return { field: unknown[0], message: describeUnknownFields(resource, unknown) }
  return nameOf(object) === '' ? { field: 'metadata.name', message: 'Required value' } : undefined
}

/** Metadata of another server, which files from `kubectl get -o yaml` contain. */
const foreignMetadata = ['uid', 'resourceVersion', 'creationTimestamp', 'generation', 'managedFields', 'selfLink']

function withNamespace(object: Json, namespace: string): Json {
  const metadata: MutableJson = { ...metadataOf(object) }
  if (namespace !== '') metadata.namespace = namespace
  for (const field of foreignMetadata) delete metadata[field]
  return { ...object, metadata }
}

const joinPath = (path: string, field: string): string =>
  path === '' || field === '' ? path + field : `${path}.${field}`

function findLine(document: Document, lines: LineCounter, field: string): number {
  // The server's messages name `clusterIPs`; most files have only `clusterIP`.
  const single = field.replace(/^((?:items\[\d+\]\.)?spec\.clusterIP)s.*$/, '$1')
  if (single !== field && document.getIn(parsePath(single)) !== undefined) return findLine(document, lines, single)
  const path = parsePath(field)
  for (let length = path.length; length >= 0; length--) {
    const start = startOf(length === 0 ? document.contents : document.getIn(path.slice(0, length), true))
    if (start !== undefined) return lines.linePos(start).line
  }
  return 1
}

/** The offset of a YAML node in the source. */
function startOf(node: unknown): number | undefined {
  const range = (node as { readonly range?: readonly number[] | null } | null | undefined)?.range
  return range?.[0]
}

const parsePath = (field: string): readonly (string | number)[] =>
  [...field.matchAll(/([^.[\]]+)|\[(\d+)\]/g)].map(([, name = '', index]) =>
    index === undefined ? name : Number(index),
  )
