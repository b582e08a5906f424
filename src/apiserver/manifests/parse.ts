// Reads the objects out of a manifest, and knows the line of every field. Pure.

import { type Document, LineCounter, parseAllDocuments } from 'yaml'
import { describeError } from '../../lib/errors.ts'
import { isObject, type Json, type MutableJson, parseJson, text } from '../schema/json.ts'
import { checkNesting } from '../schema/safe-yaml.ts'
import { decode } from '../schema/schema.ts'
import { findKind, metaOf, type ServedResource } from '../schema/served-resources.ts'

export interface ManifestProblem {
  readonly file: string
  /** From 1. */
  readonly line: number
  /** '' if it is about the file as a whole. */
  readonly field: string
  readonly message: string
}

export interface Manifest {
  readonly resource: ServedResource
  readonly namespace: string
  readonly name: string
  readonly body: Json
  /** The line of a field such as `spec.ports[0].port`, or of what is next above it. */
  lineOf(field: string): number
}

export interface ParsedManifest {
  readonly manifests: readonly Manifest[]
  readonly problems: readonly ManifestProblem[]
}

export function readManifests(file: string, source: string): ParsedManifest {
  const counter = new LineCounter()
  const problems: ManifestProblem[] = []
  const manifests: Manifest[] = []
  try {
    checkNesting(source)
  } catch (error) {
    return { manifests, problems: [{ file, line: 1, field: '', message: describeError(error) }] }
  }
  for (const document of parseAllDocuments(source, {
    lineCounter: counter,
    prettyErrors: true,
  }) as readonly Document[]) {
    const broken = document.errors[0]
    if (broken !== undefined) {
      const message = (broken.message.split('\n')[0] ?? '').replace(/ at line \d+, column \d+:?$/, '')
      problems.push({ file, line: broken.linePos?.[0].line ?? 1, field: '', message })
      continue
    }
    let value: unknown
    try {
      value = parseJson(JSON.stringify(document.toJS({ maxAliasCount: 100 })) ?? 'null')
    } catch (error) {
      problems.push({ file, line: 1, field: '', message: describeError(error) })
      continue
    }
    if (value === null) continue
    for (const { object, path } of expand(value)) {
      const lineOf = (field: string) => findLine(document, counter, joinPath(path, field))
      const read = readOne(object)
      if ('field' in read)
        problems.push({ file, line: lineOf(read.field), field: joinPath(path, read.field), message: read.message })
      else manifests.push({ ...read, lineOf })
    }
  }
  return { manifests, problems }
}

function expand(value: unknown): readonly { object: unknown; path: string }[] {
  if (isObject(value) && text(value, 'kind').endsWith('List') && Array.isArray(value.items)) {
    return value.items.map((object, i) => ({ object, path: `items[${i}]` }))
  }
  return [{ object: value, path: '' }]
}

type ManifestFlaw = { readonly field: string; readonly message: string }

function readOne(object: unknown): Omit<Manifest, 'lineOf'> | ManifestFlaw {
  if (!isObject(object)) return { field: '', message: 'is no object' }
  for (const field of ['apiVersion', 'kind'])
    if (text(object, field) === '') return { field, message: 'Required value' }
  const resource = findKind(text(object, 'apiVersion'), text(object, 'kind'))
  if (resource === undefined) {
    return { field: 'kind', message: `${text(object, 'kind')} of ${text(object, 'apiVersion')} is not served here` }
  }
  if (resource.readOnly)
    return { field: 'kind', message: `${resource.kind} is kept by the server itself; write an EndpointSlice` }
  const { unknown, mismatch, mismatchAt } = decode(resource.shape, object)
  if (mismatch !== undefined) return { field: mismatchAt, message: mismatch }
  if (unknown[0] !== undefined) return { field: unknown[0], message: 'unknown field' }
  const name = text(metaOf(object), 'name')
  if (name === '') return { field: 'metadata.name', message: 'Required value' }
  const namespace = resource.namespaced ? text(metaOf(object), 'namespace') || 'default' : ''
  return { resource, namespace, name, body: withNamespace(object, namespace) }
}

function withNamespace(object: Json, namespace: string): Json {
  const metadata: MutableJson = { ...metaOf(object) }
  if (namespace !== '') metadata.namespace = namespace
  // Files that were written by `kubectl get -o yaml` have these; they belong to the other server.
  for (const field of ['uid', 'resourceVersion', 'creationTimestamp', 'generation', 'managedFields', 'selfLink'])
    delete metadata[field]
  return { ...object, metadata }
}

const joinPath = (path: string, field: string): string =>
  path === '' || field === '' ? path + field : `${path}.${field}`

function findLine(document: Document, counter: LineCounter, field: string): number {
  // The server speaks of the list; people write the single one.
  const single = field.replace(/^((?:items\[\d+\]\.)?spec\.clusterIP)s.*$/, '$1')
  if (single !== field && document.getIn(pathOf(single)) !== undefined) return findLine(document, counter, single)
  const path = pathOf(field)
  for (let length = path.length; length >= 0; length--) {
    const node = length === 0 ? document.contents : document.getIn(path.slice(0, length), true)
    const range = (node as { range?: readonly number[] | null } | undefined | null)?.range
    if (range?.[0] !== undefined) return counter.linePos(range[0]).line
  }
  return 1
}

const pathOf = (field: string): readonly (string | number)[] =>
  [...field.matchAll(/([^.[\]]+)|\[(\d+)\]/g)].map(([, name, index]) =>
    index === undefined ? (name as string) : Number(index),
  )
