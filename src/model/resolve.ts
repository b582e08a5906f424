// Turns a service and its slices, as this node sees them in one family, into service ports with every policy decided. Pure.

import { applyWeights, categorise, countLocalReady, findCandidates, servingOf, slicesOf } from './endpoints.ts'
import { addressesOf, frontendsOf } from './frontends.ts'
import type { Disposition, NodeView, ServicePort, ServicePortRecord, ServiceRecord, SliceRecord } from './types.ts'

const none: readonly never[] = Object.freeze([])

/**
 * Resolves the family of the view, port by port while the caller iterates: a service may have thousands of ports. Slices of other services
 * and families are ignored; the order of slices does not matter.
 */
export function* resolvePorts(
  service: ServiceRecord,
  slices: readonly SliceRecord[],
  node: NodeView,
): Iterable<ServicePort> {
  const addresses = addressesOf(service, node)
  if (addresses === undefined) return
  const own = slicesOf(service.key, slices, node)
  const internalLocal = service.internalPolicy === 'Local'
  const externalLocal = service.externalPolicy === 'Local' && canBeExternal(service)
  const health = healthOf(service, own, node)

  const ports = distinct(service.ports)
  const candidatesOf = findCandidates(ports, own, node)

  for (const record of ports) {
    const { name: portName, protocol } = record
    const exposed = addresses.exposed || record.nodePort !== 0
    const candidates = applyWeights(candidatesOf(record), service.weights, service.capacityWeights)
    // Even if both policies are Local, this node and its pods reach external addresses under the Cluster policy.
    const uses = { cluster: !internalLocal || exposed, local: internalLocal || (externalLocal && exposed) }
    const { cluster, local, hasAny } = categorise(candidates, uses, node)
    const dispose = (policyLocal: boolean): Disposition => {
      if (!hasAny) return 'reject'
      if (!policyLocal) return 'cluster'
      return local.length > 0 ? 'local' : 'drop'
    }
    const name = portName === '' ? service.key : `${service.key}:${portName}`
    yield {
      id: `${name}/${protocol}`,
      service: service.key,
      name,
      portName,
      family: node.family,
      protocol,
      frontends: frontendsOf(addresses, record),
      internal: dispose(internalLocal),
      external: dispose(externalLocal && exposed),
      cluster,
      local,
      endpoints: candidates.length,
      serving: protocol === 'udp' ? servingOf(candidates) : none,
      affinitySeconds: service.affinitySeconds,
      nodeAllowed: addresses.nodeAllowed,
      health,
      ...(service.scheduler === undefined ? {} : { scheduler: service.scheduler }),
      ...(service.algorithm === undefined ? {} : { algorithm: service.algorithm }),
    }
  }
}

/** False for services without external addresses: there a left-over externalTrafficPolicy has no effect. */
const canBeExternal = (service: ServiceRecord): boolean =>
  service.type === 'LoadBalancer' || service.type === 'NodePort' || service.externalIps.length > 0

function healthOf(service: ServiceRecord, slices: readonly SliceRecord[], node: NodeView): ServicePort['health'] {
  const checked = service.type === 'LoadBalancer' && service.externalPolicy === 'Local'
  if (!checked || service.healthCheckNodePort === 0) return undefined
  return { port: service.healthCheckNodePort, localEndpoints: countLocalReady(slices, node) }
}

/**
 * Keeps the first of several ports with one name, or with one number and protocol. The API server admits no such ports, but two
 * service ports of one service must never claim the same address.
 */
function distinct(ports: readonly ServicePortRecord[]): readonly ServicePortRecord[] {
  if (ports.length < 2) return ports
  const seen = new Set<string>()
  return ports.filter(({ name, protocol, port, nodePort }) => {
    const claims = [`${protocol} name ${name}`, `${protocol} port ${port}`]
    if (nodePort !== 0) claims.push(`${protocol} node port ${nodePort}`)
    if (claims.some((claim) => seen.has(claim))) return false
    for (const claim of claims) seen.add(claim)
    return true
  })
}
