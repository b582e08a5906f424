// Reads the objects of the file that `sluice plan` is given, and selects those that can change where packets go.

import { readFileSync } from 'node:fs'
import { parseAllDocuments } from 'yaml'
import { describeError, ProxyError } from '../../lib/errors.ts'

export type ManifestJson = Readonly<Record<string, unknown>>

export interface ChangedObject<Kind extends string> {
  readonly kind: Kind
  readonly json: ManifestJson
}

export interface SelectedObjects<Kind extends string> {
  readonly objects: readonly ChangedObject<Kind>[]
  /** One sentence about each object that was ignored. */
  readonly remarks: readonly string[]
}

/** Returns all objects of the file, items of lists included. Throws a ProxyError 'manifests' with file and line. */
export function readObjects(file: string): readonly unknown[] {
  return parseAllDocuments(readText(file)).flatMap((document) => {
    const problem = document.errors[0]
    if (problem !== undefined) {
      throw new ProxyError('manifests', `${file}:${problem.linePos?.[0].line ?? 1}: ${problem.message.split('\n')[0]}`)
    }
    const value = document.toJS() as { kind?: string; items?: unknown[] } | null
    if (value === null || value === undefined) return []
    return value.kind?.endsWith('List') && Array.isArray(value.items) ? value.items : [value]
  })
}

/** `-` reads standard input. */
function readText(file: string): string {
  try {
    return readFileSync(file === '-' ? 0 : file, 'utf8')
  } catch (error) {
    throw new ProxyError('manifests', `cannot read ${file}: ${describeError(error)}`, { cause: error })
  }
}

/** Selects the objects of these kinds. Throws a ProxyError 'manifests' if there is none. */
export function selectKinds<Kind extends string>(
  all: readonly unknown[],
  kinds: readonly Kind[],
): SelectedObjects<Kind> {
  const objects: ChangedObject<Kind>[] = []
  const remarks: string[] = []
  for (const json of all) {
    const kind = kinds.find((one) => one === (json as { kind?: unknown } | null)?.kind)
    if (kind === undefined) remarks.push(ignoredRemark(json))
    else objects.push({ kind, json: json as ManifestJson })
  }
  if (objects.length === 0) {
    throw new ProxyError('manifests', [`the file has no ${kinds.join(' or ')}`, ...remarks].join('; '))
  }
  return { objects, remarks }
}

function ignoredRemark(json: unknown): string {
  const kind = (json as { kind?: unknown } | null)?.kind
  const why =
    kind === 'Pod'
      ? 'pods matter only through the EndpointSlices that the cluster makes from them'
      : 'it does not decide where packets of services go'
  return `${String(kind)} ${keyOf(json)} is ignored: ${why}`
}

export const metadataOf = (json: unknown): ManifestJson =>
  ((json as ManifestJson | null)?.metadata ?? {}) as ManifestJson

/** Returns `namespace/name`. */
export function keyOf(json: unknown): string {
  const { namespace = 'default', name } = metadataOf(json)
  if (typeof name !== 'string' || name === '') throw new ProxyError('manifests', 'an object has no metadata.name')
  return `${String(namespace)}/${name}`
}

/** Sets the namespace that kubectl would set. */
export const withNamespace = (json: ManifestJson): ManifestJson => ({
  ...json,
  metadata: { namespace: 'default', ...metadataOf(json) },
})
