// What is served: each resource with its names, shape, selectable fields, defaults and rules.

import { canonicalIp } from '../../lib/ip.ts'
import { defaultService } from '../requests/service-admission.ts'
import { eventFromCore, eventToCore } from './event-forms.ts'
import type { Problems } from './field-errors.ts'
import { child, copy, isObject, type Json, type MutableJson, mutableCopy, objects, text, whole } from './json.ts'
import * as shapes from './kinds.ts'
import { labelRule, subdomainRule } from './name-rules.ts'
import type { Shape } from './schema.ts'
import { validateEvent, validateNode, validatePod, validateServiceCidr, validateSlice } from './validate-object.ts'
import { validateService } from './validate-service.ts'

export interface ServedResource {
  readonly group: string
  readonly version: string
  /** Plural, as in the path. Two served forms of one stored thing share it. */
  readonly plural: string
  readonly singular: string
  readonly kind: string
  readonly shortNames: readonly string[]
  readonly categories: readonly string[]
  readonly namespaced: boolean
  /** Only the server itself writes it. */
  readonly readOnly: boolean
  /** Has `/status`, and then writes without it leave the status alone. */
  readonly status: 'none' | 'subresource' | 'record'
  /** The spec's generation is counted. */
  readonly generation: boolean
  readonly shape: Shape
  readonly nameRule: (name: string) => string
  readonly fields: Readonly<Record<string, (object: Json) => string>>
  readonly complete: (object: MutableJson) => void
  readonly validate: (object: Json, old: Json | undefined, problems: Problems) => void
  /** Between what is served and what is stored, where these differ. */
  readonly toStored?: (object: Json) => MutableJson
  readonly fromStored?: (object: Json) => MutableJson
}

export const apiVersionOf = ({ group, version }: ServedResource): string =>
  group === '' ? version : `${group}/${version}`

export const metaOf = (object: Json): Json => child(object, 'metadata')
export const nameOf = (object: Json): string => text(metaOf(object), 'name')
export const namespaceOf = (object: Json): string => text(metaOf(object), 'namespace')
export const labelsOf = (object: Json): Json => child(metaOf(object), 'labels')

const plainFields = {
  'metadata.name': nameOf,
  'metadata.namespace': namespaceOf,
}

const at =
  (...path: readonly string[]) =>
  (object: Json): string => {
    let value: unknown = object
    for (const part of path) value = isObject(value) ? value[part] : undefined
    return value === undefined || value === null ? '' : String(value)
  }

const base = {
  group: '',
  version: 'v1',
  shortNames: [],
  categories: [],
  namespaced: true,
  readOnly: false,
  status: 'none',
  generation: false,
  nameRule: subdomainRule,
  fields: plainFields,
  complete: () => {},
  validate: () => {},
} as const

const services: ServedResource = {
  ...base,
  plural: 'services',
  singular: 'service',
  kind: 'Service',
  shortNames: ['svc'],
  categories: ['all'],
  status: 'subresource',
  shape: shapes.service,
  nameRule: labelRule,
  fields: { ...plainFields, 'spec.clusterIP': at('spec', 'clusterIP'), 'spec.type': at('spec', 'type') },
  complete: defaultService,
  validate: validateService,
}

const namespaces: ServedResource = {
  ...base,
  plural: 'namespaces',
  singular: 'namespace',
  kind: 'Namespace',
  shortNames: ['ns'],
  namespaced: false,
  status: 'subresource',
  shape: shapes.namespace,
  nameRule: labelRule,
  fields: { 'metadata.name': nameOf, 'status.phase': at('status', 'phase'), name: nameOf },
  complete(object) {
    const labels = mutableCopy(mutableCopy(object, 'metadata'), 'labels')
    labels['kubernetes.io/metadata.name'] = nameOf(object)
    object.spec = { finalizers: ['kubernetes'] }
    const terminating = metaOf(object).deletionTimestamp !== undefined
    object.status = { ...child(object, 'status'), phase: terminating ? 'Terminating' : 'Active' }
  },
}

const nodes: ServedResource = {
  ...base,
  plural: 'nodes',
  singular: 'node',
  kind: 'Node',
  shortNames: ['no'],
  namespaced: false,
  status: 'record',
  shape: shapes.node,
  fields: { 'metadata.name': nameOf, 'spec.unschedulable': (node) => at('spec', 'unschedulable')(node) || 'false' },
  complete(object) {
    const spec = mutableCopy(object, 'spec')
    const cidrs = Array.isArray(spec.podCIDRs) ? spec.podCIDRs : []
    if (cidrs.length === 0 && text(spec, 'podCIDR') !== '') spec.podCIDRs = [spec.podCIDR]
    else if (cidrs.length > 0) spec.podCIDR = cidrs[0]
    mutableCopy(object, 'status')
  },
  validate: (object, _, problems) => validateNode(object, problems),
}

const pods: ServedResource = {
  ...base,
  plural: 'pods',
  singular: 'pod',
  kind: 'Pod',
  shortNames: ['po'],
  categories: ['all'],
  status: 'record',
  shape: shapes.pod,
  fields: {
    ...plainFields,
    'spec.nodeName': at('spec', 'nodeName'),
    'spec.restartPolicy': at('spec', 'restartPolicy'),
    'spec.schedulerName': at('spec', 'schedulerName'),
    'spec.serviceAccountName': at('spec', 'serviceAccountName'),
    'spec.hostNetwork': (pod) => at('spec', 'hostNetwork')(pod) || 'false',
    'status.phase': at('status', 'phase'),
    'status.podIP': at('status', 'podIP'),
    'status.nominatedNodeName': at('status', 'nominatedNodeName'),
  },
  complete: completePod,
  validate: validatePod,
}

/** A record with an address runs and is ready, unless it says otherwise. */
function completePod(pod: MutableJson): void {
  const spec = mutableCopy(pod, 'spec')
  spec.restartPolicy ??= 'Always'
  spec.terminationGracePeriodSeconds ??= 30
  for (const container of objects(spec, 'containers') as MutableJson[]) {
    for (const port of objects(container, 'ports') as MutableJson[]) port.protocol ??= 'TCP'
  }
  const status = mutableCopy(pod, 'status')
  const listed = objects(status, 'podIPs').map((entry) => text(entry, 'ip'))
  const first = text(status, 'podIP')
  if (listed.length === 0 && first !== '') status.podIPs = [{ ip: canonicalIp(first) ?? first }]
  else if (listed.length > 0 && first !== listed[0]) {
    // Whoever writes only the single address means that one.
    if (first === '') status.podIP = listed[0]
    else status.podIPs = [{ ip: first }, ...listed.slice(1).map((ip) => ({ ip }))]
  }
  const hasAddress = text(status, 'podIP') !== ''
  status.phase ??= hasAddress ? 'Running' : 'Pending'
  if (hasAddress && !objects(status, 'conditions').some((condition) => condition.type === 'Ready')) {
    status.conditions = [...objects(status, 'conditions'), { type: 'Ready', status: 'True' }]
  }
}

const endpoints: ServedResource = {
  ...base,
  plural: 'endpoints',
  singular: 'endpoints',
  kind: 'Endpoints',
  shortNames: ['ep'],
  readOnly: true,
  shape: shapes.endpoints,
}

const eventFields = {
  ...plainFields,
  'involvedObject.kind': at('involvedObject', 'kind'),
  'involvedObject.namespace': at('involvedObject', 'namespace'),
  'involvedObject.name': at('involvedObject', 'name'),
  'involvedObject.uid': at('involvedObject', 'uid'),
  'involvedObject.apiVersion': at('involvedObject', 'apiVersion'),
  'involvedObject.resourceVersion': at('involvedObject', 'resourceVersion'),
  'involvedObject.fieldPath': at('involvedObject', 'fieldPath'),
  reason: at('reason'),
  reportingComponent: at('reportingComponent'),
  source: (event: Json) => at('source', 'component')(event) || at('reportingComponent')(event),
  type: at('type'),
}

const events: ServedResource = {
  ...base,
  plural: 'events',
  singular: 'event',
  kind: 'Event',
  shortNames: ['ev'],
  shape: shapes.event,
  fields: eventFields,
  complete(event) {
    mutableCopy(event, 'involvedObject')
    mutableCopy(event, 'source')
  },
  validate: (event, _, problems) => validateEvent(event, problems),
}

const newEvents: ServedResource = {
  ...events,
  group: 'events.k8s.io',
  shape: shapes.newEvent,
  fields: Object.fromEntries(
    Object.entries(eventFields).map(([name, read]) => [
      name.replace('involvedObject', 'regarding').replace('reportingComponent', 'reportingController'),
      read,
    ]),
  ),
  toStored: eventToCore,
  fromStored: eventFromCore,
}

const endpointSlices: ServedResource = {
  ...base,
  group: 'discovery.k8s.io',
  plural: 'endpointslices',
  singular: 'endpointslice',
  kind: 'EndpointSlice',
  generation: true,
  shape: shapes.endpointSlice,
  complete(slice) {
    if (!Array.isArray(slice.endpoints)) slice.endpoints = []
    for (const endpoint of objects(slice, 'endpoints') as MutableJson[]) mutableCopy(endpoint, 'conditions')
    for (const port of objects(slice, 'ports') as MutableJson[]) {
      port.name ??= ''
      port.protocol ??= 'TCP'
    }
  },
  validate: validateSlice,
}

const serviceCidrs: ServedResource = {
  ...base,
  group: 'networking.k8s.io',
  plural: 'servicecidrs',
  singular: 'servicecidr',
  kind: 'ServiceCIDR',
  namespaced: false,
  status: 'subresource',
  shape: shapes.serviceCidr,
  fields: { 'metadata.name': nameOf },
  validate: validateServiceCidr,
}

export const resources: readonly ServedResource[] = [
  namespaces,
  services,
  endpoints,
  nodes,
  pods,
  events,
  newEvents,
  endpointSlices,
  serviceCidrs,
]

/** One word for a stored kind: `services`. */
export const named = (plural: string): ServedResource => {
  const found = resources.find((resource) => resource.plural === plural)
  if (found === undefined) throw new Error(`no resource ${plural}`)
  return found
}

export const findResource = (group: string, version: string, plural: string): ServedResource | undefined =>
  resources.find((each) => each.group === group && each.version === version && each.plural === plural)

export const findKind = (apiVersion: string, kind: string): ServedResource | undefined =>
  resources.find((each) => each.kind === kind && apiVersionOf(each) === apiVersion)

/** Reads fields for a selector; events are selected in their stored form. */
export const fieldReader =
  (resource: ServedResource, object: Json) =>
  (field: string): string =>
    resource.fields[field]?.(object) ?? ''

/** As it is given to clients. */
export const served = (resource: ServedResource, object: Json): Json => resource.fromStored?.(object) ?? object
export const stored = (resource: ServedResource, object: Json): MutableJson =>
  resource.toStored?.(object) ?? (copy(object) as MutableJson)

export const graceOf = (pod: Json): number => whole(child(pod, 'spec'), 'terminationGracePeriodSeconds')
