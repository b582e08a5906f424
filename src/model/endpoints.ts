// Selects the endpoints that may serve a port: by port name, each address once, ready or draining, by topology, on this node. Pure.

import type {
  CapacityWeights,
  Endpoint,
  EndpointRecord,
  NodeView,
  Protocol,
  ServicePort,
  SlicePortRecord,
  SliceRecord,
} from './types.ts'
import { findCapacityWeight, findWeight, leaveOutWeightless, type WeightRules } from './weights.ts'

/** An endpoint under one port, with the conditions and hints that decide whether it is used. */
export interface Candidate {
  readonly record: EndpointRecord
  readonly endpoint: Endpoint
}

export interface Categories {
  readonly cluster: readonly Endpoint[]
  readonly local: readonly Endpoint[]
  /** True if there is a usable endpoint, perhaps only on other nodes. */
  readonly hasAny: boolean
}

const none: readonly never[] = Object.freeze([])

/** The slices of one service in one family, sorted by key: that order decides between contradicting slices. */
export function slicesOf(service: string, slices: readonly SliceRecord[], node: NodeView): readonly SliceRecord[] {
  const own = slices.filter((slice) => slice.family === node.family && slice.service === service)
  return own.length > 1 ? own.sort(byKey) : own
}

function byKey(a: SliceRecord, b: SliceRecord): number {
  if (a.key === b.key) return 0
  return a.key < b.key ? -1 : 1
}

/** A port of a slice: one of the places where the endpoints of a service port come from. */
interface EndpointSource {
  readonly slice: SliceRecord
  /** The port number. */
  readonly port: number
}

type PortName = Pick<SlicePortRecord, 'name' | 'protocol'>

/**
 * Every endpoint of a port, whatever its conditions, sorted by `ip:port` and each address once. `slices` as from `slicesOf`.
 * If an address occurs more than once (a reused pod IP, an endpoint that moves from one slice to another), the last record that
 * is not terminating counts, or else the first terminating one. Upstream visits slices in random order; we do not.
 */
export function candidatesOf(
  slices: readonly SliceRecord[],
  name: string,
  protocol: Protocol,
  node: NodeView,
): readonly Candidate[] {
  const found: Candidate[] = []
  for (const slice of slices) {
    for (const port of slice.ports) {
      if (port.name === name && port.protocol === protocol && port.port !== 0)
        addCandidates(found, slice, port.port, node)
    }
  }
  return mergeCandidates(found)
}

function mergeCandidates(found: Candidate[]): readonly Candidate[] {
  if (found.length < 2) return found
  found.sort((a, b) => compareEndpoints(a.endpoint, b.endpoint))
  return withoutDuplicates(found)
}

/** Up to this many ports, searching all ports of the slices is cheaper than making an index of them. */
const fewPorts = 8

/** Returns `candidatesOf` for the ports of one service. With many ports, all ports of the slices are read once and not once per port. */
export function findCandidates(
  ports: readonly PortName[],
  slices: readonly SliceRecord[],
  node: NodeView,
): (port: PortName) => readonly Candidate[] {
  if (ports.length <= fewPorts) return ({ name, protocol }) => candidatesOf(slices, name, protocol, node)
  const sources = new Map<string, EndpointSource[]>(ports.map((port) => [keyOf(port), []]))
  for (const slice of slices) {
    if (slice.endpoints.length === 0) continue
    for (const port of slice.ports) {
      if (port.port !== 0) sources.get(keyOf(port))?.push({ slice, port: port.port })
    }
  }
  return (port) => collectCandidates(sources.get(keyOf(port)) ?? none, node)
}

function collectCandidates(sources: readonly EndpointSource[], node: NodeView): readonly Candidate[] {
  const found: Candidate[] = []
  for (const { slice, port } of sources) addCandidates(found, slice, port, node)
  return mergeCandidates(found)
}

const keyOf = ({ name, protocol }: PortName): string => `${protocol}/${name}`

function addCandidates(found: Candidate[], slice: SliceRecord, port: number, node: NodeView): void {
  for (const record of slice.endpoints) {
    const local = record.node === node.name && node.name !== ''
    const endpoint = { ip: record.ip, port, local }
    found.push({ record, endpoint: slice.weight === undefined ? endpoint : { ...endpoint, weight: slice.weight } })
  }
}

/** Returns the candidates with the weights that the service gives them, or else their nodes; unchanged if neither gives any. */
export function applyWeights(
  candidates: readonly Candidate[],
  rules: WeightRules | undefined,
  capacity?: CapacityWeights,
): readonly Candidate[] {
  if (rules === undefined && capacity === undefined) return candidates
  return candidates.map(({ record, endpoint }) => {
    const weight = findWeight(rules, record, endpoint.weight)
    if (weight === undefined && capacity !== undefined) {
      return { record, endpoint: { ...endpoint, ...findCapacityWeight(capacity, record.node) } }
    }
    return {
      record,
      endpoint: (weight ?? 1) === (endpoint.weight ?? 1) ? endpoint : { ...endpoint, weight: weight ?? 1 },
    }
  })
}

/** Keeps one candidate per address. Equal addresses are neighbours, in the order of arrival. Changes the array, which the caller owns. */
function withoutDuplicates(sorted: Candidate[]): readonly Candidate[] {
  let kept = 0
  for (let i = 1; i < sorted.length; i++) {
    const last = sorted[kept] as Candidate
    const next = sorted[i] as Candidate
    if (last.endpoint.ip !== next.endpoint.ip || last.endpoint.port !== next.endpoint.port) sorted[++kept] = next
    else if (!next.record.terminating) sorted[kept] = next
  }
  sorted.length = kept + 1
  return sorted
}

/**
 * Compares as the strings `ip:port` and `[ip6]:port` compare bytewise, without making the strings (100,000 endpoints need two million
 * comparisons). If one address is a prefix of the other, `:` or `]` follows the shorter one: among the characters that may follow in
 * the longer one, only the digits a to f sort behind these.
 */
export function compareEndpoints(a: Endpoint, b: Endpoint): number {
  if (a.ip === b.ip) return comparePorts(a.port, b.port)
  if (a.ip.length < b.ip.length && b.ip.startsWith(a.ip)) return b.ip.charCodeAt(a.ip.length) < letter ? 1 : -1
  if (b.ip.length < a.ip.length && a.ip.startsWith(b.ip)) return a.ip.charCodeAt(b.ip.length) < letter ? -1 : 1
  return a.ip < b.ip ? -1 : 1
}

function comparePorts(a: number, b: number): number {
  if (a === b) return 0
  return String(a) < String(b) ? -1 : 1
}

const letter = 0x61

const isReady = (candidate: Candidate): boolean => candidate.record.ready

/** True if the endpoint terminates but still answers: it is used when no endpoint is ready. */
const isDraining = ({ record }: Candidate): boolean => record.serving && record.terminating

/** Selects what is usable under the policies that apply. `local` and `cluster` fall back to draining endpoints independently. */
export function categorise(
  candidates: readonly Candidate[],
  uses: { readonly cluster: boolean; readonly local: boolean },
  node: NodeView,
): Categories {
  if (candidates.length === 0) return { cluster: none, local: none, hasAny: false }
  let cluster: readonly Endpoint[] = none
  if (uses.cluster) {
    cluster = pick(candidates, isNearby(candidates, node))
    if (cluster.length === 0) cluster = pick(candidates, isDraining)
    cluster = leaveOutWeightless(cluster)
  }
  if (!uses.local) return { cluster, local: none, hasAny: cluster.length > 0 }
  let local = pick(candidates, (candidate) => candidate.endpoint.local && isReady(candidate))
  if (local.length === 0) local = pick(candidates, (candidate) => candidate.endpoint.local && isDraining(candidate))
  local = leaveOutWeightless(local)
  const hasAny = cluster.length > 0 || candidates.some((candidate) => isReady(candidate) || isDraining(candidate))
  return { cluster, local, hasAny }
}

/** The endpoints that a UDP flow may stay with. Endpoints that publishNotReadyAddresses makes ready are in use, serving or not. */
export const servingOf = (candidates: readonly Candidate[]): readonly Endpoint[] =>
  pick(candidates, ({ record }) => record.serving || record.ready)

export type Topology = 'same-node' | 'same-zone' | 'anywhere'

/** Hints of a kind count only if every ready endpoint has one and at least one is for this node. */
export function topologyOf(candidates: readonly Candidate[], node: NodeView): Topology {
  let everyNode = true
  let everyZone = true
  let someNode = false
  let someZone = false
  for (const { record } of candidates) {
    if (!record.ready) continue
    everyNode &&= record.nodeHints.length > 0
    everyZone &&= record.zoneHints.length > 0
    if (!everyNode && !everyZone) return 'anywhere'
    someNode ||= isHinted(record.nodeHints, node.name)
    someZone ||= isHinted(record.zoneHints, node.zone)
  }
  if (everyNode && someNode) return 'same-node'
  return everyZone && someZone ? 'same-zone' : 'anywhere'
}

/** False for a node without a name or zone: no hint is for it. */
const isHinted = (hints: readonly string[], own: string): boolean => own !== '' && hints.includes(own)

function isNearby(candidates: readonly Candidate[], node: NodeView): (candidate: Candidate) => boolean {
  const topology = topologyOf(candidates, node)
  if (topology === 'same-node') return ({ record }) => record.ready && isHinted(record.nodeHints, node.name)
  if (topology === 'same-zone') return ({ record }) => record.ready && isHinted(record.zoneHints, node.zone)
  return isReady
}

function pick(candidates: readonly Candidate[], wanted: (candidate: Candidate) => boolean): readonly Endpoint[] {
  const picked: Endpoint[] = []
  for (const candidate of candidates) if (wanted(candidate)) picked.push(candidate.endpoint)
  return picked.length === 0 ? none : picked
}

/** Counts the distinct addresses on this node that are ready on any port: what a health check node port reports. */
export function countLocalReady(slices: readonly SliceRecord[], node: NodeView): number {
  const ports = new Map(slices.flatMap((slice) => slice.ports).map((port) => [keyOf(port), port] as const))
  const candidatesOfPort = findCandidates([...ports.values()], slices, node)
  const ips = new Set<string>()
  for (const port of ports.values()) {
    for (const candidate of candidatesOfPort(port)) {
      if (candidate.endpoint.local && isReady(candidate)) ips.add(candidate.endpoint.ip)
    }
  }
  return ips.size
}

/** Every endpoint that this node may send a packet to, sorted: `local` may have draining endpoints that `cluster` does not have. */
export function reachableOf({ cluster, local }: Pick<ServicePort, 'cluster' | 'local'>): readonly Endpoint[] {
  const known = new Set(cluster)
  const extra = local.filter((endpoint) => !known.has(endpoint))
  return extra.length === 0 ? cluster : [...cluster, ...extra].sort(compareEndpoints)
}
