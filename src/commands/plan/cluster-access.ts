// Gives a plan access to the objects of a cluster: through its API server, or through a running proxy, which reads them with its own rights.

import type { ObjectPath } from '../../apiserver/requests/writes.ts'
import { isObject } from '../../apiserver/schema/json.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import type { ApiRequester } from '../../kube/api-objects.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Flags } from '../command.ts'
import { connectProxy, withApi } from '../sources/source.ts'
import type { ClusterAccess, PresentObject } from './from-cluster.ts'
import { objectPath, tryOnServer } from './server-dry-run.ts'

export async function withClusterAccess<T>(flags: Flags, use: (access: ClusterAccess) => Promise<T>): Promise<T> {
  const proxy = await connectProxy(flags)
  if (proxy !== undefined) return use({ read: (path) => readThroughProxy(proxy, path) })
  return withApi(flags, (api) =>
    use({ read: (path) => readFromServer(api, path), tryObject: (tried) => tryOnServer(api, tried) }),
  )
}

async function readFromServer(api: ApiRequester, path: ObjectPath): Promise<PresentObject> {
  try {
    const { json } = await api.request({ path: objectPath(path), signal: AbortSignal.timeout(30_000) })
    return { object: isObject(json) ? json : undefined }
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return error.code === 'not-found' ? { object: undefined } : { unknown: describeError(error) }
  }
}

async function readThroughProxy(proxy: AdminClient, { resource, namespace, name }: ObjectPath): Promise<PresentObject> {
  const answer = await proxy.object({ resource: resource.plural, namespace, name })
  if (answer.unknown !== undefined) return { unknown: answer.unknown }
  return { object: isObject(answer.object) ? answer.object : undefined }
}
