// Computes the inputs before and after a change of manifests: the in-memory API server that holds them applies or deletes the objects.

import { manifestManager } from '../../apiserver/manifests/applier.ts'
import { applyPatchType } from '../../apiserver/requests/patch-types.ts'
import type { ObjectPath } from '../../apiserver/requests/writes.ts'
import { apiVersionOf } from '../../apiserver/schema/served-resources.ts'
import type { Inputs } from '../../http/admin.ts'
import type { ApiRequester } from '../../kube/api-objects.ts'
import { ApiError } from '../../lib/errors.ts'
import type { Flags } from '../command.ts'
import { readAroundChange } from '../sources/source.ts'
import { pathOf } from './admission-trial.ts'
import { describeRefusal, keyOf, type LocatedManifest, refuse } from './change-files.ts'
import type { PlannedChange } from './from-cluster.ts'
import { placeholderRemarks } from './placeholders.ts'
import { objectPath, readRefusal } from './server-dry-run.ts'

/** The kinds in the order in which objects are applied; deleting goes the other way. */
export const manifestKinds = ['Namespace', 'Service', 'EndpointSlice', 'Pod']

/** Throws a ProxyError 'manifests' with one line for each field that the API server refuses. */
export async function planManifests(
  flags: Flags,
  objects: readonly LocatedManifest[],
  isDelete: boolean,
): Promise<PlannedChange & { readonly inputs: Inputs }> {
  const { before, after } = await readAroundChange(flags, async (api) => {
    const refusals: string[] = []
    for (const located of isDelete ? objects.toReversed() : objects) {
      refusals.push(...(await changeObject(api, located, isDelete)))
    }
    if (refusals.length > 0) throw refuse(refusals)
  })
  const find = ({ services }: Inputs, key: string) => services.find((record) => record.key === key)
  const remarks = objects
    .filter(({ manifest }) => manifest.resource.kind === 'Service')
    .flatMap(({ manifest }) => {
      const key = keyOf(manifest)
      return placeholderRemarks(manifest.body, find(before, key), find(after, key))
    })
  return { inputs: before, after, remarks }
}

/** Returns what the API server says against the change. */
async function changeObject(
  api: ApiRequester,
  located: LocatedManifest,
  isDelete: boolean,
): Promise<readonly string[]> {
  const { resource, namespace, name } = located.manifest
  const path = pathOf(resource, namespace, name)
  try {
    await (isDelete ? deleteObject(api, path) : applyObject(api, path, located))
    return []
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    return describeRefusal(located, readRefusal(error))
  }
}

/** Applies as the field manager of the manifests: the API server removes fields that the new text no longer has. */
async function applyObject(api: ApiRequester, path: ObjectPath, { manifest }: LocatedManifest): Promise<void> {
  const { resource, body } = manifest
  const paths = [objectPath(path)]
  if (resource.kind === 'Service' && body.status !== undefined) paths.push(`${objectPath(path)}/status`)
  for (const each of paths)
    await api.request({
      method: 'PATCH',
      path: each,
      query: { fieldManager: manifestManager, force: 'true' },
      contentType: applyPatchType,
      body: { apiVersion: apiVersionOf(resource), ...body },
    })
}

async function deleteObject(api: ApiRequester, path: ObjectPath): Promise<void> {
  try {
    await api.request({ method: 'DELETE', path: objectPath(path), query: { gracePeriodSeconds: '0' } })
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== 'not-found') throw error
  }
}
