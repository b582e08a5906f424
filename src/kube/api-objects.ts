// Reads single objects from the API server for `sluice plan`, with the rights that a proxy has: it may list services, not get one.

import { describeError, ProxyError } from '../lib/errors.ts'
import type { Client } from './client.ts'
import { asObject } from './reflect/fields.ts'

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

/** The paths of the collections that a plan reads. */
const collections: Readonly<Record<string, (namespace: string) => string>> = {
  services: (namespace) => `/api/v1/namespaces/${encodeURIComponent(namespace)}/services`,
  endpointslices: (namespace) => `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/endpointslices`,
  namespaces: () => '/api/v1/namespaces',
}

export async function readObject(
  client: Pick<Client, 'request'>,
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
