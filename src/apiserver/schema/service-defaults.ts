// The questions that a service's spec answers, and the defaults that the server fills in. Pure.

import { ensureObject, getMutableObjects, getObject, getString, isObject, type Json, type MutableJson } from './json.ts'

/** True if clients outside the cluster can reach the service through node ports. */
export const isExternal = (spec: Json): boolean => spec.type === 'NodePort' || spec.type === 'LoadBalancer'
export const hasClusterIp = (spec: Json): boolean => spec.type !== 'ExternalName'
export const isHeadless = (spec: Json): boolean => getString(spec, 'clusterIP') === 'None'
export const hasSelector = (spec: Json): boolean => Object.keys(getObject(spec, 'selector')).length > 0
export const needsHealthPort = (spec: Json): boolean =>
  spec.type === 'LoadBalancer' && spec.externalTrafficPolicy === 'Local'
export const needsNodePorts = (spec: Json): boolean =>
  spec.type === 'NodePort' || (spec.type === 'LoadBalancer' && spec.allocateLoadBalancerNodePorts !== false)

const affinitySeconds = 10_800

export function setServiceDefaults(service: MutableJson): void {
  const spec = ensureObject(service, 'spec')
  spec.type ??= 'ClusterIP'
  setAffinityDefaults(spec)
  for (const port of getMutableObjects(spec, 'ports')) {
    port.protocol ??= 'TCP'
    if (port.targetPort === undefined || port.targetPort === 0 || port.targetPort === '')
      port.targetPort = port.port ?? 0
  }
  if (hasClusterIp(spec)) spec.internalTrafficPolicy ??= 'Cluster'
  if (isExternal(spec)) spec.externalTrafficPolicy ??= 'Cluster'
  if (spec.type === 'LoadBalancer') spec.allocateLoadBalancerNodePorts ??= true
  service.status = { ...getObject(service, 'status'), loadBalancer: loadBalancerStatus(service) }
}

function setAffinityDefaults(spec: MutableJson): void {
  spec.sessionAffinity ??= 'None'
  if (spec.sessionAffinity === 'None') delete spec.sessionAffinityConfig
  if (spec.sessionAffinity === 'ClientIP') {
    const config = getObject(getObject(spec, 'sessionAffinityConfig'), 'clientIP')
    spec.sessionAffinityConfig = { clientIP: { timeoutSeconds: config.timeoutSeconds ?? affinitySeconds } }
  }
}

/** The load balancer's addresses, with the default mode for those that have none. */
function loadBalancerStatus(service: Json): Json {
  const balancer = getObject(getObject(service, 'status'), 'loadBalancer')
  if (getObject(service, 'spec').type !== 'LoadBalancer' || !Array.isArray(balancer.ingress)) return { ...balancer }
  const needsMode = (entry: unknown): entry is Json =>
    isObject(entry) && getString(entry, 'ip') !== '' && entry.ipMode === undefined
  const ingress = balancer.ingress.map((entry: unknown) => (needsMode(entry) ? { ...entry, ipMode: 'VIP' } : entry))
  return { ...balancer, ingress }
}
