// Which endpoints a service has, given the pods it selects, and how existing slices change to hold them. Pure.

import { canonicalIp, type Family, familyName, familyOf } from '../../lib/ip.ts'
import { podReady } from '../http/columns.ts'
import { child, equal, type Json, objects, text, texts, whole } from '../schema/json.ts'
import { metaOf, nameOf, namespaceOf } from '../schema/served-resources.ts'

export const managedBy = 'endpointslice.kubernetes.io/managed-by'
export const managerName = 'endpointslice-controller.k8s.io'
export const serviceNameLabel = 'kubernetes.io/service-name'
const headlessLabel = 'service.kubernetes.io/headless'
const maxPerSlice = 100

export interface ApiEndpoint {
  readonly endpoint: Json
  readonly family: Family
  readonly ports: readonly Json[]
}

export interface SlicePlan {
  /** undefined: a new slice. */
  readonly name: string | undefined
  readonly addressType: string
  readonly ports: readonly Json[]
  readonly endpoints: readonly Json[]
}

export const selectsPods = (service: Json): boolean =>
  child(service, 'spec').type !== 'ExternalName' && Object.keys(child(child(service, 'spec'), 'selector')).length > 0

/** The zone of a node by its name; '' if not known. */
export type ZoneOf = (nodeName: string) => string

export function endpointsOf(service: Json, pods: readonly Json[], zoneOf: ZoneOf): readonly ApiEndpoint[] {
  const families = texts(child(service, 'spec'), 'ipFamilies')
  const found: ApiEndpoint[] = []
  for (const pod of pods) {
    if (['Succeeded', 'Failed'].includes(text(child(pod, 'status'), 'phase'))) continue
    const ports = portsFor(service, pod)
    for (const ip of addressesOf(pod)) {
      const family = familyOf(ip)
      if (families.includes(familyName(family)))
        found.push({ endpoint: endpointOf(service, pod, ip, zoneOf), family, ports })
    }
  }
  return withHints(text(child(service, 'spec'), 'trafficDistribution'), found)
}

/** One address of each family. */
function addressesOf(pod: Json): readonly string[] {
  const status = child(pod, 'status')
  const listed = [...objects(status, 'podIPs').map((entry) => text(entry, 'ip')), text(status, 'podIP')]
  const byFamily = new Map<Family, string>()
  for (const ip of listed.flatMap((each) => canonicalIp(each) ?? [])) {
    if (!byFamily.has(familyOf(ip))) byFamily.set(familyOf(ip), ip)
  }
  return [...byFamily.values()]
}

function endpointOf(service: Json, pod: Json, ip: string, zoneOf: ZoneOf): Json {
  const spec = child(pod, 'spec')
  const serving = podReady(pod)
  const terminating = metaOf(pod).deletionTimestamp !== undefined
  const ready = child(service, 'spec').publishNotReadyAddresses === true || (serving && !terminating)
  const nodeName = text(spec, 'nodeName')
  const zone = nodeName === '' ? '' : zoneOf(nodeName)
  const named = text(spec, 'hostname') !== '' && text(spec, 'subdomain') === nameOf(service)
  return {
    addresses: [ip],
    conditions: { ready, serving, terminating },
    ...(named ? { hostname: text(spec, 'hostname') } : {}),
    targetRef: { kind: 'Pod', namespace: namespaceOf(pod), name: nameOf(pod), uid: text(metaOf(pod), 'uid') },
    ...(nodeName === '' ? {} : { nodeName }),
    ...(zone === '' ? {} : { zone }),
  }
}

/** A port by name is looked up in the pod; a pod without it has no such port. */
function portsFor(service: Json, pod: Json): readonly Json[] {
  return objects(child(service, 'spec'), 'ports').flatMap((port) => {
    const protocol = text(port, 'protocol') || 'TCP'
    const target = port.targetPort ?? port.port
    const number = typeof target === 'string' ? namedPort(pod, target, protocol) : (target as number)
    if (number === undefined) return []
    const appProtocol = port.appProtocol === undefined ? {} : { appProtocol: port.appProtocol }
    return [{ name: text(port, 'name'), protocol, port: number, ...appProtocol }]
  })
}

function namedPort(pod: Json, name: string, protocol: string): number | undefined {
  for (const container of objects(child(pod, 'spec'), 'containers')) {
    for (const port of objects(container, 'ports')) {
      if (port.name === name && (text(port, 'protocol') || 'TCP') === protocol) return whole(port, 'containerPort')
    }
  }
  return undefined
}

/** Only where every ready endpoint has a place; otherwise those without one would get no traffic. */
function withHints(distribution: string, endpoints: readonly ApiEndpoint[]): readonly ApiEndpoint[] {
  const byNode = distribution === 'PreferSameNode'
  if (!byNode && distribution !== 'PreferClose' && distribution !== 'PreferSameZone') return endpoints
  const ready = endpoints.filter(({ endpoint }) => child(endpoint, 'conditions').ready === true)
  const placed = (endpoint: Json) => text(endpoint, 'zone') !== '' && (!byNode || text(endpoint, 'nodeName') !== '')
  if (!ready.every(({ endpoint }) => placed(endpoint))) return endpoints
  return endpoints.map((each) => {
    if (!ready.includes(each)) return each
    const { zone, nodeName } = each.endpoint
    const hints = { ...(byNode ? { forNodes: [{ name: nodeName }] } : {}), forZones: [{ name: zone }] }
    return { ...each, endpoint: { ...each.endpoint, hints } }
  })
}

/** Endpoints stay in the slice they are in; new ones fill gaps; what is empty goes, but one slice per family remains. */
export function planSlices(
  service: Json,
  endpoints: readonly ApiEndpoint[],
  existing: readonly Json[],
): readonly SlicePlan[] {
  const plans: SlicePlan[] = []
  for (const addressType of texts(child(service, 'spec'), 'ipFamilies')) {
    const own = existing.filter((slice) => text(slice, 'addressType') === addressType)
    const groups = new Map<string, ApiEndpoint[]>()
    for (const each of endpoints.filter(({ family }) => familyName(family) === addressType)) {
      const key = JSON.stringify(each.ports)
      const group = groups.get(key)
      if (group === undefined) groups.set(key, [each])
      else group.push(each)
    }
    const made = [...groups.values()].flatMap((group) => planGroup(addressType, group, own))
    if (made.length > 0) plans.push(...made)
    else plans.push({ name: nameOf(own[0] ?? {}) || undefined, addressType, ports: [], endpoints: [] })
  }
  return plans
}

function planGroup(
  addressType: string,
  group: readonly ApiEndpoint[],
  existing: readonly Json[],
): readonly SlicePlan[] {
  const ports = group[0]?.ports ?? []
  const wanted = new Map(group.map(({ endpoint }) => [identity(endpoint), endpoint]))
  const slices = existing
    .filter((slice) => samePorts(objects(slice, 'ports'), ports) || objects(slice, 'endpoints').length === 0)
    .map((slice) => ({
      name: nameOf(slice) as string | undefined,
      endpoints: objects(slice, 'endpoints').flatMap((held): Json[] => {
        const endpoint = wanted.get(identity(held))
        wanted.delete(identity(held))
        return endpoint === undefined ? [] : [endpoint]
      }),
    }))
  for (const endpoint of wanted.values()) {
    let room = slices.find((slice) => slice.endpoints.length < maxPerSlice)
    if (room === undefined) {
      room = { name: undefined, endpoints: [] }
      slices.push(room)
    }
    room.endpoints.push(endpoint)
  }
  return slices
    .filter((slice) => slice.endpoints.length > 0)
    .map(({ name, endpoints }) => ({ name, addressType, ports, endpoints }))
}

const identity = (endpoint: Json): string =>
  `${text(child(endpoint, 'targetRef'), 'uid')} ${texts(endpoint, 'addresses').join()}`
const samePorts = (a: readonly Json[], b: readonly Json[]): boolean => equal(a, b)

export function sliceLabels(service: Json): Json {
  const own = Object.fromEntries(
    Object.entries(child(metaOf(service), 'labels')).filter(([key]) => !key.includes('kubernetes.io/service-name')),
  )
  const headless = child(service, 'spec').clusterIP === 'None'
  return {
    ...own,
    [managedBy]: managerName,
    [serviceNameLabel]: nameOf(service),
    ...(headless ? { [headlessLabel]: '' } : {}),
  }
}

/** The old form, in the first family only. */
export function endpointSubsets(service: Json, endpoints: readonly ApiEndpoint[]): readonly Json[] {
  const first = texts(child(service, 'spec'), 'ipFamilies')[0]
  const groups = new Map<string, { addresses: Json[]; notReadyAddresses: Json[]; ports: readonly Json[] }>()
  for (const { endpoint, family, ports } of endpoints) {
    const conditions = child(endpoint, 'conditions')
    if (familyName(family) !== first || (conditions.terminating === true && conditions.ready !== true)) continue
    const key = JSON.stringify(ports)
    const group = groups.get(key) ?? { addresses: [], notReadyAddresses: [], ports }
    groups.set(key, group)
    const address = {
      ip: texts(endpoint, 'addresses')[0],
      ...(endpoint.hostname === undefined ? {} : { hostname: endpoint.hostname }),
      ...(endpoint.nodeName === undefined ? {} : { nodeName: endpoint.nodeName }),
      targetRef: endpoint.targetRef,
    }
    if (conditions.ready === true) group.addresses.push(address)
    else group.notReadyAddresses.push(address)
  }
  return [...groups.values()].map(({ addresses, notReadyAddresses, ports }) => ({
    ...(addresses.length > 0 ? { addresses } : {}),
    ...(notReadyAddresses.length > 0 ? { notReadyAddresses } : {}),
    ports: ports.map(({ name, port, protocol, appProtocol }) => ({
      ...(name === '' ? {} : { name }),
      port,
      protocol,
      ...(appProtocol === undefined ? {} : { appProtocol }),
    })),
  }))
}
