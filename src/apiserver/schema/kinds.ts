// The shape of every kind that is served. Pods and nodes are records here: what nobody reads is kept as it comes.

import {
  anything,
  flag,
  int32,
  int32Pointer,
  int64,
  int64Pointer,
  intOrString,
  keyed,
  listOf,
  mapOf,
  openShape,
  type Shape,
  setOf,
  shape,
  string,
  stringPointer,
  time,
} from './schema.ts'

const core = (kind: string) => `io.k8s.api.core.v1.${kind}`
const meta = (kind: string) => `io.k8s.apimachinery.pkg.apis.meta.v1.${kind}`
const discovery = (kind: string) => `io.k8s.api.discovery.v1.${kind}`
const networking = (kind: string) => `io.k8s.api.networking.v1.${kind}`

const ownerReference = shape(meta('OwnerReference'), {
  apiVersion: string,
  kind: string,
  name: string,
  uid: string,
  controller: flag,
  blockOwnerDeletion: flag,
})

export const managedField = shape(meta('ManagedFieldsEntry'), {
  manager: string,
  operation: string,
  apiVersion: string,
  time: time,
  fieldsType: string,
  fieldsV1: anything,
  subresource: string,
})

/** In the order in which the real server prints it. */
export const objectMeta = shape(meta('ObjectMeta'), {
  name: string,
  generateName: string,
  namespace: string,
  selfLink: string,
  uid: string,
  resourceVersion: string,
  generation: int64,
  creationTimestamp: time,
  deletionTimestamp: time,
  deletionGracePeriodSeconds: int64Pointer,
  labels: mapOf(string),
  annotations: mapOf(string),
  ownerReferences: keyed(ownerReference, 'uid'),
  finalizers: setOf(string),
  managedFields: listOf(managedField),
})

const kind = (name: string, fields: Shape['fields']): Shape =>
  shape(name, { kind: string, apiVersion: string, metadata: objectMeta, ...fields })

const condition = shape(meta('Condition'), {
  type: string,
  status: string,
  observedGeneration: int64,
  lastTransitionTime: time,
  reason: stringPointer,
  message: stringPointer,
})

const objectReference = shape(core('ObjectReference'), {
  kind: string,
  namespace: string,
  name: string,
  uid: string,
  apiVersion: string,
  resourceVersion: string,
  fieldPath: string,
})

const servicePort = shape(core('ServicePort'), {
  name: string,
  protocol: string,
  appProtocol: stringPointer,
  port: int32,
  targetPort: intOrString,
  nodePort: int32,
})

const loadBalancerIngress = shape(core('LoadBalancerIngress'), {
  ip: string,
  hostname: string,
  ipMode: string,
  ports: listOf(shape(core('PortStatus'), { port: int32, protocol: string, error: string })),
})

export const service = kind(core('Service'), {
  spec: shape(core('ServiceSpec'), {
    ports: keyed(servicePort, 'port', ['port', 'protocol']),
    selector: mapOf(string),
    clusterIP: string,
    clusterIPs: listOf(string),
    type: string,
    externalIPs: listOf(string),
    sessionAffinity: string,
    loadBalancerIP: string,
    loadBalancerSourceRanges: listOf(string),
    externalName: string,
    externalTrafficPolicy: string,
    healthCheckNodePort: int32,
    publishNotReadyAddresses: flag,
    sessionAffinityConfig: shape(core('SessionAffinityConfig'), {
      clientIP: shape(core('ClientIPConfig'), { timeoutSeconds: int32Pointer }),
    }),
    ipFamilies: listOf(string),
    ipFamilyPolicy: string,
    allocateLoadBalancerNodePorts: flag,
    loadBalancerClass: stringPointer,
    internalTrafficPolicy: string,
    trafficDistribution: string,
  }),
  status: shape(core('ServiceStatus'), {
    loadBalancer: shape(core('LoadBalancerStatus'), { ingress: listOf(loadBalancerIngress) }),
    conditions: keyed(condition, 'type'),
  }),
})

export const namespace = kind(core('Namespace'), {
  spec: shape(core('NamespaceSpec'), { finalizers: listOf(string) }),
  status: shape(core('NamespaceStatus'), {
    phase: string,
    conditions: keyed(openShape(core('NamespaceCondition'), { type: string, status: string }), 'type'),
  }),
})

const nodeAddress = shape(core('NodeAddress'), { type: string, address: string })

export const node = kind(core('Node'), {
  spec: openShape(core('NodeSpec'), {
    podCIDR: string,
    podCIDRs: setOf(string),
    providerID: string,
    unschedulable: flag,
    taints: listOf(shape(core('Taint'), { key: string, value: string, effect: string, timeAdded: time })),
  }),
  status: openShape(core('NodeStatus'), {
    addresses: keyed(nodeAddress, 'type'),
    conditions: keyed(openShape(core('NodeCondition'), { type: string, status: string }), 'type'),
    nodeInfo: openShape(core('NodeSystemInfo'), {}),
    capacity: mapOf(anything),
    allocatable: mapOf(anything),
  }),
})

const containerPort = shape(core('ContainerPort'), {
  name: string,
  hostPort: int32,
  containerPort: int32,
  protocol: string,
  hostIP: string,
})

const container = openShape(core('Container'), {
  name: string,
  image: string,
  command: listOf(string),
  args: listOf(string),
  ports: keyed(containerPort, 'containerPort', ['containerPort', 'protocol']),
  env: keyed(openShape(core('EnvVar'), { name: string, value: string }), 'name'),
})

export const pod = kind(core('Pod'), {
  spec: openShape(core('PodSpec'), {
    containers: keyed(container, 'name'),
    initContainers: keyed(container, 'name'),
    volumes: keyed(openShape(core('Volume'), { name: string }), 'name'),
    nodeName: string,
    hostNetwork: flag,
    hostname: string,
    subdomain: string,
    restartPolicy: string,
    terminationGracePeriodSeconds: int64Pointer,
    nodeSelector: mapOf(string),
    readinessGates: listOf(shape(core('PodReadinessGate'), { conditionType: string })),
  }),
  status: openShape(core('PodStatus'), {
    phase: string,
    conditions: keyed(openShape(core('PodCondition'), { type: string, status: string }), 'type'),
    podIP: string,
    podIPs: keyed(shape(core('PodIP'), { ip: string }), 'ip'),
    hostIP: string,
    reason: string,
    containerStatuses: listOf(openShape(core('ContainerStatus'), { name: string, ready: flag })),
  }),
})

const endpointAddress = shape(core('EndpointAddress'), {
  ip: string,
  hostname: string,
  nodeName: stringPointer,
  targetRef: objectReference,
})

export const endpoints = kind(core('Endpoints'), {
  subsets: listOf(
    shape(core('EndpointSubset'), {
      addresses: listOf(endpointAddress),
      notReadyAddresses: listOf(endpointAddress),
      ports: listOf(
        shape(core('EndpointPort'), { name: string, port: int32, protocol: string, appProtocol: stringPointer }),
      ),
    }),
  ),
})

/** The stored form of events, which also is the older of the two that are served. */
export const event = kind(core('Event'), {
  involvedObject: objectReference,
  reason: string,
  message: string,
  source: shape(core('EventSource'), { component: string, host: string }),
  firstTimestamp: time,
  lastTimestamp: time,
  count: int32,
  type: string,
  eventTime: time,
  series: shape(core('EventSeries'), { count: int32, lastObservedTime: time }),
  action: string,
  related: objectReference,
  reportingComponent: stringPointer,
  reportingInstance: stringPointer,
})

export const newEvent = kind('io.k8s.api.events.v1.Event', {
  eventTime: time,
  series: shape('io.k8s.api.events.v1.EventSeries', { count: int32, lastObservedTime: time }),
  reportingController: string,
  reportingInstance: string,
  action: string,
  reason: string,
  regarding: objectReference,
  related: objectReference,
  note: string,
  type: string,
  deprecatedSource: shape(core('EventSource'), { component: string, host: string }),
  deprecatedFirstTimestamp: time,
  deprecatedLastTimestamp: time,
  deprecatedCount: int32,
})

const endpoint = shape(discovery('Endpoint'), {
  addresses: listOf(string),
  conditions: shape(discovery('EndpointConditions'), { ready: flag, serving: flag, terminating: flag }),
  hostname: string,
  targetRef: objectReference,
  deprecatedTopology: mapOf(string),
  nodeName: stringPointer,
  zone: stringPointer,
  hints: shape(discovery('EndpointHints'), {
    forZones: listOf(shape(discovery('ForZone'), { name: string })),
    forNodes: listOf(shape(discovery('ForNode'), { name: string })),
  }),
})

export const endpointSlice = kind(discovery('EndpointSlice'), {
  addressType: string,
  endpoints: listOf(endpoint),
  ports: listOf(
    shape(discovery('EndpointPort'), {
      name: stringPointer,
      protocol: string,
      port: int32Pointer,
      appProtocol: stringPointer,
    }),
  ),
})

export const serviceCidr = kind(networking('ServiceCIDR'), {
  spec: shape(networking('ServiceCIDRSpec'), { cidrs: listOf(string) }),
  status: shape(networking('ServiceCIDRStatus'), { conditions: keyed(condition, 'type') }),
})
