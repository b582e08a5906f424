// Computes the inputs before and after a change of manifests: the in-memory API server that holds them applies or deletes the objects.

import { manifestManager } from '../../apiserver/manifests/applier.ts'
import { apiVersionOf, resources, type ServedResource } from '../../apiserver/schema/served-resources.ts'
import type { Inputs } from '../../http/admin.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Flags } from '../command.ts'
import type { ApiRequester } from '../sources/from-api.ts'
import { readAroundChange } from '../sources/source.ts'
import { keyOf, type ManifestJson, selectKinds } from './change-file.ts'
import type { PlannedChange } from './from-records.ts'
import { placeholderRemarks } from './placeholders.ts'

/** In the order in which objects are applied; deleting goes the other way. */
const kinds = ['Namespace', 'Service', 'EndpointSlice', 'Pod'] as const

/** Throws a ProxyError 'manifests' that names the object that the API server refuses. */
export async function planManifests(
  flags: Flags,
  all: readonly unknown[],
  isDelete: boolean,
): Promise<PlannedChange & { readonly inputs: Inputs }> {
  const { objects, remarks } = selectKinds(all, kinds)
  const ordered = [...objects].sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind))
  const { before, after } = await readAroundChange(flags, async (api) => {
    for (const { kind, json } of isDelete ? ordered.toReversed() : ordered) {
      await changeObject(api, { kind, json, isDelete })
    }
  })
  const find = ({ services }: Inputs, key: string) => services.find((record) => record.key === key)
  const placeholders = ordered.flatMap(({ kind, json }) =>
    kind === 'Service' ? placeholderRemarks(json, find(before, keyOf(json)), find(after, keyOf(json))) : [],
  )
  return { inputs: before, after, remarks: [...remarks, ...placeholders] }
}

interface ObjectChange {
  readonly kind: (typeof kinds)[number]
  readonly json: ManifestJson
  readonly isDelete: boolean
}

async function changeObject(api: ApiRequester, { kind, json, isDelete }: ObjectChange): Promise<void> {
  const resource = resources.find((one) => one.kind === kind) as ServedResource
  try {
    await (isDelete ? deleteObject(api, resource, json) : applyObject(api, resource, json))
  } catch (error) {
    throw new ProxyError('manifests', `${kind} ${keyOf(json)}: ${describeError(error)}`, { cause: error })
  }
}

function pathOf(resource: ServedResource, json: ManifestJson): string {
  const [namespace = '', name = ''] = keyOf(json).split('/')
  const root = resource.group === '' ? '/api/v1' : `/apis/${apiVersionOf(resource)}`
  return `${root}${resource.namespaced ? `/namespaces/${namespace}` : ''}/${resource.plural}/${encodeURIComponent(name)}`
}

/** Applies as the field manager of the manifests: the API server removes fields that the new text no longer has. */
async function applyObject(api: ApiRequester, resource: ServedResource, json: ManifestJson): Promise<void> {
  const paths = [pathOf(resource, json)]
  if (resource.kind === 'Service' && json.status !== undefined) paths.push(`${pathOf(resource, json)}/status`)
  for (const path of paths)
    await api.request({
      method: 'PATCH',
      path,
      query: { fieldManager: manifestManager, force: 'true' },
      contentType: 'application/apply-patch+yaml',
      body: { apiVersion: apiVersionOf(resource), ...json },
    })
}

async function deleteObject(api: ApiRequester, resource: ServedResource, json: ManifestJson): Promise<void> {
  try {
    await api.request({ method: 'DELETE', path: pathOf(resource, json), query: { gracePeriodSeconds: '0' } })
  } catch (error) {
    if (!(error instanceof ProxyError) || error.code !== 'not-found') throw error
  }
}
