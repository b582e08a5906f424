// Asks a real API server what would become of an object, by a request with dryRun=All: the server checks and completes, and stores nothing.

import { applyPatchType } from '../../apiserver/requests/patch-types.ts'
import type { ObjectPath } from '../../apiserver/requests/writes.ts'
import type { StatusCause } from '../../apiserver/schema/api-status.ts'
import { isObject, type Json } from '../../apiserver/schema/json.ts'
import { apiVersionOf } from '../../apiserver/schema/served-resources.ts'
import type { ApiRequester } from '../../kube/api-objects.ts'
import { ApiError, describeError, ProxyError } from '../../lib/errors.ts'
import { RefusedObject } from './admission-trial.ts'
import type { ApiRefusal } from './change-files.ts'
import { applierOf, lastAppliedTo, mergeApplied, mergePatchBetween } from './client-apply.ts'

export interface TriedObject {
  readonly path: ObjectPath
  /** The object of the file. */
  readonly body: Json
  /** The object that the cluster has now. */
  readonly current: Json | undefined
}

/** What the server would store, or why it could not be asked. */
export type DryRunAnswer = { readonly object: Json } | { readonly unavailable: string }

export function collectionPath({ resource, namespace }: ObjectPath): string {
  const root = resource.group === '' ? '/api/v1' : `/apis/${apiVersionOf(resource)}`
  return `${root}${resource.namespaced ? `/namespaces/${namespace}` : ''}/${resource.plural}`
}

export const objectPath = (path: ObjectPath): string => `${collectionPath(path)}/${encodeURIComponent(path.name)}`

/** Throws a RefusedObject if the server refuses the object. */
export async function tryOnServer(api: ApiRequester, tried: TriedObject): Promise<DryRunAnswer> {
  try {
    const { json } = await api.request({ ...makeRequest(tried), signal: AbortSignal.timeout(30_000) })
    return isObject(json) ? { object: json } : { unavailable: 'the answer is not an object' }
  } catch (error) {
    if (error instanceof ApiError && isRefusal(error)) throw new RefusedObject(readRefusal(error))
    if (error instanceof ProxyError) return { unavailable: describeError(error) }
    throw error
  }
}

/** The request that kubectl would send, or the applier that the object has. */
function makeRequest({ path, body, current }: TriedObject) {
  const query = { dryRun: 'All', fieldValidation: 'Strict' }
  if (current === undefined) return { method: 'POST', path: collectionPath(path), query, body }
  const manager = applierOf(current)
  const method = 'PATCH'
  if (manager !== '' && lastAppliedTo(current) === undefined) {
    const applied = { ...query, fieldManager: manager, force: 'true' }
    return { method, path: objectPath(path), query: applied, contentType: applyPatchType, body }
  }
  const patch = mergePatchBetween(current, mergeApplied(path.resource.schema, body, current)) ?? {}
  return { method, path: objectPath(path), query, contentType: 'application/merge-patch+json', body: patch }
}

/** A user who may not write, a server without dry runs and a webhook without them say nothing about the object. */
function isRefusal({ status, answer: { explanation = '' } }: ApiError): boolean {
  if (/ cannot (create|patch|update) resource /.test(explanation) || /dry ?run/i.test(explanation)) return false
  return [400, 403, 404, 409, 413, 422].includes(status)
}

/** Reads what the API server says about an object that it refuses. */
export function readRefusal({ answer, message }: ApiError): ApiRefusal {
  const causes = (answer.causes ?? []).filter(isObject) as readonly unknown[] as readonly StatusCause[]
  return { message: answer.explanation ?? message, causes }
}
