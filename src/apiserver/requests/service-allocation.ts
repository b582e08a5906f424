// Gives a valid service its cluster IPs, node ports and health check port. What the user asks for must be free. Pure.

import { canonicalIp, contains } from '../../lib/ip.ts'
import { unclassified } from '../schema/api-status.ts'
import type { FieldErrors } from '../schema/field-errors.ts'
import {
  ensureObject,
  getMutableObjects,
  getNumber,
  getObject,
  getStrings,
  type Json,
  type MutableJson,
} from '../schema/json.ts'
import { nameOf, namespaceOf } from '../schema/object-metadata.ts'
import { hasClusterIp, isExternal, isHeadless, needsHealthPort, needsNodePorts } from '../schema/service-defaults.ts'
import type { Allocations } from './allocations.ts'

interface AllocationRequest {
  /** `namespace/name` of the service. */
  readonly owner: string
  readonly allocations: Allocations
  readonly errors: FieldErrors
}

interface PortRequest extends AllocationRequest {
  /** A new service may name each node port once; a changed one may use a port in several protocols. */
  readonly isNew: boolean
  /** Node ports that the service has in this request so far. */
  readonly usedPorts: Set<number>
}

const ownerOf = (service: Json): string => `${namespaceOf(service)}/${nameOf(service)}`

export function allocateClusterIps(
  service: MutableJson,
  old: Json | undefined,
  allocations: Allocations,
  errors: FieldErrors,
): void {
  const spec = ensureObject(service, 'spec')
  if (!hasClusterIp(spec) || isHeadless(spec)) return
  // An address that replaces another is not allocated: validation refuses it.
  const kept = getStrings(getObject(old, 'spec'), 'clusterIPs').length
  const request: AllocationRequest = { owner: ownerOf(service), allocations, errors }
  const requested = getStrings(spec, 'clusterIPs')
  const ips: string[] = []
  for (const [i, family] of getStrings(spec, 'ipFamilies').entries()) {
    const ip = requested[i] ?? allocations.findFreeIp(family === 'IPv6' ? 6 : 4)
    const why = ip === undefined ? 'failed to allocate a serviceIP: range is full' : checkIp(ip, request)
    if (ip === undefined || (why !== '' && i >= kept)) {
      errors.invalid('spec.clusterIPs', requested.length === 0 ? [''] : requested, why)
      return
    }
    ips.push(ip)
  }
  spec.clusterIPs = ips
  spec.clusterIP = ips[0]
}

/** Returns why the service may not have the address; '' if it may. */
function checkIp(ip: string, { owner, allocations }: AllocationRequest): string {
  const canonical = canonicalIp(ip) ?? ip
  const holder = allocations.ipOwner(canonical)
  if (holder === owner) return ''
  if (holder !== undefined) return `failed to allocate IP ${ip}: provided IP is already allocated`
  if (allocations.cidrs().some((cidr) => contains(cidr, canonical))) return ''
  return `failed to allocate IP ${ip}: the provided network does not match the current range`
}

/** Stops at the first port that cannot be had, as the real server does. */
export function allocatePorts(
  service: MutableJson,
  allocations: Allocations,
  isNew: boolean,
  errors: FieldErrors,
): void {
  const spec = ensureObject(service, 'spec')
  const request: PortRequest = { owner: ownerOf(service), allocations, errors, isNew, usedPorts: new Set() }
  if (isExternal(spec)) allocateNodePorts(spec, request)
  if (needsHealthPort(spec) && errors.isEmpty) allocateHealthPort(spec, request)
}

function allocateNodePorts(spec: MutableJson, request: PortRequest): void {
  const ports = getMutableObjects(spec, 'ports')
  /** The same port in TCP and UDP gets the same node port. */
  const shared = new Map<unknown, number>()
  for (const [i, port] of ports.entries()) {
    const asked = getNumber(port, 'nodePort')
    if (asked === 0 && !needsNodePorts(spec)) continue
    const found = request.isNew ? shared.get(port.port) : undefined
    const wanted = found === undefined && request.isNew ? askedFor(port, ports) : asked
    const nodePort = choosePort(wanted, found, request)
    if (typeof nodePort === 'string') {
      request.errors.invalid(`spec.ports[${i}].nodePort`, wanted, nodePort)
      return
    }
    if (!request.isNew) refuseRepeated(port, nodePort, ports.slice(0, i))
    port.nodePort = nodePort
    if (found === undefined) shared.set(port.port, nodePort)
  }
}

/** Returns the port, or why there is none. */
function choosePort(wanted: number, shared: number | undefined, request: PortRequest): number | string {
  if (shared !== undefined && (wanted === 0 || wanted === shared)) return shared
  return wanted === 0 ? findNewPort(request) : takePort(wanted, request)
}

/** The real server has no better words for this. */
function refuseRepeated({ protocol }: Json, nodePort: number, before: readonly Json[]): void {
  if (before.some((each) => each.nodePort === nodePort && each.protocol === protocol))
    throw unclassified(`duplicate nodePort: {${String(protocol)} ${nodePort}}`)
}

/** The node port that the user asks for, for this port or for the same one in another protocol; 0 if there is none. */
function askedFor(port: Json, ports: readonly Json[]): number {
  const own = getNumber(port, 'nodePort')
  if (own !== 0) return own
  return getNumber(
    ports.find((each) => each.port === port.port && getNumber(each, 'nodePort') !== 0),
    'nodePort',
  )
}

/** Returns the port, or why the service may not have it. */
function takePort(port: number, { owner, allocations, isNew, usedPorts }: PortRequest): number | string {
  const holder = allocations.portOwner(port)
  const { first, last } = allocations.range
  const isRepeated = usedPorts.has(port) && isNew
  usedPorts.add(port)
  if (holder === owner) return port
  if (port < first || port > last)
    return `provided port is not in the valid range. The range of valid ports is ${first}-${last}`
  return holder !== undefined || isRepeated ? 'provided port is already allocated' : port
}

function findNewPort({ allocations, usedPorts }: PortRequest): number | string {
  const port = allocations.findFreePort(usedPorts)
  if (port === undefined) return 'failed to allocate a nodePort: range is full'
  usedPorts.add(port)
  return port
}

function allocateHealthPort(spec: MutableJson, request: PortRequest): void {
  const requested = getNumber(spec, 'healthCheckNodePort')
  const port = requested === 0 ? findNewPort(request) : takePort(requested, request)
  if (typeof port === 'string') request.errors.invalid('spec.healthCheckNodePort', requested, port)
  else spec.healthCheckNodePort = port
}
