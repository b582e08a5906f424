// Chooses placeholders for the addresses and ports that an API server would allocate to a Service, and says which values are placeholders.

import type { Inputs } from '../../http/admin.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, type Family, formatIp, parseCidr, parseIp } from '../../lib/ip.ts'
import type { ServiceRecord } from '../../model/types.ts'
import type { ManifestJson } from './change-file.ts'

/** Returns the last free address among the first 256 of the service range. */
export function placeholderIp({ views }: Inputs, family: Family, services: Iterable<ServiceRecord>): string {
  const view = views.find((one) => one.family === family)
  const range = parseCidr(view?.serviceCidrs[0] ?? (family === 6 ? 'fd00:10:96::/112' : '10.96.0.0/16'))
  const bytes = range === undefined ? undefined : parseIp(range.ip)
  if (range === undefined || bytes === undefined) {
    throw new ProxyError('manifests', 'the service range is not known: give spec.clusterIP')
  }
  const used = new Set([...services].flatMap(({ clusterIps }) => clusterIps))
  const last = bytes.length - 1
  const hostMask = (1 << Math.min(8, bytes.length * 8 - range.bits)) - 1
  for (let host = hostMask - 1; host >= 0; host--) {
    const ip = formatIp(bytes.with(last, ((bytes[last] ?? 0) & ~hostMask) | host))
    if (!used.has(ip)) return ip
  }
  throw new ProxyError('manifests', 'there is no free address as a placeholder for the cluster IP: give spec.clusterIP')
}

/** Returns the last free port of the default node port range. */
export function placeholderPort(used: ReadonlySet<number>): number {
  let port = 32_767
  while (used.has(port)) port--
  return port
}

export const usedPorts = (services: Iterable<ServiceRecord>): Set<number> =>
  new Set(
    [...services].flatMap(({ ports, healthCheckNodePort }) => [
      healthCheckNodePort,
      ...ports.map(({ nodePort }) => nodePort),
    ]),
  )

/** Reports the values that neither the manifest asks for nor the service had before: a real API server may choose others. */
export function placeholderRemarks(
  json: ManifestJson,
  before: ServiceRecord | undefined,
  after: ServiceRecord | undefined,
): readonly string[] {
  if (after === undefined) return []
  const spec = (json.spec ?? {}) as ManifestJson
  const knownIps = [...clusterIpsOf(spec), ...(before?.clusterIps ?? [])]
  const knownPorts = [...portsOf(spec), ...(before?.ports ?? [])].map(({ nodePort }) => nodePort)
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
export const clusterIpsOf = ({ clusterIP, clusterIPs }: ManifestJson): readonly string[] =>
  (Array.isArray(clusterIPs) ? clusterIPs : [clusterIP]).flatMap((ip) => canonicalIp(String(ip)) ?? [])

export const portsOf = (spec: ManifestJson): readonly ManifestJson[] => (spec.ports ?? []) as readonly ManifestJson[]
