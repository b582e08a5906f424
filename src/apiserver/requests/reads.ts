// Chooses the objects of a list: version, selectors, page. The caller waits until the version is on disk before it answers. Pure.

import { expired, versionExpired, versionTooLarge } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { nameOf, namespaceOf } from '../schema/object-metadata.ts'
import type { ServedResource } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { formatToken, type ListQuery, parseListQuery } from './list-options.ts'

/** The objects of a resource in one namespace, or in all of them. */
export interface ListScope {
  readonly resource: ServedResource
  readonly namespace: string | undefined
}

export interface Page {
  readonly entries: readonly Entry[]
  readonly metadata: Json
}

/** Throws a Status: 400 or 422 for bad options, 410 for an expired version, 504 for a version that does not exist yet. */
export function list(registry: Registry, scope: ListScope, query: URLSearchParams): Page {
  const listQuery = parseListQuery(scope.resource, query)
  const { version = 0 } = listQuery
  if (version > registry.head) throw versionTooLarge(version, registry.head, { 'Retry-After': '1' })
  return choosePage(findObjects(registry, scope, listQuery), listQuery)
}

/** All objects that match the query, at one version. */
interface FoundObjects {
  readonly entries: readonly Entry[]
  readonly version: number
}

function findObjects(registry: Registry, { resource, namespace }: ListScope, query: ListQuery): FoundObjects {
  const { token } = query
  const version = token?.version ?? query.exactVersion ?? registry.head
  const all =
    version === registry.head
      ? [...registry.list(resource.plural, namespace)]
      : registry.listAt(resource.plural, namespace, version)
  if (all === undefined) {
    if (token === undefined) throw versionExpired(version, registry.horizon(resource.plural))
    throw pageExpired(registry.head, token.after)
  }
  return { version, entries: query.selectsAll ? all : all.filter(({ object }) => query.matches(object)) }
}

function choosePage({ entries, version }: FoundObjects, { token, limit, selectsAll }: ListQuery): Page {
  const start = token === undefined ? 0 : findFirstAfter(entries, token.after)
  const end = limit > 0 ? Math.min(start + limit, entries.length) : entries.length
  const page = entries.slice(start, end)
  const last = page.at(-1)
  const remaining = entries.length - end
  const resourceVersion = String(version)
  if (remaining === 0 || last === undefined) return { entries: page, metadata: { resourceVersion } }
  const metadata = {
    resourceVersion,
    continue: formatToken({ version, after: `${namespaceOf(last.object)}/${nameOf(last.object)}` }),
    // Kubernetes leaves the count out of lists with selectors.
    ...(selectsAll ? { remainingItemCount: remaining } : {}),
  }
  return { entries: page, metadata }
}

const pageExpired = (version: number, after: string) =>
  expired(
    'The continue parameter is too old for a consistent list; start again without it, or go on with the token in metadata.continue, which may miss changes.',
    { continue: formatToken({ version, after }) },
  )

function findFirstAfter(entries: readonly Entry[], after: string): number {
  const [lastNamespace = '', lastName = ''] = after.split('/')
  const index = entries.findIndex(({ object }) => {
    const namespace = namespaceOf(object)
    return namespace > lastNamespace || (namespace === lastNamespace && nameOf(object) > lastName)
  })
  return index < 0 ? entries.length : index
}
