// Describes how a Service or an EndpointSlice changed: which frontends, endpoints and settings it had and has. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { hostPort } from '../../lib/ip.ts'
import type { EndpointRecord, ServiceRecord, SliceRecord } from '../../model/types.ts'
import { haveSameTraits } from '../packed-endpoints.ts'
import type { PartChange } from './history-record.ts'

/** The state of an object: what each part of it is. */
export type Parts = ReadonlyMap<string, string>

/** Parts of one object that are named; the rest are counted. */
export const maxParts = 50
/** An object with more frontends or endpoints is not taken apart: that would hold the event loop for milliseconds. */
const maxCompared = 2_000
/** A slice with more endpoints that comes or goes is described only as far as its endpoints are named. */
const maxListed = 200

export interface ChangedParts {
  readonly parts: readonly PartChange[]
  readonly moreParts: number
}

export function listServiceParts(record: ServiceRecord | undefined): Parts {
  const parts = new Map<string, string>()
  if (record === undefined) return parts
  for (const port of record.ports) {
    const name = port.name === '' ? 'unnamed' : port.name
    const add = (kind: string, ip: string) =>
      parts.set(`${kind} ${hostPort(ip, port.port)}/${port.protocol}`, `port ${name}`)
    for (const ip of record.clusterIps) add('cluster-ip', ip)
    for (const ip of record.externalIps) add('external-ip', ip)
    for (const ip of record.loadBalancerIps) add('load-balancer', ip)
    if (port.nodePort !== 0) parts.set(`node-port :${port.nodePort}/${port.protocol}`, `port ${name}`)
  }
  for (const [part, value] of listSettings(record)) parts.set(part, value)
  return parts
}

function listSettings(record: ServiceRecord): readonly (readonly [string, string])[] {
  const settings: (readonly [string, string])[] = [
    ['uid', record.uid],
    ['type', record.type],
    ['externalTrafficPolicy', record.externalPolicy],
    ['internalTrafficPolicy', record.internalPolicy],
    ['sessionAffinity', record.affinitySeconds === 0 ? '' : `ClientIP, ${record.affinitySeconds} s`],
    ['healthCheckNodePort', record.healthCheckNodePort === 0 ? '' : String(record.healthCheckNodePort)],
    ['scheduler', record.scheduler ?? ''],
    ['outlier ejection', nameSwitch(record.outlierEjection)],
    ...record.sourceRanges.map((cidr) => [`source range ${cidr}`, 'allowed'] as const),
  ]
  return settings.filter(([, value]) => value !== '')
}

function nameSwitch(isOn: boolean | undefined): string {
  if (isOn === undefined) return ''
  return isOn ? 'on' : 'off'
}

/** `endpoints` are those of the slice, or some of them. */
export function listSliceParts(slice: SliceRecord | undefined, endpoints = slice?.endpoints ?? []): Parts {
  const parts = new Map<string, string>()
  for (const endpoint of endpoints) {
    const value = describeEndpoint(endpoint, slice?.weight)
    for (const { name, protocol, port } of slice?.ports ?? []) {
      parts.set(`endpoint ${hostPort(endpoint.ip, port)}/${protocol}`, name === '' ? value : `port ${name}, ${value}`)
    }
  }
  return parts
}

function describeEndpoint(endpoint: EndpointRecord, weight: number | undefined): string {
  const { node, zoneHints, nodeHints } = endpoint
  const words = [describeCondition(endpoint)]
  if (node !== '') words.push(`on ${node}`)
  if (zoneHints.length > 0) words.push(`for zones ${zoneHints.join(' ')}`)
  if (nodeHints.length > 0) words.push(`for nodes ${nodeHints.join(' ')}`)
  if (weight !== undefined) words.push(`weight ${weight}`)
  return words.join(', ')
}

function describeCondition({ ready, serving, terminating }: EndpointRecord): string {
  if (terminating) return serving ? 'terminating, serving' : 'terminating'
  if (ready) return 'ready'
  return serving ? 'serving, not ready' : 'not ready'
}

/** Every part that differs, in the order of the object. */
export function compareParts(before: Parts, after: Parts): readonly PartChange[] {
  const changes: PartChange[] = []
  for (const [part, value] of before) {
    const now = after.get(part) ?? ''
    if (now !== value) changes.push({ part, before: value, after: now })
  }
  for (const [part, value] of after) if (!before.has(part)) changes.push({ part, before: '', after: value })
  return changes
}

export function compareServices(before: ServiceRecord | undefined, after: ServiceRecord | undefined): ChangedParts {
  const size = Math.max(countFrontends(before), countFrontends(after))
  if (size > maxCompared) return { parts: [], moreParts: size }
  return cutParts(compareParts(listServiceParts(before), listServiceParts(after)))
}

export const countFrontends = (record: ServiceRecord | undefined): number =>
  record === undefined
    ? 0
    : record.sourceRanges.length +
      record.ports.length * (record.clusterIps.length + record.externalIps.length + record.loadBalancerIps.length + 1)

export const countEndpointPorts = (slice: SliceRecord | undefined): number =>
  slice === undefined ? 0 : slice.ports.length * slice.endpoints.length

/** The store keeps unchanged endpoints as the same objects, so that those at both ends are passed over quickly. */
export function compareSlices(before: SliceRecord | undefined, after: SliceRecord | undefined): ChangedParts {
  const [old, now] = trimEqual(before, after)
  const ports = Math.max(before?.ports.length ?? 0, after?.ports.length ?? 0)
  const size = ports * Math.max(old.length, now.length)
  if (size > maxCompared) return { parts: [], moreParts: size }
  if (size > maxListed && (before === undefined || after === undefined)) return listFirst(before, after, size)
  return cutParts(compareParts(listSliceParts(before, old), listSliceParts(after, now)))
}

/** Describes the first endpoints of a large slice that comes or goes. An endpoint that the slice names twice counts twice. */
function listFirst(before: SliceRecord | undefined, after: SliceRecord | undefined, size: number): ChangedParts {
  const list = (slice: SliceRecord | undefined) =>
    listSliceParts(slice, [...(slice?.endpoints ?? [])].slice(0, maxParts))
  const { parts } = cutParts(compareParts(list(before), list(after)))
  return { parts, moreParts: size - parts.length }
}

/** Returns the endpoints of both without those that are equal at the beginning and at the end. */
function trimEqual(
  before: SliceRecord | undefined,
  after: SliceRecord | undefined,
): readonly [readonly EndpointRecord[], readonly EndpointRecord[]] {
  const [old, now] = [[...(before?.endpoints ?? [])], [...(after?.endpoints ?? [])]]
  if (before === undefined || after === undefined) return [old, now]
  if (before.weight !== after.weight || !deepEqual(before.ports, after.ports)) return [old, now]
  const shorter = Math.min(old.length, now.length)
  let start = 0
  while (start < shorter && isSame(old[start], now[start])) start++
  let end = 0
  while (end < shorter - start && isSame(old[old.length - 1 - end], now[now.length - 1 - end])) end++
  return [old.slice(start, old.length - end), now.slice(start, now.length - end)]
}

const isSame = (a: EndpointRecord | undefined, b: EndpointRecord | undefined): boolean =>
  a !== undefined && b !== undefined && a.ip === b.ip && haveSameTraits(a, b)

const cutParts = (changes: readonly PartChange[]): ChangedParts => ({
  parts: changes.slice(0, maxParts),
  moreParts: Math.max(0, changes.length - maxParts),
})
