// The types of the model: records as read from the API, the view of this node, and service ports with every policy decided. Pure.

import type { Family } from '../lib/ip.ts'

export type Protocol = 'tcp' | 'udp' | 'sctp'

// ---- Records: the fields that are kept of API objects. Addresses are canonical, lists keep the order of the object. ----

export interface ServiceRecord {
  /** `namespace/name`. Changes are tracked by this key. */
  readonly key: string
  readonly uid: string
  /** Unix ms of creationTimestamp; the oldest service wins a contested address. */
  readonly created: number
  readonly type: 'ClusterIP' | 'NodePort' | 'LoadBalancer'
  /** At most one per family, from spec.ipFamilies and spec.clusterIPs. */
  readonly clusterIps: readonly string[]
  readonly ports: readonly ServicePortRecord[]
  readonly externalIps: readonly string[]
  /** status.loadBalancer.ingress[] whose ipMode is VIP. */
  readonly loadBalancerIps: readonly string[]
  /** Canonical CIDRs of both families, in the order of the object. */
  readonly sourceRanges: readonly string[]
  readonly externalPolicy: 'Cluster' | 'Local'
  readonly internalPolicy: 'Cluster' | 'Local'
  /** The timeout of ClientIP affinity; 0 if there is no affinity. */
  readonly affinitySeconds: number
  readonly healthCheckNodePort: number
  /** Annotation sluice/scheduler, for data planes that have schedulers. */
  readonly scheduler?: string
  /** Annotation sluice/outlier-ejection: whether endpoints to which connections fail are left out; as configured if absent. */
  readonly outlierEjection?: boolean
  /** Annotation sluice/local-drain: for how many ms external traffic is forwarded after the last local endpoint has gone; as configured if absent. */
  readonly localDrain?: OptIn
  /** Annotation sluice/reset-connections: after how many ms connections to an endpoint that is gone are ended; as configured if absent. */
  readonly resetConnections?: OptIn
  /** Annotation sluice/probe: how this node finds out whether endpoints answer; absent if it does not. */
  readonly probe?: ProbeRecord
  /** Annotation sluice/algorithm: how an endpoint is chosen; as configured, or as the data plane does by itself, if absent. */
  readonly algorithm?: Algorithm
  /** Annotation sluice/weights: weights by endpoint address or node name; `*` is for all others. */
  readonly weights?: Readonly<Record<string, number>>
  /** True if sluice/weights has node-capacity: endpoints without another weight have one by the capacity of their node. */
  readonly nodeCapacity?: boolean
  /** Not from the API: added before a service is resolved, if the service or the configuration wants weights by node capacity. */
  readonly capacityWeights?: CapacityWeights
  /** Annotation sluice/slow-start: the time in which a new endpoint gets its whole share, in ms; as configured if absent. */
  readonly slowStartMs?: number
}

/** A field that is absent is as configured. */
export interface ProbeRecord {
  readonly kind: 'tcp' | 'http' | 'https' | 'grpc'
  /** The path of http and https, the service of grpc; '' otherwise. */
  readonly target: string
  /** The name of the only port that is probed; all TCP ports if absent. */
  readonly port?: string
  readonly intervalMs?: number
  readonly timeoutMs?: number
  /** Probes in a row that must fail, and that must succeed. */
  readonly failures?: number
  readonly successes?: number
}

/** Whether a service wants something: as configured, not at all, or for its own time in ms. */
export type OptIn = 'on' | 'off' | number

export const algorithms = ['random', 'round-robin', 'consistent-hash'] as const

export type Algorithm = (typeof algorithms)[number]

/** The weights of one service's endpoints by node. */
export interface CapacityWeights {
  readonly byNode: ReadonlyMap<string, number>
  /** For endpoints whose node is not known. */
  readonly others: number
}

export interface ServicePortRecord {
  /** '' for an unnamed port. */
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
  /** 0 if there is none. Used for every type of service. */
  readonly nodePort: number
}

export interface SliceRecord {
  /** `namespace/name` of the slice. */
  readonly key: string
  /** `namespace/name` of the service that the slice belongs to. */
  readonly service: string
  readonly family: Family
  readonly ports: readonly SlicePortRecord[]
  readonly endpoints: EndpointList
  /** Unix ms of the last-change-trigger-time annotation; 0 if there is none. */
  readonly triggered: number
  /** Annotation sluice/weight: the weight of each endpoint of this slice; 1 if absent. */
  readonly weight?: number
}

export interface SlicePortRecord {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
}

/** An array, or a form that takes less memory and makes the records while they are read. */
export interface EndpointList extends Iterable<EndpointRecord> {
  readonly length: number
}

export interface EndpointRecord {
  readonly ip: string
  /** '' if unknown. */
  readonly node: string
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
  readonly zoneHints: readonly string[]
  readonly nodeHints: readonly string[]
}

export interface NodeRecord {
  readonly name: string
  /** InternalIPs first, then ExternalIPs, without invalid ones. */
  readonly addresses: readonly string[]
  readonly podCidrs: readonly string[]
  /** Label topology.kubernetes.io/zone; '' if absent. */
  readonly zone: string
  readonly deleting: boolean
  readonly taints: readonly string[]
}

/** What weights by node capacity need of any node of the cluster. */
export interface NodeCapacityRecord {
  readonly name: string
  /** Thousandths of status.allocatable.cpu; undefined if the Node does not have it, or if it is not valid. */
  readonly milliCpu: number | undefined
}

export interface ServiceCidrRecord {
  readonly name: string
  /** Canonical. */
  readonly cidrs: readonly string[]
}

// ---- The node. ----

/** How traffic of this node's pods is detected. */
export type LocalDetector =
  | { readonly kind: 'cidr'; readonly cidr: string }
  | { readonly kind: 'interface'; readonly name: string }
  | { readonly kind: 'prefix'; readonly prefix: string }

/** Where node ports are served, in one family. */
export interface NodePortAddresses {
  /** True if every address of the node serves node ports; `addresses` is then not used for matching. */
  readonly all: boolean
  /** This node's interface addresses inside the configured CIDRs, sorted; loopback ones included. */
  readonly addresses: readonly string[]
  /** True if a configured CIDR is loopback itself or contains the first loopback address. */
  readonly loopback: boolean
  /** True if a configured CIDR is loopback itself; a CIDR of all addresses does not count. */
  readonly loopbackNamed: boolean
}

/** Everything about this node that affects rules, in one family. Replaced as a whole when a field changes. */
export interface NodeView {
  readonly name: string
  readonly family: Family
  readonly zone: string
  /** The node's own address of this family; loopback if it is unknown. */
  readonly ip: string
  readonly nodePorts: NodePortAddresses
  /** If undefined, there is no masquerade by origin and no short-circuit for pods. */
  readonly local: LocalDetector | undefined
  readonly masqueradeAll: boolean
  /** `1 << masqueradeBit`, unsigned. */
  readonly masqueradeMark: number
  /** Canonical CIDRs of this family. */
  readonly serviceCidrs: readonly string[]
  /** Feature gate AllowServiceExternalIPs. */
  readonly externalIps: boolean
  /** The addresses at which this proxy and others reach the API server, in this family, sorted. No rule may keep this node from them. */
  readonly apiServers: readonly SocketAddress[]
  /** Addresses that no service may take: words for the holder, by `frontendKey`. */
  readonly reserved: Readonly<Record<string, string>>
}

/** The address and port of a TCP socket. */
export interface SocketAddress {
  readonly ip: string
  readonly port: number
}

// ---- Service ports. ----

export type Disposition = 'cluster' | 'local' | 'reject' | 'drop'

/** One port of one service in one IP family, with every policy already decided. */
export interface ServicePort {
  /** `ns/name:http/tcp`; unique in a family. */
  readonly id: string
  /** `ns/name`. */
  readonly service: string
  /** The name for people and rule comments: `ns/name:http`, or `ns/name` for an unnamed port. */
  readonly name: string
  readonly portName: string
  readonly family: Family
  readonly protocol: Protocol
  /** The frontends without addresses that another service holds by a better right, or that are reserved. */
  readonly frontends: readonly Frontend[]
  /** Traffic to the cluster IP. */
  readonly internal: Disposition
  /** Off-node traffic to all other frontends. Traffic of this node and its pods goes to `cluster` if this is `local` or `drop`. */
  readonly external: Disposition
  /** The usable endpoints after topology, sorted bytewise by `ip:port`. */
  readonly cluster: readonly Endpoint[]
  /** The usable endpoints on this node; empty unless a policy is Local. */
  readonly local: readonly Endpoint[]
  /** Every serving endpoint, whatever the policies: a UDP flow to any other endpoint is stale. Empty if the protocol is not UDP. */
  readonly serving: readonly Endpoint[]
  /** The number of endpoints, usable or not. */
  readonly endpoints: number
  /** 0 if there is no affinity. */
  readonly affinitySeconds: number
  /** True if one of the source ranges contains this node's address. */
  readonly nodeAllowed: boolean
  /** The health check node port of the service; the same for every port of the service. */
  readonly health: { readonly port: number; readonly localEndpoints: number } | undefined
  /** The scheduler of the data plane that chooses endpoints; its default if absent. */
  readonly scheduler?: string
  /** How an endpoint is chosen; as the data plane does by itself if absent. */
  readonly algorithm?: Algorithm
  /** True if new endpoints get their share step by step. */
  readonly slowStart?: boolean
  /** Endpoints that are left out for a while, because connections to them or probes of them fail; absent if there are none. */
  readonly ejected?: readonly EjectedEndpoint[]
  /** Present while external traffic of a service with policy Local is forwarded to other nodes: the time (RFC 3339) at which that ends. */
  readonly drainingUntil?: string
}

export interface EjectedEndpoint {
  /** `ip:port`. */
  readonly address: string
  /** Why, as a part of a sentence. */
  readonly why: string
}

export interface Frontend {
  readonly kind: 'cluster-ip' | 'external-ip' | 'load-balancer' | 'node-port'
  /** '' for node ports. */
  readonly ip: string
  readonly port: number
  /** Canonical source ranges; empty if every source is allowed. Only load balancer frontends have any. */
  readonly allow: readonly string[]
}

export interface Endpoint {
  readonly ip: string
  readonly port: number
  /** True if the endpoint is on this node. */
  readonly local: boolean
  /** The share of the traffic beside other endpoints; 1 if absent. */
  readonly weight?: number
  /** Where the weight comes from if it is not from annotations: its node, or the smallest node of the service if its own is not known. */
  readonly weightFrom?: 'node-capacity' | 'smallest-node'
  /** The step of its slow start, from 1 on: as many tenths of its share as it gets; its whole share if absent. */
  readonly startStep?: number
}

// ---- Problems of objects. ----

/** An invalid field of an object. The rest of the object and all other objects still work. */
export interface Problem {
  /** `Service`, `EndpointSlice`, … */
  readonly kind: string
  /** `namespace/name`. */
  readonly object: string
  readonly uid: string
  /** `spec.externalIPs[1]`. */
  readonly field: string
  /** What is wrong, and what was given. */
  readonly message: string
}
