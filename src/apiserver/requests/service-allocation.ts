// Gives a valid service its cluster IPs, node ports and health check port. What the user asks for must be free. Pure.

import { canonicalIp, contains } from '../../lib/ip.ts'
import type { FieldErrors } from '../schema/field-errors.ts'
import {
  ensureObject,
  getMutableObjects,
  getNumber,
  getString,
  getStrings,
  type Json,
  type MutableJson,
} from '../schema/json.ts'
import { nameOf, namespaceOf } from '../schema/object-metadata.ts'
import { hasClusterIp, isHeadless, needsHealthPort, needsNodePorts } from '../schema/service-defaults.ts'
import type { Allocations } from './allocations.ts'

interface AllocationRequest {
  /** `namespace/name` of the service. */
  readonly owner: string
  readonly allocations: Allocations
  readonly errors: FieldErrors
  /** Node ports that the service has in this request so far. */
  readonly usedPorts: Set<number>
}

export function allocateService(service: MutableJson, allocations: Allocations, errors: FieldErrors): void {
  const spec = ensureObject(service, 'spec')
  const owner = `${namespaceOf(service)}/${nameOf(service)}`
  const request: AllocationRequest = { owner, allocations, errors, usedPorts: new Set() }
  if (hasClusterIp(spec) && !isHeadless(spec)) allocateClusterIps(spec, request)
  checkNodePorts(spec, request)
  if (needsNodePorts(spec)) allocateNodePorts(spec, request)
  if (needsHealthPort(spec)) allocateHealthPort(spec, request)
}

function allocateClusterIps(spec: MutableJson, request: AllocationRequest): void {
  const requested = getStrings(spec, 'clusterIPs')
  const ips: string[] = []
  for (const [i, family] of getStrings(spec, 'ipFamilies').entries()) {
    const ip = requested[i] ?? request.allocations.findFreeIp(family === 'IPv6' ? 6 : 4)
    const why = ip === undefined ? 'failed to allocate a serviceIP: range is full' : checkIp(ip, request)
    if (ip === undefined || why !== '') {
      request.errors.invalid('spec.clusterIPs', requested.length === 0 ? [''] : requested, why)
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

/** Checks the node ports that the user asks for. */
function checkNodePorts(spec: MutableJson, request: AllocationRequest): void {
  for (const [i, port] of getMutableObjects(spec, 'ports').entries()) {
    const nodePort = getNumber(port, 'nodePort')
    if (nodePort > 0)
      checkPort({ nodePort, protocol: getString(port, 'protocol') }, `spec.ports[${i}].nodePort`, request)
  }
}

function checkPort(
  { nodePort, protocol }: { nodePort: number; protocol: string },
  field: string,
  { owner, allocations, errors, usedPorts }: AllocationRequest,
): void {
  usedPorts.add(nodePort)
  const holder = allocations.portOwner(nodePort, protocol)
  if (holder === owner) return
  const { first, last } = allocations.range
  if (nodePort < first || nodePort > last) {
    const why = `provided port is not in the valid range. The range of valid ports is ${first}-${last}`
    errors.invalid(field, nodePort, why)
  } else if (holder !== undefined) errors.invalid(field, nodePort, 'provided port is already allocated')
}

function allocateNodePorts(spec: MutableJson, request: AllocationRequest): void {
  const ports = getMutableObjects(spec, 'ports')
  for (const [i, port] of ports.entries()) {
    if (port.nodePort !== undefined) continue
    const nodePort = findSharedPort(port, ports, request) ?? findNewPort(port, ports, request)
    if (nodePort === undefined) {
      request.errors.invalid(`spec.ports[${i}].nodePort`, 0, 'failed to allocate a nodePort: range is full')
      return
    }
    port.nodePort = nodePort
  }
}

/** The same port in TCP and UDP gets the same node port. */
function findSharedPort(
  port: Json,
  ports: readonly Json[],
  { owner, allocations }: AllocationRequest,
): number | undefined {
  const other = ports.find((each) => each !== port && each.port === port.port && each.nodePort !== undefined)
  const nodePort = getNumber(other, 'nodePort')
  if (nodePort === 0) return undefined
  const holder = allocations.portOwner(nodePort, getString(port, 'protocol'))
  return holder === undefined || holder === owner ? nodePort : undefined
}

function findNewPort(
  port: Json,
  ports: readonly Json[],
  { allocations, usedPorts }: AllocationRequest,
): number | undefined {
  const protocols = ports.filter((each) => each.port === port.port).map((each) => getString(each, 'protocol'))
  const nodePort = allocations.findFreePort(protocols, usedPorts)
  if (nodePort !== undefined) usedPorts.add(nodePort)
  return nodePort
}

function allocateHealthPort(spec: MutableJson, request: AllocationRequest): void {
  const field = 'spec.healthCheckNodePort'
  const requested = getNumber(spec, 'healthCheckNodePort')
  if (requested > 0) {
    checkPort({ nodePort: requested, protocol: 'TCP' }, field, request)
    return
  }
  const nodePort = request.allocations.findFreePort(['TCP'], request.usedPorts)
  if (nodePort === undefined) request.errors.invalid(field, 0, 'failed to allocate a nodePort: range is full')
  else spec.healthCheckNodePort = nodePort
}
