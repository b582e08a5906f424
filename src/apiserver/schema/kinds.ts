// The schema of every kind that is served. Pods and nodes are records here: the server stores fields that it does not read unchanged. Pure.

import {
  anything,
  boolean,
  int32,
  int32Pointer,
  int64,
  int64Pointer,
  intOrString,
  keyedListOf,
  listOf,
  mapOf,
  namedPointer,
  namedString,
  type ObjectSchema,
  objectOf,
  openObjectOf,
  setOf,
  string,
  stringPointer,
  time,
} from './schema.ts'

const core = (kind: string) => `io.k8s.api.core.v1.${kind}`
const meta = (kind: string) => `io.k8s.apimachinery.pkg.apis.meta.v1.${kind}`
const discovery = (kind: string) => `io.k8s.api.discovery.v1.${kind}`
const networking = (kind: string) => `io.k8s.api.networking.v1.${kind}`

const ownerReference = objectOf(meta('OwnerReference'), {
  apiVersion: string,
  kind: string,
  name: string,
  uid: string,
  controller: boolean,
  blockOwnerDeletion: boolean,
})

export const managedField = objectOf(meta('ManagedFieldsEntry'), {
  manager: string,
  operation: string,
  apiVersion: string,
  time: time,
  fieldsType: string,
  fieldsV1: anything,
  subresource: string,
})

/** The fields are in the order in which the real server prints them. */
export const objectMeta = objectOf(meta('ObjectMeta'), {
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
  ownerReferences: keyedListOf(ownerReference, 'uid'),
  finalizers: setOf(string),
  managedFields: listOf(managedField),
})

const kind = (name: string, fields: ObjectSchema['fields']): ObjectSchema =>
  objectOf(name, { kind: string, apiVersion: string, metadata: objectMeta, ...fields })

const condition = objectOf(meta('Condition'), {
  type: string,
  status: string,
  observedGeneration: int64,
  lastTransitionTime: time,
  reason: stringPointer,
  message: stringPointer,
})

const objectReference = objectOf(core('ObjectReference'), {
  kind: string,
  namespace: string,
  name: string,
  uid: string,
  apiVersion: string,
  resourceVersion: string,
  fieldPath: string,
})

const servicePort = objectOf(core('ServicePort'), {
  name: string,
  protocol: namedString('Protocol'),
  appProtocol: stringPointer,
  port: int32,
  targetPort: intOrString,
  nodePort: int32,
})

const loadBalancerIngress = objectOf(core('LoadBalancerIngress'), {
  ip: string,
  hostname: string,
  ipMode: string,
  ports: listOf(objectOf(core('PortStatus'), { port: int32, protocol: string, error: string })),
})

export const service = kind(core('Service'), {
  spec: objectOf(core('ServiceSpec'), {
    ports: keyedListOf(servicePort, 'port', ['port', 'protocol']),
    selector: mapOf(string),
    clusterIP: string,
    clusterIPs: listOf(string),
    type: namedString('ServiceType'),
    externalIPs: listOf(string),
    sessionAffinity: namedString('ServiceAffinity'),
    loadBalancerIP: string,
    loadBalancerSourceRanges: listOf(string),
    externalName: string,
    externalTrafficPolicy: namedString('ServiceExternalTrafficPolicy'),
    healthCheckNodePort: int32,
    publishNotReadyAddresses: boolean,
    sessionAffinityConfig: objectOf(core('SessionAffinityConfig'), {
      clientIP: objectOf(core('ClientIPConfig'), { timeoutSeconds: int32Pointer }),
    }),
    ipFamilies: listOf(namedString('IPFamily')),
    ipFamilyPolicy: namedPointer('IPFamilyPolicy'),
    allocateLoadBalancerNodePorts: boolean,
    loadBalancerClass: stringPointer,
    internalTrafficPolicy: namedPointer('ServiceInternalTrafficPolicy'),
    trafficDistribution: stringPointer,
  }),
  status: objectOf(core('ServiceStatus'), {
    loadBalancer: objectOf(core('LoadBalancerStatus'), { ingress: listOf(loadBalancerIngress) }),
    conditions: keyedListOf(condition, 'type'),
  }),
})

export const namespace = kind(core('Namespace'), {
  spec: objectOf(core('NamespaceSpec'), { finalizers: listOf(string) }),
  status: objectOf(core('NamespaceStatus'), {
    phase: string,
    conditions: keyedListOf(openObjectOf(core('NamespaceCondition'), { type: string, status: string }), 'type'),
  }),
})

const nodeAddress = objectOf(core('NodeAddress'), { type: string, address: string })

export const node = kind(core('Node'), {
  spec: openObjectOf(core('NodeSpec'), {
    podCIDR: string,
    podCIDRs: setOf(string),
    providerID: string,
    unschedulable: boolean,
    taints: listOf(objectOf(core('Taint'), { key: string, value: string, effect: string, timeAdded: time })),
  }),
  status: openObjectOf(core('NodeStatus'), {
    addresses: keyedListOf(nodeAddress, 'type'),
    conditions: keyedListOf(openObjectOf(core('NodeCondition'), { type: string, status: string }), 'type'),
    nodeInfo: openObjectOf(core('NodeSystemInfo'), {}),
    capacity: mapOf(anything),
    allocatable: mapOf(anything),
  }),
})

const containerPort = objectOf(core('ContainerPort'), {
  name: string,
  hostPort: int32,
  containerPort: int32,
  protocol: string,
  hostIP: string,
})

const container = openObjectOf(core('Container'), {
  name: string,
  image: string,
  command: listOf(string),
  args: listOf(string),
  ports: keyedListOf(containerPort, 'containerPort', ['containerPort', 'protocol']),
  env: keyedListOf(openObjectOf(core('EnvVar'), { name: string, value: string }), 'name'),
})

export const pod = kind(core('Pod'), {
  spec: openObjectOf(core('PodSpec'), {
    containers: keyedListOf(container, 'name'),
    initContainers: keyedListOf(container, 'name'),
    volumes: keyedListOf(openObjectOf(core('Volume'), { name: string }), 'name'),
    nodeName: string,
    hostNetwork: boolean,
    hostname: string,
    subdomain: string,
    restartPolicy: string,
    terminationGracePeriodSeconds: int64Pointer,
    nodeSelector: mapOf(string),
    readinessGates: listOf(objectOf(core('PodReadinessGate'), { conditionType: string })),
  }),
  status: openObjectOf(core('PodStatus'), {
    phase: string,
    conditions: keyedListOf(openObjectOf(core('PodCondition'), { type: string, status: string }), 'type'),
    podIP: string,
    podIPs: keyedListOf(objectOf(core('PodIP'), { ip: string }), 'ip'),
    hostIP: string,
    reason: string,
    containerStatuses: listOf(openObjectOf(core('ContainerStatus'), { name: string, ready: boolean })),
  }),
})

const endpointAddress = objectOf(core('EndpointAddress'), {
  ip: string,
  hostname: string,
  nodeName: stringPointer,
  targetRef: objectReference,
})

export const endpoints = kind(core('Endpoints'), {
  subsets: listOf(
    objectOf(core('EndpointSubset'), {
      addresses: listOf(endpointAddress),
      notReadyAddresses: listOf(endpointAddress),
      ports: listOf(
        objectOf(core('EndpointPort'), { name: string, port: int32, protocol: string, appProtocol: stringPointer }),
      ),
    }),
  ),
})

/** The stored form of events, which is also the older of the two served forms. */
export const event = kind(core('Event'), {
  involvedObject: objectReference,
  reason: string,
  message: string,
  source: objectOf(core('EventSource'), { component: string, host: string }),
  firstTimestamp: time,
  lastTimestamp: time,
  count: int32,
  type: string,
  eventTime: time,
  series: objectOf(core('EventSeries'), { count: int32, lastObservedTime: time }),
  action: string,
  related: objectReference,
  reportingComponent: stringPointer,
  reportingInstance: stringPointer,
})

export const newEvent = kind('io.k8s.api.events.v1.Event', {
  eventTime: time,
  series: objectOf('io.k8s.api.events.v1.EventSeries', { count: int32, lastObservedTime: time }),
  reportingController: string,
  reportingInstance: string,
  action: string,
  reason: string,
  regarding: objectReference,
  related: objectReference,
  note: string,
  type: string,
  deprecatedSource: objectOf(core('EventSource'), { component: string, host: string }),
  deprecatedFirstTimestamp: time,
  deprecatedLastTimestamp: time,
  deprecatedCount: int32,
})

const endpoint = objectOf(discovery('Endpoint'), {
  addresses: listOf(string),
  conditions: objectOf(discovery('EndpointConditions'), { ready: boolean, serving: boolean, terminating: boolean }),
  hostname: stringPointer,
  targetRef: objectReference,
  deprecatedTopology: mapOf(string),
  nodeName: stringPointer,
  zone: stringPointer,
  hints: objectOf(discovery('EndpointHints'), {
    forZones: listOf(objectOf(discovery('ForZone'), { name: stringPointer })),
    forNodes: listOf(objectOf(discovery('ForNode'), { name: stringPointer })),
  }),
})

export const endpointSlice = kind(discovery('EndpointSlice'), {
  addressType: namedString('AddressType'),
  endpoints: listOf(endpoint),
  ports: listOf(
    objectOf(discovery('EndpointPort'), {
      name: stringPointer,
      protocol: namedPointer('Protocol'),
      port: int32Pointer,
      appProtocol: stringPointer,
    }),
  ),
})

export const serviceCidr = kind(networking('ServiceCIDR'), {
  spec: objectOf(networking('ServiceCIDRSpec'), { cidrs: listOf(string) }),
  status: objectOf(networking('ServiceCIDRStatus'), { conditions: keyedListOf(condition, 'type') }),
})
