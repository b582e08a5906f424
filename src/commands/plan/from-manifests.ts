// What files would say after a change: the API server that reads them is made to take the change, pods and all.

import { manifestManager } from '../../apiserver/manifests/folder.ts'
import { apiVersionOf, resources, type ServedResource } from '../../apiserver/schema/served-resources.ts'
import type { Inputs } from '../../http/admin.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { aroundChange, type Requester } from '../sources/source.ts'
import { choose, keyOf, type ManifestJson, type PlannedChange, standInRemarks } from './from-records.ts'

/** In this order they are applied. */
const kinds = ['Namespace', 'Service', 'EndpointSlice', 'Pod'] as const

/** Throws a ProxyError 'manifests' that names the object which the API server refuses. */
export async function planManifests(
  flags: ReadonlyMap<string, string>,
  objects: readonly unknown[],
  remove: boolean,
): Promise<PlannedChange & { readonly inputs: Inputs }> {
  const { wishes, remarks } = choose(objects, kinds)
  const ordered = [...wishes].sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind))
  const { before, after } = await aroundChange(flags, async (api) => {
    for (const { kind, json } of remove ? ordered.reverse() : ordered) {
      const resource = resources.find((one) => one.kind === kind) as ServedResource
      await (remove ? drop(api, resource, json) : put(api, resource, json)).catch((error: unknown) => {
        throw new ProxyError('manifests', `${kind} ${keyOf(json)}: ${describeError(error)}`, { cause: error })
      })
    }
  })
  const find = ({ services }: Inputs, key: string) => services.find((record) => record.key === key)
  const stoodIn = ordered.flatMap(({ kind, json }) =>
    kind === 'Service' ? standInRemarks(json, find(before, keyOf(json)), find(after, keyOf(json))) : [],
  )
  return { inputs: before, after, remarks: [...remarks, ...stoodIn] }
}

function pathOf(resource: ServedResource, json: ManifestJson): string {
  const [namespace, name] = keyOf(json).split('/') as [string, string]
  const root = resource.group === '' ? '/api/v1' : `/apis/${apiVersionOf(resource)}`
  return `${root}${resource.namespaced ? `/namespaces/${namespace}` : ''}/${resource.plural}/${encodeURIComponent(name)}`
}

/** As the manager of the files: what the new text no longer has goes away. */
async function put(api: Requester, resource: ServedResource, json: ManifestJson): Promise<void> {
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

async function drop(api: Requester, resource: ServedResource, json: ManifestJson): Promise<void> {
  try {
    await api.request({ method: 'DELETE', path: pathOf(resource, json), query: { gracePeriodSeconds: '0' } })
  } catch (error) {
    if (!(error instanceof ProxyError) || error.code !== 'not-found') throw error
  }
}
