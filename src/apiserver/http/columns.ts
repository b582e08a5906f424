// The columns that `kubectl get` shows, per kind, with the cells of an object. Pure.

import { child, type Json, objects, text, texts, whole } from '../schema/json.ts'
import { labelsOf, metaOf, nameOf } from '../schema/served-resources.ts'

export interface Column {
  readonly name: string
  readonly format?: 'name'
  /** Only with `-o wide`. */
  readonly wide?: boolean
  readonly cell: (object: Json, now: number) => string | number
}

const none = '<none>'
const orNone = (value: string): string => (value === '' ? none : value)
const name: Column = { name: 'Name', format: 'name', cell: nameOf }
const age: Column = { name: 'Age', cell: (object, now) => since(text(metaOf(object), 'creationTimestamp'), now) }

/** How long ago, in the two units that matter, as kubectl writes it. */
export function since(time: string, now: number): string {
  const then = Date.parse(time)
  if (Number.isNaN(then)) return '<unknown>'
  const seconds = Math.floor((now - then) / 1000)
  if (seconds < -1) return '<invalid>'
  if (seconds < 120) return `${Math.max(0, seconds)}s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 10) return two(minutes, 'm', seconds % 60, 's')
  if (minutes < 180) return `${minutes}m`
  const hours = Math.floor(minutes / 60)
  if (hours < 8) return two(hours, 'h', minutes % 60, 'm')
  if (hours < 48) return `${hours}h`
  const days = Math.floor(hours / 24)
  if (hours < 192) return two(days, 'd', hours % 24, 'h')
  if (days < 730) return `${days}d`
  const years = Math.floor(days / 365)
  return years < 8 ? two(years, 'y', days % 365, 'd') : `${years}y`
}

const two = (a: number, unit: string, b: number, smaller: string): string =>
  b === 0 ? `${a}${unit}` : `${a}${unit}${b}${smaller}`

const formatLabels = (labels: Json): string =>
  orNone(
    Object.keys(labels)
      .sort()
      .map((key) => `${key}=${String(labels[key])}`)
      .join(','),
  )

const spec = (object: Json): Json => child(object, 'spec')
const status = (object: Json): Json => child(object, 'status')

function externalIp(service: Json): string {
  const listed = texts(spec(service), 'externalIPs')
  switch (spec(service).type) {
    case 'ExternalName':
      return text(spec(service), 'externalName')
    case 'LoadBalancer': {
      const ingress = objects(child(status(service), 'loadBalancer'), 'ingress')
      const all = [...ingress.map((each) => text(each, 'ip') || text(each, 'hostname')), ...listed]
      return all.length === 0 ? '<pending>' : all.join(',')
    }
    default:
      return orNone(listed.join(','))
  }
}

const servicePorts = (service: Json): string =>
  orNone(
    objects(spec(service), 'ports')
      .map((port) => {
        const node = whole(port, 'nodePort')
        return `${whole(port, 'port')}${node > 0 ? `:${node}` : ''}/${text(port, 'protocol')}`
      })
      .join(','),
  )

const services: readonly Column[] = [
  name,
  { name: 'Type', cell: (service) => text(spec(service), 'type') },
  { name: 'Cluster-IP', cell: (service) => orNone(text(spec(service), 'clusterIP')) },
  { name: 'External-IP', cell: externalIp },
  { name: 'Port(s)', cell: servicePorts },
  age,
  { name: 'Selector', wide: true, cell: (service) => formatLabels(child(spec(service), 'selector')) },
]

const namespaces: readonly Column[] = [name, { name: 'Status', cell: (each) => text(status(each), 'phase') }, age]

const rolePrefix = 'node-role.kubernetes.io/'

function nodeStatus(node: Json): string {
  const ready = objects(status(node), 'conditions').find((condition) => condition.type === 'Ready')
  const state = ready === undefined ? 'Unknown' : ready.status === 'True' ? 'Ready' : 'NotReady'
  return spec(node).unschedulable === true ? `${state},SchedulingDisabled` : state
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
  const found = objects(status(node), 'addresses').find((address) => address.type === type)
  return orNone(text(found, 'address'))
}
const nodeInfo = (field: string) => (node: Json) => text(child(status(node), 'nodeInfo'), field) || '<unknown>'

const nodes: readonly Column[] = [
  name,
  { name: 'Status', cell: nodeStatus },
  { name: 'Roles', cell: nodeRoles },
  age,
  { name: 'Version', cell: (node) => text(child(status(node), 'nodeInfo'), 'kubeletVersion') },
  { name: 'Internal-IP', wide: true, cell: nodeAddress('InternalIP') },
  { name: 'External-IP', wide: true, cell: nodeAddress('ExternalIP') },
  { name: 'OS-Image', wide: true, cell: nodeInfo('osImage') },
  { name: 'Kernel-Version', wide: true, cell: nodeInfo('kernelVersion') },
  { name: 'Container-Runtime', wide: true, cell: nodeInfo('containerRuntimeVersion') },
]

export const podReady = (pod: Json): boolean =>
  objects(status(pod), 'conditions').some((condition) => condition.type === 'Ready' && condition.status === 'True')

/** Records have no container statuses, so the pod's own readiness stands for all of its containers. */
function podReadiness(pod: Json): string {
  const statuses = objects(status(pod), 'containerStatuses')
  const count = Math.max(1, objects(spec(pod), 'containers').length)
  if (statuses.length > 0) return `${statuses.filter((each) => each.ready === true).length}/${count}`
  return `${podReady(pod) ? count : 0}/${count}`
}

function podStatus(pod: Json): string {
  if (metaOf(pod).deletionTimestamp !== undefined) return 'Terminating'
  return text(status(pod), 'reason') || text(status(pod), 'phase')
}

const restarts = (pod: Json): string =>
  String(objects(status(pod), 'containerStatuses').reduce((sum, each) => sum + whole(each, 'restartCount'), 0))

const pods: readonly Column[] = [
  name,
  { name: 'Ready', cell: podReadiness },
  { name: 'Status', cell: podStatus },
  { name: 'Restarts', cell: restarts },
  age,
  { name: 'IP', wide: true, cell: (pod) => orNone(text(status(pod), 'podIP')) },
  { name: 'Node', wide: true, cell: (pod) => orNone(text(spec(pod), 'nodeName')) },
  { name: 'Nominated Node', wide: true, cell: (pod) => orNone(text(status(pod), 'nominatedNodeName')) },
  { name: 'Readiness Gates', wide: true, cell: readinessGates },
]

function readinessGates(pod: Json): string {
  const gates = objects(spec(pod), 'readinessGates').map((gate) => gate.conditionType)
  if (gates.length === 0) return none
  const met = objects(status(pod), 'conditions').filter((each) => gates.includes(each.type) && each.status === 'True')
  return `${met.length}/${gates.length}`
}

/** The first three, and how many more. */
function abridge(values: readonly string[], empty: string): string {
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
      abridge(
        objects(each, 'subsets').flatMap((subset) => {
          const ips = objects(subset, 'addresses').map((address) => text(address, 'ip'))
          const ports = objects(subset, 'ports')
          if (ports.length === 0) return ips
          return ports.flatMap((port) => ips.map((ip) => hostPort(ip, whole(port, 'port'))))
        }),
        none,
      ),
  },
  age,
]

const endpointSlices: readonly Column[] = [
  name,
  { name: 'AddressType', cell: (slice) => text(slice, 'addressType') },
  {
    name: 'Ports',
    cell: (slice) =>
      abridge(
        objects(slice, 'ports').map((port) => (port.port === undefined ? '*' : String(port.port))),
        '<unset>',
      ),
  },
  {
    name: 'Endpoints',
    cell: (slice) =>
      abridge(
        objects(slice, 'endpoints').flatMap((endpoint) => texts(endpoint, 'addresses')),
        '<unset>',
      ),
  },
  age,
]

const serviceCidrs: readonly Column[] = [
  name,
  { name: 'CIDRs', cell: (each) => texts(spec(each), 'cidrs').join(',') },
  age,
]

/** Events of either form, as stored. */
const seen = (event: Json, first: boolean): string => {
  const old = text(event, first ? 'firstTimestamp' : 'lastTimestamp')
  if (old !== '') return old
  const last = text(child(event, 'series'), 'lastObservedTime')
  return (!first && last) || text(event, 'eventTime')
}

const events: readonly Column[] = [
  { name: 'Last Seen', cell: (event, now) => since(seen(event, false), now) },
  { name: 'Type', cell: (event) => text(event, 'type') },
  { name: 'Reason', cell: (event) => text(event, 'reason') },
  {
    name: 'Object',
    cell: (event) => {
      const about = child(event, 'involvedObject')
      return `${text(about, 'kind').toLowerCase()}/${text(about, 'name')}`
    },
  },
  { name: 'Subobject', wide: true, cell: (event) => text(child(event, 'involvedObject'), 'fieldPath') },
  {
    name: 'Source',
    wide: true,
    cell: (event) => {
      const source = child(event, 'source')
      const component = text(source, 'component') || text(event, 'reportingComponent')
      const host = text(source, 'host') || text(event, 'reportingInstance')
      return [component, host].filter((part) => part !== '').join(', ')
    },
  },
  { name: 'Message', cell: (event) => text(event, 'message').trim() },
  { name: 'First Seen', wide: true, cell: (event, now) => since(seen(event, true), now) },
  {
    name: 'Count',
    wide: true,
    cell: (event) => whole(child(event, 'series'), 'count') || whole(event, 'count') || 1,
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
