// Parses the path of a request into the resource, namespace, name and subresource that it names. Pure.

import { badRequest } from '../schema/api-status.ts'
import { findResource, resources, type ServedResource } from '../schema/served-resources.ts'

export interface ResourcePath {
  readonly resource: ServedResource
  /** undefined: all namespaces. '' for resources without namespaces. */
  readonly namespace: string | undefined
  /** '' for the whole collection. */
  readonly name: string
  readonly subresource: '' | 'status'
}

/** Throws a Status 400. */
export function splitPath(path: string): readonly string[] {
  try {
    return path
      .split('/')
      .filter((part) => part !== '')
      .map(decodeURIComponent)
  } catch {
    throw badRequest('the path is not properly encoded')
  }
}

/** `not-served` if the group is not served, `unknown-resource` if it has no such resource. */
export function parseResourcePath(parts: readonly string[]): ResourcePath | 'not-served' | 'unknown-resource' {
  const group = parseGroup(parts)
  if (group === undefined) return 'not-served'
  const { namespace, rest } = parseNamespace(parts.slice(group === '' ? 2 : 3))
  const [plural = '', name = '', subresource = '', ...extra] = rest
  const resource = findResource(group, 'v1', plural)
  const isValid =
    resource !== undefined &&
    extra.length === 0 &&
    isSubresource(resource, subresource) &&
    isScope(resource, namespace, name)
  if (!isValid) return 'unknown-resource'
  return {
    resource,
    namespace: resource.namespaced ? namespace : '',
    name,
    subresource: subresource === 'status' ? 'status' : '',
  }
}

/** '' for the core group; undefined if the path is not that of a served group. */
function parseGroup([root, first = '', second]: readonly string[]): string | undefined {
  if (root === 'api') return first === 'v1' ? '' : undefined
  const isServed =
    root === 'apis' && first !== '' && resources.some(({ group, version }) => group === first && version === second)
  return isServed ? first : undefined
}

/** The path of a namespace's own status has the form of a resource in that namespace. */
function parseNamespace(parts: readonly string[]): { namespace: string | undefined; rest: readonly string[] } {
  const [first, namespace, third] = parts
  const isScoped = first === 'namespaces' && third !== undefined && third !== 'status' && third !== 'finalize'
  return isScoped ? { namespace, rest: parts.slice(2) } : { namespace: undefined, rest: parts }
}

const isSubresource = (resource: ServedResource, name: string): boolean =>
  name === '' || (name === 'status' && resource.status !== 'none')

/** A path without a namespace names a resource without namespaces, or the objects of all namespaces. */
const isScope = (resource: ServedResource, namespace: string | undefined, name: string): boolean =>
  (namespace !== undefined) === resource.namespaced || (resource.namespaced && name === '')
