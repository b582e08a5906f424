// Reads Services and EndpointSlices for the reference drivers. It shares no code with src/model, so that the two can disagree.

import { canonicalIp, contains, type Family, familyOf, parseCidr } from '../../src/lib/ip.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'

/** Scenarios in which we are stricter than kube-proxy: see docs/security.md. */
export const takenByKubeProxy = ['api-server', 'api-server-in-service-cidr', 'own-listeners', 'pod-of-another']

/** Scenarios of what kube-proxy does not have: see docs/health.md. */
export const unknownToKubeProxy = ['weights', 'weights-sticky', 'weights-local', 'round-robin', 'consistent-hash']

export interface ReferenceEndpoint {
  readonly ip: string
  readonly port: number
  readonly local: boolean
}

export interface ReferencePort {
  /** `ns/name/tcp/portName`, from which chain names are made. */
  readonly base: string
  readonly protocol: string
  readonly port: number
  readonly clusterIp: string
  /** The frontends that no older service has. */
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

/** Returns all service ports of a family. If two services want one address, the older one gets it. */
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
    return readService(service, own as unknown as Slice[], { node, family, taken })
  })
}

const ageKey = ({ metadata }: Manifest): string =>
  `${metadata.creationTimestamp} ${metadata.namespace}/${metadata.name}`

interface Reading {
  readonly node: NodeSettings
  readonly family: Family
  /** Frontends of the services that were read before; `readService` adds its own. */
  readonly taken: Set<string>
}

function readService(service: Manifest, slices: Slice[], reading: Reading): ReferencePort[] {
  const spec = service.spec as Spec
  const addresses = readAddresses(service, reading)
  const { clusterIp } = addresses
  if (clusterIp === undefined || spec.type === 'ExternalName') return []
  const { namespace, name } = service.metadata
  return (spec.ports ?? []).map((port): ReferencePort => {
    const protocol = port.protocol.toLowerCase()
    const nodePort = port.nodePort ?? 0
    const { externalIps, lbIps } = addresses
    const wanted = [clusterIp, ...externalIps, ...lbIps].map((ip) => `${ip} ${protocol} ${port.port}`)
    if (nodePort !== 0) wanted.push(`node ${protocol} ${nodePort}`)
    const frontends = new Set(wanted.filter((key) => !reading.taken.has(key)))
    for (const key of wanted) reading.taken.add(key)
    const exposed = nodePort !== 0 || lbIps.length > 0 || addresses.hasExternalIps
    const policies = readPolicies(spec, exposed)
    return {
      base: `${namespace}/${name}/${protocol}/${port.name ?? ''}`,
      protocol,
      port: port.port,
      clusterIp,
      frontends,
      externalIps,
      lbIps,
      nodePort,
      ranges: addresses.ranges,
      affinity: readAffinity(spec),
      exposed,
      internalLocal: policies.internalLocal,
      externalLocal: policies.externalLocal,
      ...chooseEndpoints(candidatesOf(slices, port.name ?? '', port.protocol, reading.node), policies, reading.node),
    }
  })
}

function readAddresses(service: Manifest, { node, family }: Reading) {
  const spec = service.spec as Spec
  const status = service.status as { loadBalancer: { ingress?: { ip?: string; ipMode?: string }[] } }
  const ofFamily = (texts: readonly string[]) =>
    texts.flatMap((text) => canonicalIp(text) ?? []).filter((ip) => familyOf(ip) === family)
  const externalIps = ofFamily(spec.externalIPs ?? [])
  const vips = (status.loadBalancer.ingress ?? []).filter(({ ip, ipMode }) => ip !== undefined && ipMode !== 'Proxy')
  const ranges = (spec.loadBalancerSourceRanges ?? [])
    .flatMap((text) => parseCidr(text.trim()) ?? [])
    .filter((range) => range.family === family)
  return {
    clusterIp: ofFamily(spec.clusterIPs ?? [])[0],
    hasExternalIps: externalIps.length > 0,
    externalIps: node.externalIPs ? externalIps : [],
    lbIps: ofFamily(vips.map(({ ip }) => ip as string)),
    ranges: ranges.some(({ bits }) => bits === 0) ? [] : ranges.map(({ text }) => text),
  }
}

interface Policies {
  readonly internalLocal: boolean
  readonly externalLocal: boolean
  readonly usesCluster: boolean
  readonly usesLocal: boolean
}

function readPolicies(spec: Spec, exposed: boolean): Policies {
  const mayBeExternal = spec.type === 'NodePort' || spec.type === 'LoadBalancer' || (spec.externalIPs ?? []).length > 0
  const internalLocal = spec.internalTrafficPolicy === 'Local'
  const externalLocal = mayBeExternal && spec.externalTrafficPolicy === 'Local'
  return {
    internalLocal,
    externalLocal,
    usesCluster: !internalLocal || exposed,
    usesLocal: internalLocal || (externalLocal && exposed),
  }
}

const readAffinity = (spec: Spec): number =>
  spec.sessionAffinity === 'ClientIP' ? (spec.sessionAffinityConfig?.clientIP.timeoutSeconds ?? 10800) : 0

function chooseEndpoints(candidates: Candidate[], { usesCluster, usesLocal }: Policies, node: NodeSettings) {
  const cluster = usesCluster ? clusterEndpoints(candidates, node) : []
  const anyServes = candidates.some((one) => one.ready || (one.serving && one.terminating))
  return {
    hasEndpoints: cluster.length > 0 || (usesLocal && anyServes),
    cluster,
    local: usesLocal ? localEndpoints(candidates) : [],
  }
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

/** Returns the addresses on which node ports are served; undefined if on all. */
export function nodePortIps(node: NodeSettings, family: Family, addresses: readonly string[]): string[] | undefined {
  const cidrs = node.nodePortAddresses.flatMap((text) => parseCidr(text) ?? []).filter((one) => one.family === family)
  if (cidrs.length === 0 || cidrs.some(({ bits }) => bits === 0)) return undefined
  return addresses.filter((ip) => !/^(127\.|::1$)/.test(ip) && cidrs.some((cidr) => contains(cidr, ip)))
}
