// What the server adds to a service: defaults, families, cluster IPs and node ports; on update, what goes and what stays.

import { canonicalIp, contains, type Family, familyName, familyOf } from '../../lib/ip.ts'
import type { Allocations } from '../controllers/allocate.ts'
import type { Problems } from '../schema/field-errors.ts'
import { child, copy, equal, isObject, type Json, type MutableJson, text, texts, whole } from '../schema/json.ts'

export const isExternal = (spec: Json): boolean => spec.type === 'NodePort' || spec.type === 'LoadBalancer'
const hasClusterIp = (spec: Json): boolean => spec.type !== 'ExternalName'
const isHeadless = (spec: Json): boolean => text(spec, 'clusterIP') === 'None'
export const needsHealthPort = (spec: Json): boolean =>
  spec.type === 'LoadBalancer' && spec.externalTrafficPolicy === 'Local'
const givesNodePorts = (spec: Json): boolean =>
  spec.type === 'NodePort' || (spec.type === 'LoadBalancer' && spec.allocateLoadBalancerNodePorts !== false)

const ports = (spec: Json): MutableJson[] =>
  Array.isArray(spec.ports) ? (spec.ports.filter(isObject) as MutableJson[]) : []

export function defaultService(service: MutableJson): void {
  const spec = specOf(service)
  spec.type ??= 'ClusterIP'
  spec.sessionAffinity ??= 'None'
  if (spec.sessionAffinity === 'None') delete spec.sessionAffinityConfig
  if (spec.sessionAffinity === 'ClientIP') {
    const config = child(child(spec, 'sessionAffinityConfig'), 'clientIP')
    spec.sessionAffinityConfig = { clientIP: { timeoutSeconds: config.timeoutSeconds ?? 10_800 } }
  }
  for (const port of ports(spec)) {
    port.protocol ??= 'TCP'
    if (port.targetPort === undefined || port.targetPort === 0 || port.targetPort === '')
      port.targetPort = port.port ?? 0
  }
  if (hasClusterIp(spec)) spec.internalTrafficPolicy ??= 'Cluster'
  if (isExternal(spec)) spec.externalTrafficPolicy ??= 'Cluster'
  if (spec.type === 'LoadBalancer') spec.allocateLoadBalancerNodePorts ??= true
  const status = { ...child(service, 'status') }
  status.loadBalancer ??= {}
  const balancer = child(status, 'loadBalancer')
  if (spec.type === 'LoadBalancer' && Array.isArray(balancer.ingress)) {
    const ingress = balancer.ingress.map((one) =>
      isObject(one) && text(one, 'ip') !== '' && one.ipMode === undefined ? { ...one, ipMode: 'VIP' } : one,
    )
    status.loadBalancer = { ...balancer, ingress }
  }
  service.status = status
}

const specOf = (service: MutableJson): MutableJson => {
  if (!isObject(service.spec)) service.spec = {}
  return service.spec as MutableJson
}

/** Fields that one type has and another has not go with the type, unless the user changed them too. */
export function dropTypeFields(service: MutableJson, old: Json): void {
  const spec = specOf(service)
  const was = child(old, 'spec')
  const same = (name: string) => equal(spec[name], was[name])
  if (hasClusterIp(was) && !hasClusterIp(spec) && same('clusterIP') && same('clusterIPs')) {
    for (const name of ['clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy', 'internalTrafficPolicy'])
      delete spec[name]
  }
  if (isExternal(was) && !isExternal(spec)) {
    if (same('externalTrafficPolicy')) delete spec.externalTrafficPolicy
    const before = new Set(ports(was).map((port) => `${port.port}/${port.protocol}/${port.nodePort}`))
    const kept = ports(spec).filter((port) => port.nodePort !== undefined)
    if (kept.every((port) => before.has(`${port.port}/${port.protocol ?? 'TCP'}/${port.nodePort}`))) {
      for (const port of kept) delete port.nodePort
    }
  }
  if (needsHealthPort(was) && !needsHealthPort(spec) && same('healthCheckNodePort')) delete spec.healthCheckNodePort
  if (was.type === 'LoadBalancer' && spec.type !== 'LoadBalancer') {
    for (const name of ['allocateLoadBalancerNodePorts', 'loadBalancerClass']) if (same(name)) delete spec[name]
    service.status = { ...child(service, 'status'), loadBalancer: {} }
  }
}

/** A replacement that leaves out what was allocated keeps it. */
export function keepAllocations(service: MutableJson, old: Json): void {
  const spec = specOf(service)
  const was = child(old, 'spec')
  if (hasClusterIp(was) && hasClusterIp(spec)) {
    // One without the other counts, too: an applied file that no longer names its address takes away only the field it had.
    if (text(spec, 'clusterIP') === '' && was.clusterIP !== undefined) spec.clusterIP = was.clusterIP
    if (texts(spec, 'clusterIPs').length === 0 && was.clusterIPs !== undefined) spec.clusterIPs = copy(was.clusterIPs)
    if (spec.ipFamilyPolicy === undefined && was.ipFamilyPolicy !== undefined) spec.ipFamilyPolicy = was.ipFamilyPolicy
    if (spec.ipFamilies === undefined && was.ipFamilies !== undefined) spec.ipFamilies = copy(was.ipFamilies)
  }
  if (isExternal(was) && isExternal(spec)) {
    // By name, as the real server does: a port that gets another number stays where its clients look for it.
    const used = new Set(ports(spec).map(({ nodePort }) => nodePort))
    for (const port of ports(spec).filter(({ nodePort }) => (nodePort ?? 0) === 0)) {
      const before = ports(was).findLast((each) => text(each, 'name') === text(port, 'name'))
      if (before?.nodePort !== undefined && !used.has(before.nodePort)) port.nodePort = before.nodePort
    }
  }
  if (needsHealthPort(was) && needsHealthPort(spec)) spec.healthCheckNodePort ??= was.healthCheckNodePort
}

/** `clusterIP` is the first of `clusterIPs`; whichever the user wrote decides. */
export function alignClusterIps(service: MutableJson, old: Json | undefined): void {
  const spec = specOf(service)
  const was = child(old, 'spec')
  const listed = texts(spec, 'clusterIPs')
  const single = text(spec, 'clusterIP')
  if (listed.length === 0) {
    if (single !== '') spec.clusterIPs = [single]
    return
  }
  if (old === undefined || single === listed[0]) return
  if (single === text(was, 'clusterIP')) return
  if (equal(listed, texts(was, 'clusterIPs'))) {
    if (single === '') delete spec.clusterIPs
    else spec.clusterIPs = [single]
  }
}

/** Decides families and policy; problems are those that no other validation sees. */
export function assignFamilies(
  service: MutableJson,
  old: Json | undefined,
  available: readonly Family[],
  problems: Problems,
): void {
  const spec = specOf(service)
  if (!hasClusterIp(spec)) return
  const was = child(old, 'spec')
  const dual = available.length > 1
  const first = available[0] ?? 4
  const headless = isHeadless(spec)
  const selectorless = Object.keys(child(spec, 'selector')).length === 0
  const given = texts(spec, 'ipFamilies')
  const ips = texts(spec, 'clusterIPs').flatMap((ip) => canonicalIp(ip) ?? [])
  const open = headless && selectorless && given.length === 0
  spec.ipFamilyPolicy ??= open ? 'RequireDualStack' : 'SingleStack'
  if (spec.ipFamilyPolicy === 'SingleStack') trimToOne(spec, was)
  const families = given.length > 0 ? [...texts(spec, 'ipFamilies')] : ips.map((ip) => familyName(familyOf(ip)))
  if (families.length === 0) families.push(familyName(first))
  const wantsTwo = spec.ipFamilyPolicy === 'RequireDualStack' || (spec.ipFamilyPolicy === 'PreferDualStack' && dual)
  if (wantsTwo && families.length === 1) {
    if (dual || (headless && selectorless)) families.push(families[0] === 'IPv4' ? 'IPv6' : 'IPv4')
    else
      problems.invalid(
        'spec.ipFamilyPolicy',
        spec.ipFamilyPolicy,
        'this cluster is not configured for dual-stack services',
      )
  }
  if (!(headless && selectorless)) {
    for (const [i, family] of families.entries()) {
      const known = available.map(familyName) as readonly string[]
      if (['IPv4', 'IPv6'].includes(family) && !known.includes(family)) {
        problems.invalid(`spec.ipFamilies[${i}]`, family, 'not configured on this cluster')
      }
    }
  }
  spec.ipFamilies = families
}

/** From dual to single stack the second family and address are given back, if the user did not touch them. */
function trimToOne(spec: MutableJson, was: Json): void {
  if (was.ipFamilyPolicy === 'SingleStack' || was.ipFamilyPolicy === undefined) return
  if (equal(spec.ipFamilies, was.ipFamilies)) spec.ipFamilies = texts(spec, 'ipFamilies').slice(0, 1)
  if (equal(spec.clusterIPs, was.clusterIPs)) spec.clusterIPs = texts(spec, 'clusterIPs').slice(0, 1)
}

/** Gives addresses and ports to a service that is otherwise valid; what is asked for must be free. */
export function allocateService(
  service: MutableJson,
  owner: string,
  allocations: Allocations,
  problems: Problems,
): void {
  const spec = specOf(service)
  if (hasClusterIp(spec) && !isHeadless(spec)) allocateIps(spec, owner, allocations, problems)
  const avoid = new Set<number>()
  if (givesNodePorts(spec) || ports(spec).some((port) => port.nodePort !== undefined)) {
    allocatePorts(spec, { owner, allocations, problems, avoid })
  }
  if (!needsHealthPort(spec)) return
  const asked = whole(spec, 'healthCheckNodePort')
  if (asked > 0) checkPort(asked, 'TCP', 'spec.healthCheckNodePort', { owner, allocations, problems, avoid })
  else {
    const port = allocations.freePort(['TCP'], avoid)
    if (port === undefined)
      problems.invalid('spec.healthCheckNodePort', 0, 'failed to allocate a nodePort: range is full')
    else spec.healthCheckNodePort = port
  }
}

function allocateIps(spec: MutableJson, owner: string, allocations: Allocations, problems: Problems): void {
  const asked = texts(spec, 'clusterIPs')
  const made: string[] = []
  for (const [i, family] of texts(spec, 'ipFamilies').entries()) {
    const ip = asked[i] ?? allocations.freeIp(family === 'IPv6' ? 6 : 4)
    const why = ip === undefined ? 'failed to allocate a serviceIP: range is full' : refusedIp(ip, owner, allocations)
    if (ip === undefined || why !== '') {
      problems.invalid('spec.clusterIPs', asked.length === 0 ? [''] : asked, why)
      return
    }
    made.push(ip)
  }
  spec.clusterIPs = made
  spec.clusterIP = made[0]
}

/** Why the service may not have the address; '' if it may. */
function refusedIp(ip: string, owner: string, allocations: Allocations): string {
  const canonical = canonicalIp(ip) ?? ip
  const taken = allocations.ipOwner(canonical)
  if (taken === owner) return ''
  if (taken !== undefined) return `failed to allocate IP ${ip}: provided IP is already allocated`
  if (allocations.cidrs().some((cidr) => contains(cidr, canonical))) return ''
  return `failed to allocate IP ${ip}: the provided network does not match the current range`
}

interface PortWork {
  readonly owner: string
  readonly allocations: Allocations
  readonly problems: Problems
  /** Numbers that this service has taken so far. */
  readonly avoid: Set<number>
}

function allocatePorts(spec: MutableJson, work: PortWork): void {
  const all = ports(spec)
  for (const [i, port] of all.entries()) {
    const asked = whole(port, 'nodePort')
    if (asked > 0) checkPort(asked, text(port, 'protocol'), `spec.ports[${i}].nodePort`, work)
  }
  if (!givesNodePorts(spec)) return
  for (const [i, port] of all.entries()) {
    if (port.nodePort !== undefined) continue
    // The same port in TCP and UDP gets the same node port.
    const twin = all.find((each) => each !== port && each.port === port.port && each.nodePort !== undefined)
    const shared = whole(twin, 'nodePort')
    const protocol = text(port, 'protocol')
    const owner = shared > 0 ? work.allocations.portOwner(shared, protocol) : undefined
    if (shared > 0 && (owner === undefined || owner === work.owner)) {
      port.nodePort = shared
      continue
    }
    const protocols = all.filter((each) => each.port === port.port).map((each) => text(each, 'protocol'))
    const free = work.allocations.freePort(protocols, work.avoid)
    if (free === undefined) {
      work.problems.invalid(`spec.ports[${i}].nodePort`, 0, 'failed to allocate a nodePort: range is full')
      return
    }
    work.avoid.add(free)
    port.nodePort = free
  }
}

function checkPort(
  port: number,
  protocol: string,
  field: string,
  { owner, allocations, problems, avoid }: PortWork,
): void {
  const taken = allocations.portOwner(port, protocol)
  avoid.add(port)
  if (taken === owner) return
  const { first, last } = allocations.range
  if (port < first || port > last) {
    problems.invalid(
      field,
      port,
      `provided port is not in the valid range. The range of valid ports is ${first}-${last}`,
    )
  } else if (taken !== undefined) problems.invalid(field, port, 'provided port is already allocated')
}
