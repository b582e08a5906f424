// The resources that clients often ask for and that this server does not have. Discovery lists them without verbs, so that kubectl sends
// its request and the user reads here why it cannot work, instead of "no matches for kind". Pure.

import { StatusError } from '../schema/api-status.ts'
import { findResource } from '../schema/served-resources.ts'

export interface UnservedResource {
  readonly group: string
  readonly version: string
  readonly plural: string
  readonly singular: string
  readonly kind: string
  readonly shortNames: readonly string[]
  readonly namespaced: boolean
  /** What to do instead. */
  readonly advice: string
}

const workload = 'apply pods or manifests'
const other = 'it keeps what a service proxy reads, such as services, endpointslices and pods'
const traffic = 'apply services'

const define = (
  [group, kind, ...shortNames]: readonly [group: string, kind: string, ...shortNames: string[]],
  advice: string,
  namespaced = true,
): UnservedResource => {
  const singular = kind.toLowerCase()
  const plural = singular.endsWith('ss') ? `${singular}es` : `${singular.replace(/y$/, 'ie')}s`
  return { group, version: 'v1', plural, singular, kind, shortNames, namespaced, advice }
}

export const unservedResources: readonly UnservedResource[] = [
  define(['apps', 'Deployment', 'deploy'], workload),
  define(['apps', 'ReplicaSet', 'rs'], workload),
  define(['apps', 'StatefulSet', 'sts'], workload),
  define(['apps', 'DaemonSet', 'ds'], workload),
  define(['batch', 'Job'], workload),
  define(['batch', 'CronJob', 'cj'], workload),
  define(['', 'ReplicationController', 'rc'], workload),
  define(['networking.k8s.io', 'Ingress', 'ing'], traffic),
  define(['networking.k8s.io', 'NetworkPolicy', 'netpol'], traffic),
  define(['', 'ConfigMap', 'cm'], other),
  define(['', 'Secret'], other),
  define(['', 'ServiceAccount', 'sa'], other),
  define(['', 'PersistentVolumeClaim', 'pvc'], other),
  define(['', 'PersistentVolume', 'pv'], other, false),
]

/** Why subresources of pods cannot be served. */
const recordSubresources = new Set([
  'attach',
  'binding',
  'ephemeralcontainers',
  'eviction',
  'exec',
  'log',
  'portforward',
  'proxy',
  'resize',
])

export const describeUnserved = ({ group, plural, advice }: UnservedResource): string =>
  `${group === '' ? plural : `${plural}.${group}`} are not served by this API server: ${advice}`

const notServed = (message: string): StatusError =>
  new StatusError({ code: 404, reason: 'NotFound', message, details: {} })

/** Returns the refusal for a path of a resource or subresource that is known and not served; undefined for any other path. */
export function findUnserved(parts: readonly string[]): StatusError | undefined {
  const [root, first = '', second = ''] = parts
  const isCore = root === 'api' && first === 'v1'
  if (!isCore && root !== 'apis') return undefined
  const [group, version, rest] = isCore ? ['', 'v1', parts.slice(2)] : [first, second, parts.slice(3)]
  const [plural = '', , subresource = ''] = rest[0] === 'namespaces' && rest.length > 2 ? rest.slice(2) : rest
  const unserved = unservedResources.find(
    (one) => one.group === group && one.version === version && one.plural === plural,
  )
  if (unserved !== undefined) return notServed(describeUnserved(unserved))
  const served = findResource(group, version, plural)
  const isRecord = served?.plural === 'pods' || served?.plural === 'nodes' || served?.plural === 'services'
  if (!isRecord || !recordSubresources.has(subresource)) return undefined
  const why = plural === 'pods' ? 'pods are records here, and no container runs' : 'connect to it yourself'
  return notServed(`${plural}/${subresource} is not served by this API server: ${why}`)
}
