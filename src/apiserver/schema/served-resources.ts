// The table of served resources: names, schema, selectable fields, defaults and validation of each. Pure.

import { canonicalIp } from '../../lib/ip.ts'
import { eventFromCore, eventToCore } from './event-forms.ts'
import type { FieldErrors } from './field-errors.ts'
import {
  ensureObject,
  getMutableObjects,
  getNumber,
  getObject,
  getObjects,
  getString,
  isObject,
  type Json,
  type MutableJson,
  mutableCopy,
} from './json.ts'
import * as kinds from './kinds.ts'
import { labelRule, subdomainRule } from './name-rules.ts'
import { isTerminating, nameOf, namespaceOf } from './object-metadata.ts'
import type { ObjectSchema } from './schema.ts'
import { setServiceDefaults } from './service-defaults.ts'
import {
  validateEndpointSlice,
  validateEvent,
  validateNode,
  validatePod,
  validateServiceCidr,
} from './validate-object.ts'
import { validateService } from './validate-service.ts'
import { serviceWarnings, sliceWarnings } from './warnings.ts'

export interface ServedResource {
  readonly group: string
  readonly version: string
  /** The plural, as in the path. Two served forms of one stored kind share it. */
  readonly plural: string
  readonly singular: string
  readonly kind: string
  readonly shortNames: readonly string[]
  readonly categories: readonly string[]
  readonly namespaced: boolean
  /** True if only the server itself writes objects of this kind. */
  readonly readOnly: boolean
  /**
   * `subresource`: the status changes only through `/status`. `record`: through `/status` and through writes of the whole object.
   */
  readonly status: 'none' | 'subresource' | 'record'
  /** True if `metadata.generation` counts the changes of the spec. */
  readonly generation: boolean
  readonly schema: ObjectSchema
  readonly nameRule: (name: string) => string
  /** The fields that a field selector may name. */
  readonly fields: Readonly<Record<string, (object: Json) => string>>
  readonly setDefaults: (object: MutableJson) => void
  readonly validate: (object: Json, old: Json | undefined, errors: FieldErrors) => void
  /** Warnings about fields that the server accepts and that do not do what one might think. */
  readonly warnings: (object: Json) => readonly string[]
  /** Conversions between the served and the stored form, where these differ. */
  readonly toStored?: (object: Json) => MutableJson
  readonly fromStored?: (object: Json) => MutableJson
}

export const apiVersionOf = ({ group, version }: ServedResource): string =>
  group === '' ? version : `${group}/${version}`

const metadataFields = {
  'metadata.name': nameOf,
  'metadata.namespace': namespaceOf,
}

const readPath =
  (...path: readonly string[]) =>
  (object: Json): string => {
    let value: unknown = object
    for (const part of path) value = isObject(value) ? value[part] : undefined
    return value === undefined || value === null ? '' : String(value)
  }

const defaults = {
  group: '',
  version: 'v1',
  shortNames: [],
  categories: [],
  namespaced: true,
  readOnly: false,
  status: 'none',
  generation: false,
  nameRule: subdomainRule,
  fields: metadataFields,
  setDefaults: () => {},
  validate: () => {},
  warnings: () => [],
} as const

const services: ServedResource = {
  ...defaults,
  plural: 'services',
  singular: 'service',
  kind: 'Service',
  shortNames: ['svc'],
  categories: ['all'],
  status: 'subresource',
  schema: kinds.service,
  nameRule: labelRule,
  fields: { ...metadataFields, 'spec.clusterIP': readPath('spec', 'clusterIP'), 'spec.type': readPath('spec', 'type') },
  setDefaults: setServiceDefaults,
  validate: validateService,
  warnings: serviceWarnings,
}

const namespaces: ServedResource = {
  ...defaults,
  plural: 'namespaces',
  singular: 'namespace',
  kind: 'Namespace',
  shortNames: ['ns'],
  namespaced: false,
  status: 'subresource',
  schema: kinds.namespace,
  nameRule: labelRule,
  fields: { 'metadata.name': nameOf, 'status.phase': readPath('status', 'phase'), name: nameOf },
  setDefaults(object) {
    const labels = ensureObject(ensureObject(object, 'metadata'), 'labels')
    labels['kubernetes.io/metadata.name'] = nameOf(object)
    object.spec = { finalizers: ['kubernetes'] }
    object.status = { ...getObject(object, 'status'), phase: isTerminating(object) ? 'Terminating' : 'Active' }
  },
}

const nodes: ServedResource = {
  ...defaults,
  plural: 'nodes',
  singular: 'node',
  kind: 'Node',
  shortNames: ['no'],
  namespaced: false,
  status: 'record',
  schema: kinds.node,
  fields: {
    'metadata.name': nameOf,
    'spec.unschedulable': (node) => readPath('spec', 'unschedulable')(node) || 'false',
  },
  setDefaults(object) {
    const spec = ensureObject(object, 'spec')
    const cidrs = Array.isArray(spec.podCIDRs) ? spec.podCIDRs : []
    if (cidrs.length === 0 && getString(spec, 'podCIDR') !== '') spec.podCIDRs = [spec.podCIDR]
    else if (cidrs.length > 0) spec.podCIDR = cidrs[0]
    ensureObject(object, 'status')
  },
  validate: (object, _, errors) => validateNode(object, errors),
}

const pods: ServedResource = {
  ...defaults,
  plural: 'pods',
  singular: 'pod',
  kind: 'Pod',
  shortNames: ['po'],
  categories: ['all'],
  status: 'record',
  schema: kinds.pod,
  fields: {
    ...metadataFields,
    'spec.nodeName': readPath('spec', 'nodeName'),
    'spec.restartPolicy': readPath('spec', 'restartPolicy'),
    'spec.schedulerName': readPath('spec', 'schedulerName'),
    'spec.serviceAccountName': readPath('spec', 'serviceAccountName'),
    'spec.hostNetwork': (pod) => readPath('spec', 'hostNetwork')(pod) || 'false',
    'status.phase': readPath('status', 'phase'),
    'status.podIP': readPath('status', 'podIP'),
    'status.nominatedNodeName': readPath('status', 'nominatedNodeName'),
  },
  setDefaults: setPodDefaults,
  validate: validatePod,
}

/** A record with an address counts as running and ready, unless its status says otherwise. */
function setPodDefaults(pod: MutableJson): void {
  const spec = ensureObject(pod, 'spec')
  spec.restartPolicy ??= 'Always'
  spec.terminationGracePeriodSeconds ??= 30
  for (const container of getMutableObjects(spec, 'containers')) {
    for (const port of getMutableObjects(container, 'ports')) port.protocol ??= 'TCP'
  }
  const status = ensureObject(pod, 'status')
  alignPodIps(status)
  const hasAddress = getString(status, 'podIP') !== ''
  status.phase ??= hasAddress ? 'Running' : 'Pending'
  const conditions = getObjects(status, 'conditions')
  if (hasAddress && !conditions.some((condition) => condition.type === 'Ready')) {
    status.conditions = [...conditions, { type: 'Ready', status: 'True' }]
  }
}

/** `podIP` is the first of `podIPs`. */
function alignPodIps(status: MutableJson): void {
  const listed = getObjects(status, 'podIPs').map((entry) => getString(entry, 'ip'))
  const single = getString(status, 'podIP')
  if (listed.length === 0) {
    if (single !== '') status.podIPs = [{ ip: canonicalIp(single) ?? single }]
  } else if (single === '') {
    status.podIP = listed[0]
  } else if (single !== listed[0]) {
    // A writer that changed only `podIP` means that address.
    status.podIPs = [{ ip: single }, ...listed.slice(1).map((ip) => ({ ip }))]
  }
}

const endpoints: ServedResource = {
  ...defaults,
  plural: 'endpoints',
  singular: 'endpoints',
  kind: 'Endpoints',
  shortNames: ['ep'],
  readOnly: true,
  schema: kinds.endpoints,
}

const eventFields = {
  ...metadataFields,
  'involvedObject.kind': readPath('involvedObject', 'kind'),
  'involvedObject.namespace': readPath('involvedObject', 'namespace'),
  'involvedObject.name': readPath('involvedObject', 'name'),
  'involvedObject.uid': readPath('involvedObject', 'uid'),
  'involvedObject.apiVersion': readPath('involvedObject', 'apiVersion'),
  'involvedObject.resourceVersion': readPath('involvedObject', 'resourceVersion'),
  'involvedObject.fieldPath': readPath('involvedObject', 'fieldPath'),
  reason: readPath('reason'),
  reportingComponent: readPath('reportingComponent'),
  source: (event: Json) => readPath('source', 'component')(event) || readPath('reportingComponent')(event),
  type: readPath('type'),
}

const events: ServedResource = {
  ...defaults,
  plural: 'events',
  singular: 'event',
  kind: 'Event',
  shortNames: ['ev'],
  schema: kinds.event,
  fields: eventFields,
  setDefaults(event) {
    ensureObject(event, 'involvedObject')
    ensureObject(event, 'source')
  },
  validate: (event, _, errors) => validateEvent(event, errors),
}

const newEvents: ServedResource = {
  ...events,
  group: 'events.k8s.io',
  schema: kinds.newEvent,
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
  ...defaults,
  group: 'discovery.k8s.io',
  plural: 'endpointslices',
  singular: 'endpointslice',
  kind: 'EndpointSlice',
  generation: true,
  schema: kinds.endpointSlice,
  setDefaults(slice) {
    if (!Array.isArray(slice.endpoints)) slice.endpoints = []
    for (const endpoint of getMutableObjects(slice, 'endpoints')) ensureObject(endpoint, 'conditions')
    for (const port of getMutableObjects(slice, 'ports')) {
      port.name ??= ''
      port.protocol ??= 'TCP'
    }
  },
  validate: validateEndpointSlice,
  warnings: sliceWarnings,
}

const serviceCidrs: ServedResource = {
  ...defaults,
  group: 'networking.k8s.io',
  plural: 'servicecidrs',
  singular: 'servicecidr',
  kind: 'ServiceCIDR',
  namespaced: false,
  status: 'subresource',
  schema: kinds.serviceCidr,
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

/** The resource of a plural: `services`. If two forms share it, the stored one. */
export const getResource = (plural: string): ServedResource => {
  const found = resources.find((resource) => resource.plural === plural)
  if (found === undefined) throw new Error(`there is no resource ${plural}`)
  return found
}

export const findResource = (group: string, version: string, plural: string): ServedResource | undefined =>
  resources.find((each) => each.group === group && each.version === version && each.plural === plural)

export const findKind = (apiVersion: string, kind: string): ServedResource | undefined =>
  resources.find((each) => each.kind === kind && apiVersionOf(each) === apiVersion)

/** Returns a reader of the fields that a selector names. Selectors apply to the stored form of events. */
export const selectableFields =
  (resource: ServedResource, object: Json) =>
  (field: string): string =>
    resource.fields[field]?.(object) ?? ''

/** The form that clients see. */
export const toServedForm = (resource: ServedResource, object: Json): Json => resource.fromStored?.(object) ?? object
export const toStoredForm = (resource: ServedResource, object: Json): MutableJson =>
  resource.toStored?.(object) ?? mutableCopy(object)

export const gracePeriodOf = (pod: Json): number => getNumber(getObject(pod, 'spec'), 'terminationGracePeriodSeconds')
