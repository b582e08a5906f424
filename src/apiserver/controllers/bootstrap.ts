// Creates the objects that every cluster has: namespaces, the default ServiceCIDR, and the service `kubernetes`, which comes back if a
// user deletes it.

import { familyName, familyOf, formatIp, isLoopback, isUnspecified, parseCidr, parseIp } from '../../lib/ip.ts'
import type { Clock } from '../../lib/time.ts'
import { orderFields } from '../requests/admission.ts'
import { defaultCidr } from '../requests/allocations.ts'
import { createIdentity } from '../requests/generate-name.ts'
import type { Json, MutableJson } from '../schema/json.ts'
import { getResource } from '../schema/served-resources.ts'
import type { Registry } from '../store/registry.ts'

const namespaceNames = ['default', 'kube-system', 'kube-public', 'kube-node-lease']

/** Creates the objects that do not exist yet. */
export function createClusterObjects(registry: Registry, cidrs: readonly string[], clock: Clock): void {
  for (const name of namespaceNames) {
    if (registry.find('namespaces', '', name) === undefined)
      putWithDefaults(registry, 'namespaces', { metadata: { name, ...createIdentity(clock) } })
  }
  if (registry.find('servicecidrs', '', defaultCidr) === undefined)
    putWithDefaults(registry, 'servicecidrs', {
      metadata: { name: defaultCidr, ...createIdentity(clock) },
      spec: { cidrs },
    })
}

function putWithDefaults(registry: Registry, plural: string, object: MutableJson): void {
  const resource = getResource(plural)
  resource.setDefaults(object)
  registry.put(plural, orderFields(resource, object))
}

export interface KubernetesServiceOptions {
  readonly registry: Registry
  readonly clock: Clock
  /** The first range of cluster IPs; the service has its first address. */
  readonly cidr: string
  /** The address and port at which pods reach the API server. */
  readonly address: string
  readonly port: number
}

/** Creates the service `kubernetes` now, and again whenever it is deleted. Returns a function that stops this. */
export function keepKubernetesService(options: KubernetesServiceOptions): () => void {
  let isStopped = false
  putKubernetesService(options)
  const unsubscribe = options.registry.subscribe('services', (changes) => {
    const isGone = changes.some(
      ({ namespace, name, next }) => namespace === 'default' && name === 'kubernetes' && next === undefined,
    )
    if (!isGone) return
    setImmediate(() => {
      if (!isStopped) putKubernetesService(options)
    })
  })
  return () => {
    isStopped = true
    unsubscribe()
  }
}

function putKubernetesService({ registry, clock, cidr, address, port }: KubernetesServiceOptions): void {
  const createMetadata = (labels: Json): Json => ({
    name: 'kubernetes',
    namespace: 'default',
    labels,
    ...createIdentity(clock),
  })
  const ip = firstAddress(cidr)
  if (registry.find('services', 'default', 'kubernetes') === undefined) {
    putWithDefaults(registry, 'services', {
      metadata: createMetadata({ component: 'apiserver', provider: 'kubernetes' }),
      spec: {
        type: 'ClusterIP',
        clusterIP: ip,
        clusterIPs: [ip],
        ipFamilies: [familyName(familyOf(ip))],
        ipFamilyPolicy: 'SingleStack',
        ports: [{ name: 'https', protocol: 'TCP', port: 443, targetPort: port }],
      },
    })
  }
  // A loopback address is useless as an endpoint; then the service has none.
  if (isLoopback(address) || isUnspecified(address)) return
  putWithDefaults(registry, 'endpointslices', {
    metadata: createMetadata({ 'kubernetes.io/service-name': 'kubernetes' }),
    addressType: familyName(familyOf(address)),
    endpoints: [{ addresses: [address], conditions: { ready: true } }],
    ports: [{ name: 'https', protocol: 'TCP', port }],
  })
}

function firstAddress(cidr: string): string {
  const bytes = Uint8Array.from(parseIp(parseCidr(cidr)?.ip ?? '') ?? [])
  const last = bytes.length - 1
  bytes[last] = (bytes[last] ?? 0) | 1
  return formatIp(bytes)
}
