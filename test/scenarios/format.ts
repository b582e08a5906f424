// Types of a loaded scenario: real API objects, the node, steps, and packets with what must happen to them.

import type { Family } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'

export type Mode = 'nftables' | 'iptables' | 'ipvs' | 'userspace'

/** A Kubernetes object as the API server would send it. */
export interface Manifest {
  readonly apiVersion: string
  readonly kind: 'Service' | 'EndpointSlice'
  readonly metadata: { readonly namespace: string; readonly name: string; readonly [field: string]: unknown }
  readonly [field: string]: unknown
}

export const manifestKey = (manifest: Manifest): string =>
  `${manifest.kind} ${manifest.metadata.namespace}/${manifest.metadata.name}`

export type Detector =
  | { readonly cidrs: readonly string[] }
  | { readonly interface: string }
  | { readonly prefix: string }
  | 'none'

/** The node and the configuration of the proxy, in one mode. */
export interface NodeSettings {
  readonly name: string
  readonly zone: string
  /** The node's own addresses, at most one per family. */
  readonly primary: readonly string[]
  /** Every address on the interfaces of the node, except loopback. */
  readonly addresses: readonly string[]
  readonly detector: Detector
  /** Empty: all addresses. */
  readonly nodePortAddresses: readonly string[]
  readonly localhostNodePorts: boolean
  readonly masqueradeAll: boolean
  readonly serviceCIDRs: readonly string[]
  /** Where the proxy reaches the API server, as `ip:port`. */
  readonly apiServers: readonly string[]
  /** Feature gate AllowServiceExternalIPs. */
  readonly externalIPs: boolean
}

/** Where a packet starts: in a pod of this node, on this node, in a pod of another node, or outside. */
export type Place = 'pod' | 'node' | 'remote' | 'outside'

export interface Expectation {
  /** The endpoints, each of which is reached if the packet is sent often enough, or what happens instead; `reset` is after an accepted connection. */
  readonly outcome: readonly string[] | 'reject' | 'reset' | 'drop' | 'pass'
  /** True if the source is rewritten; `hairpin` if only when a pod reaches itself; undefined if not stated. */
  readonly snat: boolean | 'hairpin' | undefined
}

export interface Probe {
  /** `F26`, `J10b`: unique in its scenario. */
  readonly id: string
  readonly title: string
  readonly from: string
  readonly at: Place
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  /** 0 for any port. With a fixed port several probes are one flow. */
  readonly sourcePort: number
  /** Probes of a scenario with the same name all reach the same endpoint; '' if no affinity is expected. */
  readonly sticky: string
  /** Number of connections of a sticky probe. */
  readonly count: number
  readonly expect: Readonly<Record<Mode, Expectation>>
}

export interface Step {
  readonly title: string
  readonly drop: readonly Manifest[]
  readonly put: readonly Manifest[]
  /** Undefined if the node does not change. */
  readonly node: Readonly<Record<Mode, NodeSettings>> | undefined
  /** True if the next step waits until the proxy has synced this one. */
  readonly settle: boolean
  readonly probes: readonly Probe[]
}

export interface Scenario {
  /** `S4a`, and for twins `S4a.v6.udp`. */
  readonly name: string
  readonly file: string
  readonly title: string
  readonly modes: readonly Mode[]
  /** What a driver must provide: `conntrack`. */
  readonly needs: readonly string[]
  readonly families: readonly Family[]
  readonly protocols: readonly Protocol[]
  readonly node: Readonly<Record<Mode, NodeSettings>>
  readonly steps: readonly Step[]
}
