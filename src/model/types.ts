// The nouns of the model: records as read from the API, the node as this proxy sees it, and service ports with every policy decided.

import type { Family } from '../lib/ip.ts'

export type Protocol = 'tcp' | 'udp' | 'sctp'

// ---- Records: what is kept of an API object. Addresses are canonical, lists keep the object's order. ----

export interface ServiceRecord {
  /** `namespace/name`: the unit of change. */
  readonly key: string
  readonly uid: string
  /** Unix ms of creationTimestamp; the oldest service wins a contested address. */
  readonly created: number
  readonly type: 'ClusterIP' | 'NodePort' | 'LoadBalancer'
  /** At most one per family; what spec.ipFamilies and spec.clusterIPs come to. */
  readonly clusterIps: readonly string[]
  readonly ports: readonly ServicePortRecord[]
  readonly externalIps: readonly string[]
  /** status.loadBalancer.ingress[] whose ipMode is VIP. */
  readonly loadBalancerIps: readonly string[]
  /** Canonical CIDRs of both families, as given. */
  readonly sourceRanges: readonly string[]
  readonly externalPolicy: 'Cluster' | 'Local'
  readonly internalPolicy: 'Cluster' | 'Local'
  /** ClientIP affinity timeout; 0: no affinity. */
  readonly affinitySeconds: number
  readonly healthCheckNodePort: number
  /** Annotation sluice/scheduler, for data planes that have a choice. */
  readonly scheduler?: string
}

export interface ServicePortRecord {
  /** '' for the unnamed port. */
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
  /** 0: none. Used whatever the service's type is. */
  readonly nodePort: number
}

export interface SliceRecord {
  /** `namespace/name` of the slice. */
  readonly key: string
  /** `namespace/name` of the service it belongs to. */
  readonly service: string
  readonly family: Family
  readonly ports: readonly SlicePortRecord[]
  readonly endpoints: readonly EndpointRecord[]
  /** Unix ms of the last-change-trigger-time annotation; 0: none. */
  readonly triggered: number
  /** Annotation sluice/weight: share of the traffic of each endpoint here, for data planes that can; 1 if absent. */
  readonly weight?: number
}

export interface SlicePortRecord {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
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
  /** InternalIPs first, then ExternalIPs, unparsable ones left out. */
  readonly addresses: readonly string[]
  readonly podCidrs: readonly string[]
  /** Label topology.kubernetes.io/zone; '' if absent. */
  readonly zone: string
  readonly deleting: boolean
  readonly taints: readonly string[]
}

export interface ServiceCidrRecord {
  readonly name: string
  /** Canonical. */
  readonly cidrs: readonly string[]
}

// ---- The node. ----

/** How traffic of this node's pods is told from other traffic. */
export type LocalDetector =
  | { readonly kind: 'cidr'; readonly cidr: string }
  | { readonly kind: 'interface'; readonly name: string }
  | { readonly kind: 'prefix'; readonly prefix: string }

/** Where node ports are served, in one family. */
export interface NodePortAddresses {
  /** Every address of the node; `addresses` is then not used for matching. */
  readonly all: boolean
  /** This node's interface addresses inside the configured CIDRs, sorted; loopback ones included. */
  readonly addresses: readonly string[]
  /** The configuration covers loopback: a CIDR that is loopback itself or contains its first address. */
  readonly loopback: boolean
  /** A CIDR that is itself loopback was named (a catch-all does not count). */
  readonly loopbackNamed: boolean
}

/** Everything about this node, in one family, that shapes rules. Replaced as a whole when any of it changes. */
export interface NodeView {
  readonly name: string
  readonly family: Family
  readonly zone: string
  /** The node's own address of this family; loopback when unknown. */
  readonly ip: string
  readonly nodePorts: NodePortAddresses
  /** undefined: no masquerade by origin, no short-circuit for pods. */
  readonly local: LocalDetector | undefined
  readonly masqueradeAll: boolean
  /** `1 << masqueradeBit`, unsigned. */
  readonly masqueradeMark: number
  /** Canonical CIDRs of this family. */
  readonly serviceCidrs: readonly string[]
  /** Feature gate AllowServiceExternalIPs. */
  readonly externalIps: boolean
}

// ---- Service ports. ----

export type Disposition = 'cluster' | 'local' | 'reject' | 'drop'

/** One port of one service in one IP family, with every policy already decided. */
export interface ServicePort {
  /** `ns/name:http/tcp`; unique in a family. */
  readonly id: string
  /** `ns/name`: the unit of change. */
  readonly service: string
  /** What people and comments call it: `ns/name:http`, or `ns/name` for the unnamed port. */
  readonly name: string
  readonly portName: string
  readonly family: Family
  readonly protocol: Protocol
  /** Those this service has won; an address that an older service holds is not among them. */
  readonly frontends: readonly Frontend[]
  /** Traffic to the cluster IP. */
  readonly internal: Disposition
  /** Off-node traffic to every other frontend; traffic of this node and its pods goes to `cluster` when this is `local` or `drop`. */
  readonly external: Disposition
  /** Usable endpoints, topology applied; sorted by `ip:port` bytewise. */
  readonly cluster: readonly Endpoint[]
  /** Those on this node; empty unless a policy is Local. */
  readonly local: readonly Endpoint[]
  /** Every endpoint that serves, whatever the policies: a UDP flow to any other is stale. Filled for UDP only. */
  readonly serving: readonly Endpoint[]
  /** How many endpoints it has, usable or not. */
  readonly endpoints: number
  /** 0: none. */
  readonly affinitySeconds: number
  /** One of the source ranges contains this node's address. */
  readonly nodeAllowed: boolean
  /** The service's health check node port, if it has one. The same on every port of the service. */
  readonly health: { readonly port: number; readonly localEndpoints: number } | undefined
  /** How endpoints are chosen, in the words of the data plane; its default if absent. */
  readonly scheduler?: string
}

export interface Frontend {
  readonly kind: 'cluster-ip' | 'external-ip' | 'load-balancer' | 'node-port'
  /** '' for node ports. */
  readonly ip: string
  readonly port: number
  /** Source ranges, canonical; empty: everyone. Only load-balancer frontends have any. */
  readonly allow: readonly string[]
}

export interface Endpoint {
  readonly ip: string
  readonly port: number
  /** On this node. */
  readonly local: boolean
  /** Share of the traffic, for data planes that can; 1 if absent. */
  readonly weight?: number
}

// ---- What went wrong with an object. ----

/** One thing that is wrong with one object; everything else of the object and all other objects keep working. */
export interface Problem {
  /** `Service`, `EndpointSlice`, … */
  readonly kind: string
  /** `namespace/name`. */
  readonly object: string
  readonly uid: string
  /** `spec.externalIPs[1]`. */
  readonly field: string
  /** What is wrong and what was given. */
  readonly message: string
}
