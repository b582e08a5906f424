// Expands the shorthand of scenario files to the JSON that an API server would send. README.md describes the shorthand.

import { canonicalIp, type Family, familyName, familyOf } from '../../src/lib/ip.ts'
import type { Manifest } from './format.ts'
import type { Json } from './twins.ts'

type Fields = Record<string, Json>

/** The nodes that the words `local` and `remote` of endpoints stand for. */
export const nodeName = 'node-a'
const remoteNodeName = 'node-b'

/**
 * Services get a creation time in the order of their first appearance, unless the file says `created`. `family` is the family of slices
 * without endpoints.
 */
export function expandObject(value: Json, serial: number, family: Family): Manifest {
  const fields = value as Fields
  if (typeof fields.kind === 'string') return value as unknown as Manifest
  if (typeof fields.service === 'string') return expandService(fields, serial)
  if (typeof fields.slice === 'string') return expandSlice(fields, serial, family)
  throw new Error(`${JSON.stringify(value)} is not a service, a slice or a manifest`)
}

function expandService(fields: Fields, serial: number): Manifest {
  const { service, ports, clusterIP, lb, affinity, created, labels, annotations, ...rest } = fields
  const [namespace, name] = splitKey(service)
  const clusterIps = list(clusterIP).map(String)
  const spec: Fields = { type: 'ClusterIP', internalTrafficPolicy: 'Cluster', ...rest }
  if (spec.type !== 'ExternalName') {
    spec.clusterIP = clusterIps[0] ?? 'None'
    spec.clusterIPs = clusterIps.length > 0 ? clusterIps : ['None']
    // An address with leading zeros still has a family; older API servers accepted such addresses.
    spec.ipFamilies = clusterIps.map((ip) => familyName(familyOf(canonicalIp(ip) ?? ip)))
    if (clusterIps.length > 1) spec.ipFamilyPolicy = 'RequireDualStack'
  }
  spec.ports = list(ports).map(expandServicePort)
  if (spec.type === 'NodePort' || spec.type === 'LoadBalancer') spec.externalTrafficPolicy ??= 'Cluster'
  if (affinity !== undefined) {
    spec.sessionAffinity = 'ClientIP'
    spec.sessionAffinityConfig = { clientIP: { timeoutSeconds: affinity } }
  } else spec.sessionAffinity = 'None'
  const ingress = list(lb).map((entry) => (typeof entry === 'string' ? { ip: entry, ipMode: 'VIP' } : entry))
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      ...metadata(namespace, name, created, serial),
      ...(labels === undefined ? {} : { labels }),
      ...(annotations === undefined ? {} : { annotations }),
    },
    spec,
    status: { loadBalancer: ingress.length > 0 ? { ingress } : {} },
  }
}

/** Expands `name port/protocol [nodePort]`; the name `_` is the unnamed port. */
function expandServicePort(value: Json): Json {
  if (typeof value !== 'string') return value
  const match = /^(\S+) (\d+)\/(tcp|udp|sctp)(?: (\d+))?$/.exec(value)
  if (match === null) throw new Error(`${value} is not a valid service port`)
  const [, name, port, protocol, nodePort] = match as unknown as [string, string, string, string, string?]
  return {
    ...(name === '_' ? {} : { name }),
    protocol: protocol.toUpperCase(),
    port: Number(port),
    targetPort: Number(port),
    ...(nodePort === undefined ? {} : { nodePort: Number(nodePort) }),
  }
}

/** The slice `ns/service` or `ns/service#suffix` is called `ns/service-suffix`. */
export const sliceKey = (text: string): string => text.replace(/#|$/, text.includes('#') ? '-' : '-slice')

function expandSlice(fields: Fields, serial: number, empty: Family): Manifest {
  const [namespace, name] = splitKey(sliceKey(String(fields.slice)))
  const service = splitKey(fields.slice)[1].split('#')[0] as string
  const endpoints = list(fields.endpoints).map(expandEndpoint)
  const first = (endpoints[0] as { addresses: string[] } | undefined)?.addresses[0]
  const family = first === undefined ? empty : familyOf(canonicalIp(first) ?? first)
  const base = metadata(namespace, name, undefined, serial)
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      ...base,
      labels: { 'kubernetes.io/service-name': service, ...((fields.labels as Fields) ?? {}) },
      ...(fields.annotations === undefined ? {} : { annotations: fields.annotations }),
    },
    addressType: fields.addressType ?? (family === 6 ? 'IPv6' : 'IPv4'),
    ports: list(fields.ports).map(expandSlicePort),
    endpoints,
  }
}

function expandSlicePort(value: Json): Json {
  if (typeof value !== 'string') return value
  const match = /^(\S+) (\d+)\/(tcp|udp|sctp)$/.exec(value)
  if (match === null) throw new Error(`${value} is not a valid slice port`)
  const [, name, port, protocol] = match as unknown as [string, string, string, string]
  return { name: name === '_' ? '' : name, protocol: protocol.toUpperCase(), port: Number(port) }
}

const conditions: Readonly<Record<string, Json>> = {
  terminating: { ready: false, serving: true, terminating: true },
  stopped: { ready: false, serving: false, terminating: true },
  unready: { ready: false, serving: false, terminating: false },
  published: { ready: true, serving: true, terminating: true },
  unknown: {},
}

/** Expands `address word…` with the words local, remote, node=NAME, a condition, for-zone=A,B, for-node=A,B. */
function expandEndpoint(value: Json): Fields {
  if (typeof value !== 'string') return value as Fields
  const [address, ...words] = value.split(' ') as [string, ...string[]]
  const endpoint: Fields = { addresses: [address], conditions: { ready: true, serving: true, terminating: false } }
  const hints: Fields = {}
  for (const word of words) {
    const [key, names] = word.split('=') as [string, string?]
    const refs = () => (names ?? '').split(',').map((name) => ({ name }))
    if (key === 'local') endpoint.nodeName = nodeName
    else if (key === 'remote') endpoint.nodeName = remoteNodeName
    else if (key === 'node' && names !== undefined) endpoint.nodeName = names
    else if (key === 'for-zone') hints.forZones = refs()
    else if (key === 'for-node') hints.forNodes = refs()
    else if (conditions[key] !== undefined) endpoint.conditions = conditions[key] as Json
    else throw new Error(`unknown word ${word} in endpoint ${value}`)
  }
  if (Object.keys(hints).length > 0) endpoint.hints = hints
  return endpoint
}

function metadata(namespace: string, name: string, created: Json | undefined, serial: number): Manifest['metadata'] {
  const creationTimestamp =
    created === undefined
      ? new Date(Date.UTC(2026, 0, 1) + serial * 1000).toISOString().replace('.000', '')
      : String(created)
  return { namespace, name, uid: `uid-${namespace}-${name}`, resourceVersion: String(serial + 1), creationTimestamp }
}

function splitKey(value: Json | undefined): [string, string] {
  const parts = String(value).split('/')
  if (parts.length !== 2) throw new Error(`${value} is not a valid namespace/name`)
  return parts as [string, string]
}

function list(value: Json | undefined): readonly Json[] {
  if (value === undefined || value === null) return []
  return Array.isArray(value) ? value : [value]
}
