// The shape of a scenario once loaded: real API objects, the node, steps, and packets with what must become of them.

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

/** The node and the proxy's configuration in one mode. */
export interface NodeSettings {
  readonly name: string
  readonly zone: string
  /** The node's own addresses, at most one per family. */
  readonly primary: readonly string[]
  /** Every address on the node's interfaces, loopback left out. */
  readonly addresses: readonly string[]
  readonly detector: Detector
  /** Empty: all addresses. */
  readonly nodePortAddresses: readonly string[]
  readonly localhostNodePorts: boolean
  readonly masqueradeAll: boolean
  readonly serviceCIDRs: readonly string[]
  /** Feature gate AllowServiceExternalIPs. */
  readonly externalIPs: boolean
}

/** Where a packet starts: a pod of this node, this node itself, a pod of another node, the world. */
export type Place = 'pod' | 'node' | 'remote' | 'outside'

export interface Expectation {
  /** Endpoints that may be, and over many tries are, reached; or what happens instead. */
  readonly outcome: readonly string[] | 'reject' | 'drop' | 'pass'
  /** Is the source rewritten? `hairpin`: only when a pod reaches itself. undefined: not stated. */
  readonly snat: boolean | 'hairpin' | undefined
}

export interface Probe {
  /** `F26`, `J10-2`: unique in its scenario. */
  readonly id: string
  readonly title: string
  readonly from: string
  readonly at: Place
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  /** 0: any. A fixed port makes one flow of several probes. */
  readonly sourcePort: number
  /** Probes of one name in one scenario all reach one and the same endpoint; '' : no affinity expected. */
  readonly sticky: string
  /** Connections of a sticky probe. */
  readonly count: number
  readonly expect: Readonly<Record<Mode, Expectation>>
}

export interface Step {
  readonly title: string
  readonly drop: readonly Manifest[]
  readonly put: readonly Manifest[]
  /** Undefined: the node stays as it is. */
  readonly node: Readonly<Record<Mode, NodeSettings>> | undefined
  /** Wait until the proxy has taken this in before the next step. */
  readonly settle: boolean
  readonly probes: readonly Probe[]
}

export interface Scenario {
  /** `S4a`, and for twins `S4a.v6.udp`. */
  readonly name: string
  readonly file: string
  readonly title: string
  readonly modes: readonly Mode[]
  /** What a runner must offer: `sctp`, `conntrack`. */
  readonly needs: readonly string[]
  readonly families: readonly Family[]
  readonly protocols: readonly Protocol[]
  readonly node: Readonly<Record<Mode, NodeSettings>>
  readonly steps: readonly Step[]
}
