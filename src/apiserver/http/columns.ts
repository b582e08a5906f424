// The columns that `kubectl get` shows for each kind, and the cells of an object in them. Pure.

import { getNumber, getObject, getObjects, getString, getStrings, type Json } from '../schema/json.ts'
import { isTerminating, labelsOf, metadataOf, nameOf } from '../schema/object-metadata.ts'
import { isPodReady } from '../schema/pod-status.ts'

export interface Column {
  readonly name: string
  readonly format?: 'name'
  /** True for columns that only `-o wide` shows. */
  readonly wide?: boolean
  readonly cell: (object: Json, now: number) => string | number
}

const none = '<none>'
const orNone = (value: string): string => (value === '' ? none : value)
const name: Column = { name: 'Name', format: 'name', cell: nameOf }
const age: Column = {
  name: 'Age',
  cell: (object, now) => formatAge(getString(metadataOf(object), 'creationTimestamp'), now),
}

/** The age in kubectl's form: at most two units, such as `5m3s`. */
function formatAge(time: string, now: number): string {
  const then = Date.parse(time)
  if (Number.isNaN(then)) return '<unknown>'
  const seconds = Math.floor((now - then) / 1000)
  if (seconds < -1) return '<invalid>'
  if (seconds < 120) return `${Math.max(0, seconds)}s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 10) return formatTwoUnits(minutes, 'm', seconds % 60, 's')
  if (minutes < 180) return `${minutes}m`
  const hours = Math.floor(minutes / 60)
  if (hours < 8) return formatTwoUnits(hours, 'h', minutes % 60, 'm')
  if (hours < 48) return `${hours}h`
  const days = Math.floor(hours / 24)
  if (hours < 192) return formatTwoUnits(days, 'd', hours % 24, 'h')
  if (days < 730) return `${days}d`
  const years = Math.floor(days / 365)
  return years < 8 ? formatTwoUnits(years, 'y', days % 365, 'd') : `${years}y`
}

const formatTwoUnits = (a: number, unit: string, b: number, smaller: string): string =>
  b === 0 ? `${a}${unit}` : `${a}${unit}${b}${smaller}`

const formatLabels = (labels: Json): string =>
  orNone(
    Object.keys(labels)
      .sort()
      .map((key) => `${key}=${String(labels[key])}`)
      .join(','),
  )

const specOf = (object: Json): Json => getObject(object, 'spec')
const statusOf = (object: Json): Json => getObject(object, 'status')

function externalIp(service: Json): string {
  const listed = getStrings(specOf(service), 'externalIPs')
  switch (specOf(service).type) {
    case 'ExternalName':
      return getString(specOf(service), 'externalName')
    case 'LoadBalancer': {
      const ingress = getObjects(getObject(statusOf(service), 'loadBalancer'), 'ingress')
      const all = [...ingress.map((each) => getString(each, 'ip') || getString(each, 'hostname')), ...listed]
      return all.length === 0 ? '<pending>' : all.join(',')
    }
    default:
      return orNone(listed.join(','))
  }
}

const servicePorts = (service: Json): string =>
  orNone(
    getObjects(specOf(service), 'ports')
      .map((port) => {
        const node = getNumber(port, 'nodePort')
        return `${getNumber(port, 'port')}${node > 0 ? `:${node}` : ''}/${getString(port, 'protocol')}`
      })
      .join(','),
  )

const services: readonly Column[] = [
  name,
  { name: 'Type', cell: (service) => getString(specOf(service), 'type') },
  { name: 'Cluster-IP', cell: (service) => orNone(getString(specOf(service), 'clusterIP')) },
  { name: 'External-IP', cell: externalIp },
  { name: 'Port(s)', cell: servicePorts },
  age,
  { name: 'Selector', wide: true, cell: (service) => formatLabels(getObject(specOf(service), 'selector')) },
]

const namespaces: readonly Column[] = [
  name,
  { name: 'Status', cell: (each) => getString(statusOf(each), 'phase') },
  age,
]

const rolePrefix = 'node-role.kubernetes.io/'

function nodeReadiness(node: Json): string {
  const ready = getObjects(statusOf(node), 'conditions').find((condition) => condition.type === 'Ready')
  if (ready === undefined) return 'Unknown'
  return ready.status === 'True' ? 'Ready' : 'NotReady'
}

function nodeStatus(node: Json): string {
  const readiness = nodeReadiness(node)
  return specOf(node).unschedulable === true ? `${readiness},SchedulingDisabled` : readiness
}

function nodeRoles(node: Json): string {
  const roles = Object.entries(labelsOf(node)).flatMap(([key, value]) => {
    if (key.startsWith(rolePrefix)) return key.slice(rolePrefix.length)
    return key === 'kubernetes.io/role' ? String(value) : []
  })
  return orNone(
    roles
      .filter((role) => role !== '')
      .sort()
      .join(','),
  )
}

const nodeAddress = (type: string) => (node: Json) => {
  const found = getObjects(statusOf(node), 'addresses').find((address) => address.type === type)
  return orNone(getString(found, 'address'))
}
const nodeInfo = (field: string) => (node: Json) =>
  getString(getObject(statusOf(node), 'nodeInfo'), field) || '<unknown>'

const nodes: readonly Column[] = [
  name,
  { name: 'Status', cell: nodeStatus },
  { name: 'Roles', cell: nodeRoles },
  age,
  { name: 'Version', cell: (node) => getString(getObject(statusOf(node), 'nodeInfo'), 'kubeletVersion') },
  { name: 'Internal-IP', wide: true, cell: nodeAddress('InternalIP') },
  { name: 'External-IP', wide: true, cell: nodeAddress('ExternalIP') },
  { name: 'OS-Image', wide: true, cell: nodeInfo('osImage') },
  { name: 'Kernel-Version', wide: true, cell: nodeInfo('kernelVersion') },
  { name: 'Container-Runtime', wide: true, cell: nodeInfo('containerRuntimeVersion') },
]

/** A record has no container statuses; then all its containers count as ready if the pod is ready. */
function podReadiness(pod: Json): string {
  const statuses = getObjects(statusOf(pod), 'containerStatuses')
  const count = Math.max(1, getObjects(specOf(pod), 'containers').length)
  if (statuses.length > 0) return `${statuses.filter((each) => each.ready === true).length}/${count}`
  return `${isPodReady(pod) ? count : 0}/${count}`
}

function podStatus(pod: Json): string {
  if (isTerminating(pod)) return 'Terminating'
  return getString(statusOf(pod), 'reason') || getString(statusOf(pod), 'phase')
}

const restarts = (pod: Json): string =>
  String(getObjects(statusOf(pod), 'containerStatuses').reduce((sum, each) => sum + getNumber(each, 'restartCount'), 0))

const pods: readonly Column[] = [
  name,
  { name: 'Ready', cell: podReadiness },
  { name: 'Status', cell: podStatus },
  { name: 'Restarts', cell: restarts },
  age,
  { name: 'IP', wide: true, cell: (pod) => orNone(getString(statusOf(pod), 'podIP')) },
  { name: 'Node', wide: true, cell: (pod) => orNone(getString(specOf(pod), 'nodeName')) },
  { name: 'Nominated Node', wide: true, cell: (pod) => orNone(getString(statusOf(pod), 'nominatedNodeName')) },
  { name: 'Readiness Gates', wide: true, cell: readinessGates },
]

function readinessGates(pod: Json): string {
  const gates = getObjects(specOf(pod), 'readinessGates').map((gate) => gate.conditionType)
  if (gates.length === 0) return none
  const met = getObjects(statusOf(pod), 'conditions').filter(
    (each) => gates.includes(each.type) && each.status === 'True',
  )
  return `${met.length}/${gates.length}`
}

/** The first three values, and the number of the others. */
function shorten(values: readonly string[], empty: string): string {
  if (values.length === 0) return empty
  const shown = values.slice(0, 3).join(',')
  return values.length > 3 ? `${shown} + ${values.length - 3} more...` : shown
}

const hostPort = (ip: string, port: number): string => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`)

const endpoints: readonly Column[] = [
  name,
  {
    name: 'Endpoints',
    cell: (each) =>
      shorten(
        getObjects(each, 'subsets').flatMap((subset) => {
          const ips = getObjects(subset, 'addresses').map((address) => getString(address, 'ip'))
          const ports = getObjects(subset, 'ports')
          if (ports.length === 0) return ips
          return ports.flatMap((port) => ips.map((ip) => hostPort(ip, getNumber(port, 'port'))))
        }),
        none,
      ),
  },
  age,
]

const endpointSlices: readonly Column[] = [
  name,
  { name: 'AddressType', cell: (slice) => getString(slice, 'addressType') },
  {
    name: 'Ports',
    cell: (slice) =>
      shorten(
        getObjects(slice, 'ports').map((port) => (port.port === undefined ? '*' : String(port.port))),
        '<unset>',
      ),
  },
  {
    name: 'Endpoints',
    cell: (slice) =>
      shorten(
        getObjects(slice, 'endpoints').flatMap((endpoint) => getStrings(endpoint, 'addresses')),
        '<unset>',
      ),
  },
  age,
]

const serviceCidrs: readonly Column[] = [
  name,
  { name: 'CIDRs', cell: (each) => getStrings(specOf(each), 'cidrs').join(',') },
  age,
]

/** core/v1 events have timestamps; those of events.k8s.io/v1 have a time and a series. */
const firstSeen = (event: Json): string => getString(event, 'firstTimestamp') || getString(event, 'eventTime')
const lastSeen = (event: Json): string =>
  getString(event, 'lastTimestamp') ||
  getString(getObject(event, 'series'), 'lastObservedTime') ||
  getString(event, 'eventTime')

const events: readonly Column[] = [
  { name: 'Last Seen', cell: (event, now) => formatAge(lastSeen(event), now) },
  { name: 'Type', cell: (event) => getString(event, 'type') },
  { name: 'Reason', cell: (event) => getString(event, 'reason') },
  {
    name: 'Object',
    cell: (event) => {
      const about = getObject(event, 'involvedObject')
      return `${getString(about, 'kind').toLowerCase()}/${getString(about, 'name')}`
    },
  },
  { name: 'Subobject', wide: true, cell: (event) => getString(getObject(event, 'involvedObject'), 'fieldPath') },
  {
    name: 'Source',
    wide: true,
    cell: (event) => {
      const source = getObject(event, 'source')
      const component = getString(source, 'component') || getString(event, 'reportingComponent')
      const host = getString(source, 'host') || getString(event, 'reportingInstance')
      return [component, host].filter((part) => part !== '').join(', ')
    },
  },
  { name: 'Message', cell: (event) => getString(event, 'message').trim() },
  { name: 'First Seen', wide: true, cell: (event, now) => formatAge(firstSeen(event), now) },
  {
    name: 'Count',
    wide: true,
    cell: (event) => getNumber(getObject(event, 'series'), 'count') || getNumber(event, 'count') || 1,
  },
  { ...name, wide: true },
]

const byResource: Readonly<Record<string, readonly Column[]>> = {
  services,
  namespaces,
  nodes,
  pods,
  endpoints,
  endpointslices: endpointSlices,
  servicecidrs: serviceCidrs,
  events,
}

export const columnsOf = (plural: string): readonly Column[] => byResource[plural] ?? [name, age]
