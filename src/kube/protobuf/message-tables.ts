// Field numbers of the API's protobuf messages, for those fields that the decoders of reflect/ read.

import {
  describeMessage,
  type FieldMaker,
  type MessageTable,
  readBytes,
  readChild,
  readChildren,
  readEach,
  readFlag,
  readInteger,
  readIntegerOrZero,
  readMap,
  readMessageMap,
  readString,
  readStringOrEmpty,
  readStrings,
  readTimestamp,
  readUniqueString,
} from './read-message.ts'

const meta = 'io.k8s.apimachinery.pkg.apis.meta.v1'
const core = 'io.k8s.api.core.v1'
const discovery = 'io.k8s.api.discovery.v1'
const networking = 'io.k8s.api.networking.v1'

/** Keys of labels and annotations that a decoder in reflect/ reads. A key that is missing here is lost in protobuf, and only there. */
export const readLabels: readonly string[] = [
  'kubernetes.io/service-name',
  'service.kubernetes.io/headless',
  'service.kubernetes.io/service-proxy-name',
  'topology.kubernetes.io/zone',
]
export const readAnnotations: readonly string[] = [
  'endpoints.kubernetes.io/last-change-trigger-time',
  'k8s.io/initial-events-end',
  'sluice/algorithm',
  'sluice/local-drain',
  'sluice/outlier-ejection',
  'sluice/probe',
  'sluice/reset-connections',
  'sluice/scheduler',
  'sluice/slow-start',
  'sluice/weight',
  'sluice/weights',
]

/** One manager of an object, and when it changed the object last. Its fields are not read. */
export const managedFieldsEntry = describeMessage(`${meta}.ManagedFieldsEntry`, {
  manager: readString(1),
  operation: readString(2),
  time: readTimestamp(4),
  subresource: readString(8),
})

const describeMetadata = (more: Readonly<Record<string, FieldMaker>>): MessageTable =>
  describeMessage(`${meta}.ObjectMeta`, {
    name: readUniqueString(1),
    namespace: readString(3),
    uid: readUniqueString(5),
    resourceVersion: readUniqueString(6),
    labels: readMap(11, readLabels),
    annotations: readMap(12, readAnnotations),
    // Left as bytes: only changes that the history records need them (reflect/object-origin.ts).
    managedFields: readEach(17),
    ...more,
  })

const servicePort = describeMessage(`${core}.ServicePort`, {
  name: readString(1),
  protocol: readString(2),
  port: readIntegerOrZero(3),
  nodePort: readInteger(5),
})

const clientIp = describeMessage(`${core}.ClientIPConfig`, { timeoutSeconds: readIntegerOrZero(1) })

const serviceSpec = describeMessage(`${core}.ServiceSpec`, {
  ports: readChildren(1, servicePort),
  clusterIP: readUniqueString(3),
  type: readString(4),
  externalIPs: readStrings(5),
  sessionAffinity: readString(7),
  loadBalancerSourceRanges: readStrings(9),
  externalTrafficPolicy: readString(11),
  healthCheckNodePort: readInteger(12),
  sessionAffinityConfig: readChild(
    14,
    describeMessage(`${core}.SessionAffinityConfig`, { clientIP: readChild(1, clientIp) }),
  ),
  clusterIPs: readStrings(18),
  ipFamilies: readStrings(19),
  internalTrafficPolicy: readStringOrEmpty(22),
})

const ingress = describeMessage(`${core}.LoadBalancerIngress`, {
  ip: readUniqueString(1),
  ipMode: readStringOrEmpty(3),
})
const loadBalancerStatus = describeMessage(`${core}.LoadBalancerStatus`, { ingress: readChildren(1, ingress) })

export const service = describeMessage(`${core}.Service`, {
  metadata: readChild(1, describeMetadata({ creationTimestamp: readTimestamp(8) })),
  spec: readChild(2, serviceSpec),
  status: readChild(3, describeMessage(`${core}.ServiceStatus`, { loadBalancer: readChild(1, loadBalancerStatus) })),
})

const conditions = describeMessage(`${discovery}.EndpointConditions`, {
  ready: readFlag(1),
  serving: readFlag(2),
  terminating: readFlag(3),
})

const hints = describeMessage(`${discovery}.EndpointHints`, {
  forZones: readChildren(1, describeMessage(`${discovery}.ForZone`, { name: readStringOrEmpty(1) })),
  forNodes: readChildren(2, describeMessage(`${discovery}.ForNode`, { name: readStringOrEmpty(1) })),
})

const endpoint = describeMessage(`${discovery}.Endpoint`, {
  addresses: readStrings(1),
  conditions: readChild(2, conditions),
  nodeName: readStringOrEmpty(6),
  hints: readChild(8, hints),
})

const endpointPort = describeMessage(`${discovery}.EndpointPort`, {
  name: readStringOrEmpty(1),
  protocol: readStringOrEmpty(2),
  port: readIntegerOrZero(3),
})

export const endpointSlice = describeMessage(`${discovery}.EndpointSlice`, {
  metadata: readChild(1, describeMetadata({})),
  endpoints: readChildren(2, endpoint),
  ports: readChildren(3, endpointPort),
  addressType: readStringOrEmpty(4),
})

const taint = describeMessage(`${core}.Taint`, { key: readStringOrEmpty(1) })
const nodeAddress = describeMessage(`${core}.NodeAddress`, {
  type: readStringOrEmpty(1),
  address: readStringOrEmpty(2),
})

export const node = describeMessage(`${core}.Node`, {
  metadata: readChild(1, describeMetadata({ deletionTimestamp: readTimestamp(9) })),
  spec: readChild(2, describeMessage(`${core}.NodeSpec`, { taints: readChildren(5, taint), podCIDRs: readStrings(7) })),
  status: readChild(3, describeMessage(`${core}.NodeStatus`, { addresses: readChildren(5, nodeAddress) })),
})

const quantity = describeMessage('io.k8s.apimachinery.pkg.api.resource.Quantity', { string: readUniqueString(1) })

/** A Node as far as weights by node capacity need it. */
export const nodeCapacity = describeMessage(`${core}.Node`, {
  metadata: readChild(1, describeMetadata({})),
  status: readChild(
    3,
    describeMessage(`${core}.NodeStatus`, { allocatable: readMessageMap(2, ['cpu'], quantity, 'string') }),
  ),
})

export const serviceCidr = describeMessage(`${networking}.ServiceCIDR`, {
  metadata: readChild(1, describeMetadata({})),
  spec: readChild(2, describeMessage(`${networking}.ServiceCIDRSpec`, { cidrs: readStrings(1) })),
})

/** What every object begins with. */
export const identity = describeMessage('any object', { metadata: readChild(1, describeMetadata({})) })

// ---- What surrounds objects. ----

const typeMeta = describeMessage('io.k8s.apimachinery.pkg.runtime.TypeMeta', {
  apiVersion: readString(1),
  kind: readString(2),
})

/** The envelope of every body and of every object in a watch. */
export const envelope = describeMessage('io.k8s.apimachinery.pkg.runtime.Unknown', {
  typeMeta: readChild(1, typeMeta),
  raw: readBytes(2),
})

const rawExtension = describeMessage('io.k8s.apimachinery.pkg.runtime.RawExtension', { raw: readBytes(1) })

export const watchEvent = describeMessage(`${meta}.WatchEvent`, {
  type: readString(1),
  object: readChild(2, rawExtension),
})

const listMeta = describeMessage(`${meta}.ListMeta`, {
  resourceVersion: readUniqueString(2),
  continue: readUniqueString(3),
})

/** Lists of all kinds have the same form. Their items are read one by one. */
export const objectList = describeMessage(`${core}.ServiceList`, {
  metadata: readChild(1, listMeta),
  items: readEach(2),
})

const statusCause = describeMessage(`${meta}.StatusCause`, {
  reason: readString(1),
  message: readUniqueString(2),
  field: readString(3),
})

const statusDetails = describeMessage(`${meta}.StatusDetails`, {
  causes: readChildren(4, statusCause),
  retryAfterSeconds: readInteger(5),
})

export const status = describeMessage(`${meta}.Status`, {
  status: readString(2),
  message: readUniqueString(3),
  reason: readString(4),
  details: readChild(5, statusDetails),
  code: readInteger(6),
})
