// The reference's own reading of Services and EndpointSlices, made apart from src/ so that the two can disagree.

import { canonicalIp, contains, type Family, familyOf, parseCidr } from '../../src/lib/ip.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'

export interface ReferenceEndpoint {
  readonly ip: string
  readonly port: number
  readonly local: boolean
}

export interface ReferencePort {
  /** `ns/name/tcp/portName`: the base of chain names. */
  readonly base: string
  readonly protocol: string
  readonly port: number
  readonly clusterIp: string
  /** Those that no older service has. */
  readonly frontends: ReadonlySet<string>
  readonly externalIps: readonly string[]
  readonly lbIps: readonly string[]
  readonly nodePort: number
  readonly ranges: readonly string[]
  readonly affinity: number
  readonly internalLocal: boolean
  readonly externalLocal: boolean
  readonly exposed: boolean
  readonly hasEndpoints: boolean
  readonly cluster: readonly ReferenceEndpoint[]
  readonly local: readonly ReferenceEndpoint[]
}

interface Spec {
  type?: string
  clusterIP?: string
  clusterIPs?: string[]
  ports?: { name?: string; protocol: string; port: number; nodePort?: number }[]
  externalIPs?: string[]
  loadBalancerSourceRanges?: string[]
  externalTrafficPolicy?: string
  internalTrafficPolicy?: string
  sessionAffinity?: string
  sessionAffinityConfig?: { clientIP: { timeoutSeconds: number } }
}

interface Slice {
  addressType: string
  ports: { name?: string; protocol: string; port: number }[]
  endpoints: {
    addresses: string[]
    nodeName?: string
    conditions?: { ready?: boolean; serving?: boolean; terminating?: boolean }
    hints?: { forZones?: { name: string }[]; forNodes?: { name: string }[] }
  }[]
}

interface Candidate extends ReferenceEndpoint {
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
  readonly zones: readonly string[]
  readonly nodes: readonly string[]
}

const label = (manifest: Manifest, name: string): string | undefined =>
  (manifest.metadata.labels as Record<string, string> | undefined)?.[name]

/** All service ports of a family; of two that want one address the older service gets it. */
export function referencePorts(objects: readonly Manifest[], node: NodeSettings, family: Family): ReferencePort[] {
  const services = objects
    .filter(({ kind }) => kind === 'Service')
    .filter((service) => label(service, 'service.kubernetes.io/service-proxy-name') === undefined)
    .sort((a, b) => (ageKey(a) < ageKey(b) ? -1 : 1))
  const slices = objects
    .filter(({ kind }) => kind === 'EndpointSlice')
    .filter((slice) => label(slice, 'service.kubernetes.io/headless') === undefined)
  const taken = new Set<string>()
  return services.flatMap((service) => {
    const own = slices.filter(
      (slice) =>
        slice.metadata.namespace === service.metadata.namespace &&
        label(slice, 'kubernetes.io/service-name') === service.metadata.name &&
        slice.addressType === `IPv${family}`,
    )
    return readService(service, own as unknown as Slice[], node, family, taken)
  })
}

const ageKey = ({ metadata }: Manifest): string =>
  `${metadata.creationTimestamp} ${metadata.namespace}/${metadata.name}`

function readService(service: Manifest, slices: Slice[], node: NodeSettings, family: Family, taken: Set<string>) {
  const spec = service.spec as Spec
  const status = service.status as { loadBalancer: { ingress?: { ip?: string; ipMode?: string }[] } }
  const ofFamily = (texts: readonly string[]) =>
    texts.flatMap((text) => canonicalIp(text) ?? []).filter((ip) => familyOf(ip) === family)
  const [clusterIp] = ofFamily(spec.clusterIPs ?? [])
  if (clusterIp === undefined || spec.type === 'ExternalName') return []
  const externalIps = node.externalIPs ? ofFamily(spec.externalIPs ?? []) : []
  const vips = (status.loadBalancer.ingress ?? []).filter(({ ip, ipMode }) => ip !== undefined && ipMode !== 'Proxy')
  const lbIps = ofFamily(vips.map(({ ip }) => ip as string))
  const parsed = (spec.loadBalancerSourceRanges ?? [])
    .flatMap((text) => parseCidr(text.trim()) ?? [])
    .filter((range) => range.family === family)
  const ranges = parsed.some(({ bits }) => bits === 0) ? [] : parsed.map(({ text }) => text)
  const mayBeExternal = spec.type === 'NodePort' || spec.type === 'LoadBalancer' || (spec.externalIPs ?? []).length > 0
  const { namespace, name } = service.metadata
  return (spec.ports ?? []).map((port): ReferencePort => {
    const protocol = port.protocol.toLowerCase()
    const nodePort = port.nodePort ?? 0
    const wanted = [clusterIp, ...externalIps, ...lbIps].map((ip) => `${ip} ${protocol} ${port.port}`)
    if (nodePort !== 0) wanted.push(`node ${protocol} ${nodePort}`)
    const frontends = new Set(wanted.filter((key) => !taken.has(key)))
    for (const key of wanted) taken.add(key)
    const exposed = nodePort !== 0 || lbIps.length > 0 || ofFamily(spec.externalIPs ?? []).length > 0
    const internalLocal = spec.internalTrafficPolicy === 'Local'
    const externalLocal = mayBeExternal && spec.externalTrafficPolicy === 'Local'
    const candidates = candidatesOf(slices, port.name ?? '', port.protocol, node)
    const usesCluster = !internalLocal || exposed
    const usesLocal = internalLocal || (externalLocal && exposed)
    const cluster = usesCluster ? clusterEndpoints(candidates, node) : []
    const any = candidates.some((one) => one.ready || (one.serving && one.terminating))
    return {
      base: `${namespace}/${name}/${protocol}/${port.name ?? ''}`,
      protocol,
      port: port.port,
      clusterIp,
      frontends,
      externalIps,
      lbIps,
      nodePort,
      ranges,
      affinity:
        spec.sessionAffinity === 'ClientIP' ? (spec.sessionAffinityConfig?.clientIP.timeoutSeconds ?? 10800) : 0,
      internalLocal,
      externalLocal,
      exposed,
      hasEndpoints: cluster.length > 0 || (usesLocal && any),
      cluster,
      local: usesLocal ? localEndpoints(candidates) : [],
    }
  })
}

function candidatesOf(slices: Slice[], portName: string, protocol: string, node: NodeSettings): Candidate[] {
  const found = new Map<string, Candidate>()
  for (const slice of slices) {
    for (const port of slice.ports.filter((one) => (one.name ?? '') === portName && one.protocol === protocol)) {
      for (const { addresses, nodeName, conditions = {}, hints = {} } of slice.endpoints) {
        const ip = canonicalIp(addresses[0] ?? '') as string
        const candidate: Candidate = {
          ip,
          port: port.port,
          local: nodeName === node.name,
          ready: conditions.ready ?? true,
          serving: conditions.serving ?? true,
          terminating: conditions.terminating ?? false,
          zones: (hints.forZones ?? []).map((zone) => zone.name),
          nodes: (hints.forNodes ?? []).map((one) => one.name),
        }
        const key = `${ip} ${port.port}`
        if (!candidate.terminating || !found.has(key)) found.set(key, candidate)
      }
    }
  }
  return [...found.values()]
}

function clusterEndpoints(candidates: Candidate[], node: NodeSettings): Candidate[] {
  const ready = candidates.filter((one) => one.ready)
  if (ready.length === 0) return candidates.filter((one) => one.serving && one.terminating)
  const forNode = ready.filter((one) => one.nodes.includes(node.name))
  if (forNode.length > 0 && ready.every((one) => one.nodes.length > 0)) return forNode
  const forZone = ready.filter((one) => node.zone !== '' && one.zones.includes(node.zone))
  return forZone.length > 0 && ready.every((one) => one.zones.length > 0) ? forZone : ready
}

function localEndpoints(candidates: Candidate[]): Candidate[] {
  const ready = candidates.filter((one) => one.local && one.ready)
  return ready.length > 0 ? ready : candidates.filter((one) => one.local && one.serving && one.terminating)
}

/** undefined: all addresses. */
export function nodePortIps(node: NodeSettings, family: Family, addresses: readonly string[]): string[] | undefined {
  const cidrs = node.nodePortAddresses.flatMap((text) => parseCidr(text) ?? []).filter((one) => one.family === family)
  if (cidrs.length === 0 || cidrs.some(({ bits }) => bits === 0)) return undefined
  return addresses.filter((ip) => !/^(127\.|::1$)/.test(ip) && cidrs.some((cidr) => contains(cidr, ip)))
}
