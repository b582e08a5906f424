// Finds the names of pods by their addresses: those of endpoints in the EndpointSlices of a service, those of clients among all pods.

import { canonicalIp } from '../../lib/ip.ts'
import { type ApiRequester, listObjects } from '../api-objects.ts'
import { asObject } from '../decode/fields.ts'

/** Returns `namespace/name` by address for the endpoints of a service that are pods. */
export async function readEndpointPods(api: ApiRequester, service: string): Promise<ReadonlyMap<string, string>> {
  const [namespace = '', name = ''] = service.split('/')
  const path = `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/endpointslices`
  const slices = await listObjects(api, path, { labelSelector: `kubernetes.io/service-name=${name}` })
  const endpoints = slices.flatMap((slice) => listOf(asObject(slice)?.endpoints))
  return new Map(endpoints.flatMap((endpoint) => nameAddresses(asObject(endpoint), namespace)))
}

function nameAddresses(
  endpoint: Readonly<Record<string, unknown>> | undefined,
  namespace: string,
): readonly (readonly [ip: string, pod: string])[] {
  const pod = podOf(asObject(endpoint?.targetRef), namespace)
  if (pod === '') return []
  return listOf(endpoint?.addresses).flatMap((address) => {
    const ip = typeof address === 'string' ? canonicalIp(address) : undefined
    return ip === undefined ? [] : [[ip, pod] as const]
  })
}

/** Returns `namespace/name`; '' if no pod, or more than one, has the address: pods in the network of their node share one. */
export async function readPodAt(api: ApiRequester, ip: string): Promise<string> {
  const pods = await listObjects(api, '/api/v1/pods', { fieldSelector: `status.podIP=${ip}` })
  const { namespace, name } = asObject(asObject(pods[0])?.metadata) ?? {}
  const isNamed = typeof namespace === 'string' && typeof name === 'string'
  return pods.length === 1 && isNamed ? `${namespace}/${name}` : ''
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])

function podOf(reference: Readonly<Record<string, unknown>> | undefined, namespace: string): string {
  if (reference?.kind !== 'Pod' || typeof reference.name !== 'string') return ''
  return `${typeof reference.namespace === 'string' ? reference.namespace : namespace}/${reference.name}`
}
