// Reads objects from the API server for the commands, with the rights that a proxy has: it may list services, not get one.

import { describeError, ProxyError } from '../lib/errors.ts'
import { silentLogger } from '../lib/log.ts'
import type { Client } from './client.ts'
import { asObject } from './decode/fields.ts'
import { PageReader } from './reflect/page-reader.ts'
import type { ListPage } from './reflect/watch-messages.ts'

/** The part of an API client that the commands use. */
export type ApiRequester = Pick<Client, 'request'>

/** Names an object: the plural of its resource, its namespace ('' for a namespace itself) and its name. */
interface ObjectName {
  readonly resource: string
  readonly namespace: string
  readonly name: string
}

/** The object, undefined if there is none; or why the API server could not be asked. */
interface FoundObject {
  readonly object?: unknown
  readonly unknown?: string
}

/** The paths of the collections that commands read through a proxy. A proxy in a cluster may not list pods. */
const collections: Readonly<Record<string, (namespace: string) => string>> = {
  services: (namespace) => `/api/v1/namespaces/${encodeURIComponent(namespace)}/services`,
  endpointslices: (namespace) => `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/endpointslices`,
  namespaces: () => '/api/v1/namespaces',
  pods: (namespace) => `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`,
}

export async function readObject(
  client: ApiRequester,
  { resource, namespace, name }: ObjectName,
): Promise<FoundObject> {
  const collection = Object.hasOwn(collections, resource) ? collections[resource] : undefined
  if (collection === undefined) throw new ProxyError('question', `the proxy does not read ${resource}`)
  try {
    const query = { fieldSelector: `metadata.name=${name}`, limit: '2' }
    const signal = AbortSignal.timeout(10_000)
    const { json } = await client.request({ path: collection(namespace), query, signal })
    const items = asObject(json)?.items
    return { object: Array.isArray(items) ? items[0] : undefined }
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return { unknown: describeError(error) }
  }
}

/** Lists the objects of a collection. */
export async function listObjects(
  api: ApiRequester,
  path: string,
  query: Readonly<Record<string, string | undefined>>,
): Promise<readonly unknown[]> {
  const reader = new PageReader({ client: api, resource: path, kind: path, log: silentLogger })
  const signal = AbortSignal.timeout(60_000)
  const objects: unknown[] = []
  let page: ListPage | undefined
  do {
    page = await reader.read(query, page?.next, signal)
    for (const item of page.items) objects.push(item)
  } while (page.next !== undefined)
  return objects
}

/** Returns `namespace/name` of the services that match the selector. Throws if the API server does not understand it. */
export async function selectServices(api: ApiRequester, labelSelector: string): Promise<readonly string[]> {
  const services = await listObjects(api, '/api/v1/services', { labelSelector })
  return services.flatMap((service) => {
    const { namespace, name } = asObject(asObject(service)?.metadata) ?? {}
    return typeof namespace === 'string' && typeof name === 'string' ? [`${namespace}/${name}`] : []
  })
}
