// Which endpoints may serve a port: matched by port name, each address once, ready or draining, near enough, on this node.

import type { Endpoint, EndpointRecord, NodeView, Protocol, ServicePort, SliceRecord } from './types.ts'

/** An endpoint under one port, with the conditions and hints that decide whether it is used. */
export interface Candidate {
  readonly record: EndpointRecord
  readonly endpoint: Endpoint
}

export interface Categories {
  readonly cluster: readonly Endpoint[]
  readonly local: readonly Endpoint[]
  /** Something usable exists somewhere, perhaps only on other nodes. */
  readonly hasAny: boolean
}

const none: readonly never[] = Object.freeze([])

/** The slices of one service in one family, in key order: that order decides between contradicting slices. */
export function slicesOf(service: string, slices: readonly SliceRecord[], node: NodeView): readonly SliceRecord[] {
  const own = slices.filter((slice) => slice.family === node.family && slice.service === service)
  return own.length > 1 ? own.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0)) : own
}

/**
 * Every endpoint of a port, whatever its conditions, sorted by `ip:port` and each address once. `slices` as from `slicesOf`.
 * An address that occurs more than once (a reused pod IP, an endpoint on its way from one slice to another): the last one
 * that is not terminating counts, or else the first terminating one. Upstream visits slices in random order; we do not.
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
      if (port.name !== name || port.protocol !== protocol || port.port === 0) continue
      for (const record of slice.endpoints) {
        const local = record.node === node.name && node.name !== ''
        const endpoint = { ip: record.ip, port: port.port, local }
        found.push({ record, endpoint: slice.weight === undefined ? endpoint : { ...endpoint, weight: slice.weight } })
      }
    }
  }
  if (found.length < 2) return found
  found.sort((a, b) => compareEndpoints(a.endpoint, b.endpoint))
  return withoutDuplicates(found)
}

/** Equal addresses are neighbours, in the order of arrival. Works in place: the array is the caller's own. */
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
 * Bytewise order of the strings `ip:port` and `[ip6]:port`, without making the strings (100,000 endpoints are compared
 * two million times). Where one address is the beginning of the other, the shorter one goes on with `:` or `]`: of all that
 * may follow in the longer one, only the digits a to f sort behind that.
 */
export function compareEndpoints(a: Endpoint, b: Endpoint): number {
  if (a.ip === b.ip) return a.port === b.port ? 0 : String(a.port) < String(b.port) ? -1 : 1
  if (a.ip.length < b.ip.length && b.ip.startsWith(a.ip)) return b.ip.charCodeAt(a.ip.length) < letter ? 1 : -1
  if (b.ip.length < a.ip.length && a.ip.startsWith(b.ip)) return a.ip.charCodeAt(b.ip.length) < letter ? -1 : 1
  return a.ip < b.ip ? -1 : 1
}

const letter = 0x61

const ready = (candidate: Candidate): boolean => candidate.record.ready

/** Still answers, though it is on its way out: used when nothing is ready. */
const draining = ({ record }: Candidate): boolean => record.serving && record.terminating

/** What is usable under the policies that apply. `local` and `cluster` fall back to draining endpoints independently. */
export function categorise(
  candidates: readonly Candidate[],
  uses: { readonly cluster: boolean; readonly local: boolean },
  node: NodeView,
): Categories {
  if (candidates.length === 0) return { cluster: none, local: none, hasAny: false }
  let cluster: readonly Endpoint[] = none
  if (uses.cluster) {
    cluster = pick(candidates, nearby(candidates, node))
    if (cluster.length === 0) cluster = pick(candidates, draining)
  }
  if (!uses.local) return { cluster, local: none, hasAny: cluster.length > 0 }
  let local = pick(candidates, (candidate) => candidate.endpoint.local && ready(candidate))
  if (local.length === 0) local = pick(candidates, (candidate) => candidate.endpoint.local && draining(candidate))
  const hasAny = cluster.length > 0 || candidates.some((candidate) => ready(candidate) || draining(candidate))
  return { cluster, local, hasAny }
}

/** Endpoints that a UDP flow may stay with. Those that publishNotReadyAddresses makes ready are in use, serving or not. */
export const servingOf = (candidates: readonly Candidate[]): readonly Endpoint[] =>
  pick(candidates, ({ record }) => record.serving || record.ready)

export type Topology = 'same-node' | 'same-zone' | 'anywhere'

/** Hints count only if every ready endpoint has one of the kind and at least one is for us. */
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
    someNode ||= hinted(record.nodeHints, node.name)
    someZone ||= hinted(record.zoneHints, node.zone)
  }
  if (everyNode && someNode) return 'same-node'
  return everyZone && someZone ? 'same-zone' : 'anywhere'
}

/** A node without a name or zone is never meant. */
const hinted = (hints: readonly string[], own: string): boolean => own !== '' && hints.includes(own)

function nearby(candidates: readonly Candidate[], node: NodeView): (candidate: Candidate) => boolean {
  const topology = topologyOf(candidates, node)
  if (topology === 'same-node') return ({ record }) => record.ready && hinted(record.nodeHints, node.name)
  if (topology === 'same-zone') return ({ record }) => record.ready && hinted(record.zoneHints, node.zone)
  return ready
}

function pick(candidates: readonly Candidate[], wanted: (candidate: Candidate) => boolean): readonly Endpoint[] {
  const picked: Endpoint[] = []
  for (const candidate of candidates) if (wanted(candidate)) picked.push(candidate.endpoint)
  return picked.length === 0 ? none : picked
}

/** Distinct addresses on this node that are ready on some port: what a health check node port reports. */
export function countLocalReady(slices: readonly SliceRecord[], node: NodeView): number {
  const ips = new Set<string>()
  const seen = new Set<string>()
  for (const slice of slices) {
    for (const port of slice.ports) {
      const key = `${port.protocol}/${port.name}`
      if (seen.has(key)) continue
      seen.add(key)
      for (const candidate of candidatesOf(slices, port.name, port.protocol, node)) {
        if (candidate.endpoint.local && ready(candidate)) ips.add(candidate.endpoint.ip)
      }
    }
  }
  return ips.size
}

/** Every endpoint that some packet on this node may be sent to, sorted: `local` may hold draining ones that `cluster` has not. */
export function reachableOf({ cluster, local }: Pick<ServicePort, 'cluster' | 'local'>): readonly Endpoint[] {
  const known = new Set(cluster)
  const extra = local.filter((endpoint) => !known.has(endpoint))
  return extra.length === 0 ? cluster : [...cluster, ...extra].sort(compareEndpoints)
}
