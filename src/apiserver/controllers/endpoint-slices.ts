// Decides which endpoints a service has, given the pods that it selects, and how existing slices change to hold them. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { canonicalIp, type Family, familyName, familyOf } from '../../lib/ip.ts'
import { getNumber, getObject, getObjects, getString, getStrings, type Json } from '../schema/json.ts'
import { isTerminating, labelsOf, nameOf, namespaceOf, uidOf } from '../schema/object-metadata.ts'
import { isPodFinished, isPodReady } from '../schema/pod-status.ts'
import { hasClusterIp, hasSelector, isHeadless } from '../schema/service-defaults.ts'

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

const specOf = (object: Json): Json => getObject(object, 'spec')

export const selectsPods = (service: Json): boolean => hasClusterIp(specOf(service)) && hasSelector(specOf(service))

/** Returns the zone of a node by its name; '' if it is not known. */
export type ZoneOf = (nodeName: string) => string

export function findEndpoints(service: Json, pods: readonly Json[], zoneOf: ZoneOf): readonly ApiEndpoint[] {
  const families = getStrings(specOf(service), 'ipFamilies')
  const endpoints = pods
    .filter((pod) => !isPodFinished(pod))
    .flatMap((pod) => {
      const ports = findPorts(service, pod)
      return addressesOf(pod)
        .filter((ip) => families.includes(familyName(familyOf(ip))))
        .map((ip) => ({ endpoint: createEndpoint(service, pod, ip, zoneOf), family: familyOf(ip), ports }))
    })
  return addHints(getString(specOf(service), 'trafficDistribution'), endpoints)
}

/** One address of each family. */
function addressesOf(pod: Json): readonly string[] {
  const status = getObject(pod, 'status')
  const listed = [...getObjects(status, 'podIPs').map((entry) => getString(entry, 'ip')), getString(status, 'podIP')]
  const byFamily = new Map<Family, string>()
  for (const ip of listed.flatMap((each) => canonicalIp(each) ?? [])) {
    if (!byFamily.has(familyOf(ip))) byFamily.set(familyOf(ip), ip)
  }
  return [...byFamily.values()]
}

function createEndpoint(service: Json, pod: Json, ip: string, zoneOf: ZoneOf): Json {
  const serving = isPodReady(pod)
  const terminating = isTerminating(pod)
  const ready = specOf(service).publishNotReadyAddresses === true || (serving && !terminating)
  const nodeName = getString(specOf(pod), 'nodeName')
  const zone = nodeName === '' ? '' : zoneOf(nodeName)
  const hostname = getString(specOf(pod), 'hostname')
  const hasDnsName = hostname !== '' && getString(specOf(pod), 'subdomain') === nameOf(service)
  return {
    addresses: [ip],
    conditions: { ready, serving, terminating },
    ...(hasDnsName ? { hostname } : {}),
    targetRef: { kind: 'Pod', namespace: namespaceOf(pod), name: nameOf(pod), uid: uidOf(pod) },
    ...(nodeName === '' ? {} : { nodeName }),
    ...(zone === '' ? {} : { zone }),
  }
}

/** A target port that is a name is looked up in the pod; a pod without a port of that name lacks the service's port. */
function findPorts(service: Json, pod: Json): readonly Json[] {
  return getObjects(specOf(service), 'ports').flatMap((port) => {
    const protocol = getString(port, 'protocol') || 'TCP'
    const target = port.targetPort ?? port.port
    const number = typeof target === 'string' ? findContainerPort(pod, target, protocol) : target
    if (typeof number !== 'number') return []
    const appProtocol = port.appProtocol === undefined ? {} : { appProtocol: port.appProtocol }
    return [{ name: getString(port, 'name'), protocol, port: number, ...appProtocol }]
  })
}

function findContainerPort(pod: Json, name: string, protocol: string): number | undefined {
  const ports = getObjects(specOf(pod), 'containers').flatMap((container) => getObjects(container, 'ports'))
  const found = ports.find((port) => port.name === name && (getString(port, 'protocol') || 'TCP') === protocol)
  return found === undefined ? undefined : getNumber(found, 'containerPort')
}

/** Adds hints only if every ready endpoint has a zone or node; otherwise those without one would get no traffic. */
function addHints(distribution: string, endpoints: readonly ApiEndpoint[]): readonly ApiEndpoint[] {
  const byNode = distribution === 'PreferSameNode'
  if (!byNode && distribution !== 'PreferClose' && distribution !== 'PreferSameZone') return endpoints
  const isReady = ({ endpoint }: ApiEndpoint) => getObject(endpoint, 'conditions').ready === true
  const hasPlace = ({ endpoint }: ApiEndpoint) =>
    getString(endpoint, 'zone') !== '' && (!byNode || getString(endpoint, 'nodeName') !== '')
  if (!endpoints.filter(isReady).every(hasPlace)) return endpoints
  return endpoints.map((each) => {
    if (!isReady(each)) return each
    const { zone, nodeName } = each.endpoint
    const hints = { ...(byNode ? { forNodes: [{ name: nodeName }] } : {}), forZones: [{ name: zone }] }
    return { ...each, endpoint: { ...each.endpoint, hints } }
  })
}

/**
 * Endpoints stay in the slice that they are in, and new ones fill slices with room. Empty slices go, but one slice per family remains.
 */
export function planSlices(
  service: Json,
  endpoints: readonly ApiEndpoint[],
  existing: readonly Json[],
): readonly SlicePlan[] {
  return getStrings(specOf(service), 'ipFamilies').flatMap((addressType) => {
    const slices = existing.filter((slice) => getString(slice, 'addressType') === addressType)
    const groups = groupByPorts(endpoints.filter(({ family }) => familyName(family) === addressType))
    const plans = groups.flatMap((group) => planGroup(addressType, group, slices))
    if (plans.length > 0) return plans
    return [{ name: nameOf(slices[0] ?? {}) || undefined, addressType, ports: [], endpoints: [] }]
  })
}

/** All endpoints of a slice have the same ports. */
function groupByPorts(endpoints: readonly ApiEndpoint[]): readonly (readonly ApiEndpoint[])[] {
  const groups = new Map<string, ApiEndpoint[]>()
  for (const each of endpoints) {
    const key = JSON.stringify(each.ports)
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [each])
    else group.push(each)
  }
  return [...groups.values()]
}

interface SliceContent {
  readonly name: string | undefined
  readonly endpoints: Json[]
}

function planGroup(
  addressType: string,
  group: readonly ApiEndpoint[],
  existing: readonly Json[],
): readonly SlicePlan[] {
  const ports = group[0]?.ports ?? []
  const unplaced = new Map(group.map(({ endpoint }) => [identityOf(endpoint), endpoint]))
  const slices = existing
    .filter((slice) => deepEqual(getObjects(slice, 'ports'), ports) || getObjects(slice, 'endpoints').length === 0)
    .map((slice): SliceContent => ({ name: nameOf(slice), endpoints: removePlaced(slice, unplaced) }))
  for (const endpoint of unplaced.values()) {
    let slice = slices.find((each) => each.endpoints.length < maxPerSlice)
    if (slice === undefined) {
      slice = { name: undefined, endpoints: [] }
      slices.push(slice)
    }
    slice.endpoints.push(endpoint)
  }
  return slices
    .filter((slice) => slice.endpoints.length > 0)
    .map(({ name, endpoints }) => ({ name, addressType, ports, endpoints }))
}

/** Returns the endpoints that the slice holds and keeps, and removes them from `unplaced`. */
function removePlaced(slice: Json, unplaced: Map<string, Json>): Json[] {
  const identities = getObjects(slice, 'endpoints').map(identityOf)
  const kept = identities.map((identity) => {
    const endpoint = unplaced.get(identity)
    unplaced.delete(identity)
    return endpoint
  })
  return kept.filter((endpoint) => endpoint !== undefined)
}

const identityOf = (endpoint: Json): string =>
  `${getString(getObject(endpoint, 'targetRef'), 'uid')} ${getStrings(endpoint, 'addresses').join()}`

/** The service's labels, and those that say whose slice it is. */
export function sliceLabels(service: Json): Json {
  const inherited = Object.entries(labelsOf(service)).filter(([key]) => !key.includes(serviceNameLabel))
  return {
    ...Object.fromEntries(inherited),
    [managedBy]: managerName,
    [serviceNameLabel]: nameOf(service),
    ...(isHeadless(specOf(service)) ? { [headlessLabel]: '' } : {}),
  }
}

/** The subsets of the older kind Endpoints, which holds only the first family. */
export function endpointSubsets(service: Json, endpoints: readonly ApiEndpoint[]): readonly Json[] {
  const [first] = getStrings(specOf(service), 'ipFamilies')
  const shown = endpoints.filter(({ endpoint, family }) => {
    const { terminating, ready } = getObject(endpoint, 'conditions')
    return familyName(family) === first && (terminating !== true || ready === true)
  })
  return groupByPorts(shown).map((group) => {
    const isReady = ({ endpoint }: ApiEndpoint) => getObject(endpoint, 'conditions').ready === true
    const addresses = group.filter(isReady).map(toEndpointAddress)
    const notReadyAddresses = group.filter((each) => !isReady(each)).map(toEndpointAddress)
    return {
      ...(addresses.length > 0 ? { addresses } : {}),
      ...(notReadyAddresses.length > 0 ? { notReadyAddresses } : {}),
      ports: (group[0]?.ports ?? []).map(toEndpointPort),
    }
  })
}

function toEndpointAddress({ endpoint }: ApiEndpoint): Json {
  const { hostname, nodeName, targetRef } = endpoint
  return {
    ip: getStrings(endpoint, 'addresses')[0],
    ...(hostname === undefined ? {} : { hostname }),
    ...(nodeName === undefined ? {} : { nodeName }),
    targetRef,
  }
}

const toEndpointPort = ({ name, port, protocol, appProtocol }: Json): Json => ({
  ...(name === '' ? {} : { name }),
  port,
  protocol,
  ...(appProtocol === undefined ? {} : { appProtocol }),
})
