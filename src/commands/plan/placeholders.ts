// Finds the addresses and ports that an API server would allocate to a Service: in a plan they are placeholders. Pure.

import {
  getObject,
  getObjects,
  getString,
  getStrings,
  type Json,
  type MutableJson,
} from '../../apiserver/schema/json.ts'
import { canonicalIp } from '../../lib/ip.ts'
import type { ServiceRecord } from '../../model/types.ts'

/**
 * Returns the object without the addresses and ports that neither the file asks for nor the present object has: a dry run allocates
 * others each time, and may give one value to two objects.
 */
export function forgetAllocated(object: Json, file: Json, current: Json | undefined): Json {
  const spec: MutableJson = { ...getObject(object, 'spec') }
  const specs = [getObject(file, 'spec'), getObject(current, 'spec')]
  const knownIps = new Set(specs.flatMap((each) => [getString(each, 'clusterIP'), ...getStrings(each, 'clusterIPs')]))
  const ips = getStrings(spec, 'clusterIPs').filter((ip) => knownIps.has(ip))
  if (ips.length < getStrings(spec, 'clusterIPs').length) {
    spec.clusterIPs = ips
    if (ips.length === 0) delete spec.clusterIP
  }
  const knownPorts = new Set(specs.flatMap((each) => getObjects(each, 'ports').map(({ nodePort }) => nodePort)))
  spec.ports = getObjects(spec, 'ports').map(({ nodePort, ...port }) =>
    nodePort === undefined || !knownPorts.has(nodePort) ? port : { ...port, nodePort },
  )
  const knownHealthPorts = specs.map(({ healthCheckNodePort }) => healthCheckNodePort)
  if (!knownHealthPorts.includes(spec.healthCheckNodePort)) delete spec.healthCheckNodePort
  return { ...object, spec }
}

/** Reports the values that neither the manifest asks for nor the service had before: a real API server may choose others. */
export function placeholderRemarks(
  json: Json,
  before: ServiceRecord | undefined,
  after: ServiceRecord | undefined,
): readonly string[] {
  if (after === undefined) return []
  const spec = getObject(json, 'spec')
  const knownIps = [...clusterIpsOf(spec), ...(before?.clusterIps ?? [])]
  const knownPorts = [...getObjects(spec, 'ports'), ...(before?.ports ?? [])].map(({ nodePort }) => nodePort)
  const knownHealthPorts = [0, spec.healthCheckNodePort, before?.healthCheckNodePort]
  const allocated = [
    ...after.clusterIps.filter((ip) => !knownIps.includes(ip)).map((ip) => ['cluster IP', ip]),
    ...after.ports
      .filter(({ nodePort }) => nodePort !== 0 && !knownPorts.includes(nodePort))
      .map(({ nodePort }) => ['node port', nodePort]),
    ...[after.healthCheckNodePort]
      .filter((port) => !knownHealthPorts.includes(port))
      .map((port) => ['health check port', port]),
  ]
  return allocated.map(
    ([kind, value]) => `${after.key}: the API server will allocate a ${kind}; ${value} is a placeholder`,
  )
}

/** Returns the cluster IPs that a manifest's spec asks for. */
const clusterIpsOf = ({ clusterIP, clusterIPs }: Json): readonly string[] =>
  (Array.isArray(clusterIPs) ? clusterIPs : [clusterIP]).flatMap((ip) => canonicalIp(String(ip)) ?? [])
