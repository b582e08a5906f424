// How proxy modes answer the same packet differently: what `trace` assumes about a mode's rules, and nothing about how they are made.

import type { Family } from '../lib/ip.ts'

/** When node ports answer on loopback: not at all, if a loopback CIDR was named, or if the configured CIDRs cover it. */
export type LocalhostNodePorts = 'never' | 'named' | 'covered'

export interface ModeBehaviour {
  readonly name: string
  /** A port of an active cluster IP that no service uses is refused; otherwise routing decides. */
  readonly rejectsUnusedPorts: boolean
  /** External and load balancer IPs become addresses of the node: ports of theirs that no service uses are refused as well. */
  readonly ownsAddresses: boolean
  /** Under externalTrafficPolicy Local, the node and its pods reach endpoints on other nodes although there are some here. */
  readonly shortCircuits: boolean
  /** An address inside the service CIDRs that no service has is dropped; otherwise routing decides. */
  readonly dropsUnallocated: boolean
  /** The node's own packets to an external or load balancer IP without endpoints are refused too, not only forwarded ones. */
  readonly rejectsNodeToExternal: boolean
  /** Which endpoints get their own packets back under another source: those on this node, or all that are reachable. */
  readonly hairpin: 'local' | 'all'
  /** Sources outside the ranges, when there are no endpoints: dropped all the same, or refused like everybody. */
  readonly firewallWithoutEndpoints: 'drop' | 'reject'
  readonly localhostNodePorts: Readonly<Record<Family, LocalhostNodePorts>>
  /** A node port that cannot be served is refused or dropped on every address of the node, whatever nodePortAddresses says. */
  readonly refusesNodePortsEverywhere: boolean
  /** The endpoint sees this node as the source whatever the policies say: connections are made anew here. */
  readonly hidesClients: boolean
  /** SCTP is refused. */
  readonly refusesSctp: boolean
}

/** The reference: every other mode is described by how it differs. */
export const nftables: ModeBehaviour = {
  name: 'nftables',
  rejectsUnusedPorts: true,
  ownsAddresses: false,
  shortCircuits: true,
  dropsUnallocated: true,
  rejectsNodeToExternal: true,
  hairpin: 'local',
  firewallWithoutEndpoints: 'drop',
  // kube-proxy 1.36 never serves them here; we do where the configuration asks for loopback by name, as 1.37 does.
  localhostNodePorts: { 4: 'named', 6: 'named' },
  refusesNodePortsEverywhere: false,
  hidesClients: false,
  refusesSctp: false,
}

/** As kube-proxy's iptables mode with `localhostNodePorts` on, its default. */
export const iptables: ModeBehaviour = {
  name: 'iptables',
  rejectsUnusedPorts: false,
  ownsAddresses: false,
  shortCircuits: true,
  dropsUnallocated: false,
  // filter OUTPUT does not visit the chain that holds these rejections.
  rejectsNodeToExternal: false,
  hairpin: 'all',
  firewallWithoutEndpoints: 'reject',
  localhostNodePorts: { 4: 'covered', 6: 'never' },
  // The filter rule matches any local destination; only the nat rule knows nodePortAddresses.
  refusesNodePortsEverywhere: true,
  hidesClients: false,
  refusesSctp: false,
}

export const iptablesWithoutLocalhost: ModeBehaviour = { ...iptables, localhostNodePorts: { 4: 'never', 6: 'never' } }

/** Relays of our own answer; what is not redirected to one is refused and dropped as in nftables. */
export const userspace: ModeBehaviour = {
  ...nftables,
  name: 'userspace',
  localhostNodePorts: { 4: 'covered', 6: 'covered' },
  hidesClients: true,
  refusesSctp: true,
}

/** Better than kube-proxy's ipvs mode where that falls behind its own other modes: what those drop and refuse is dropped and refused. */
export const ipvs: ModeBehaviour = {
  ...nftables,
  name: 'ipvs',
  ownsAddresses: true,
  // A virtual server has one list of destinations, whoever comes.
  shortCircuits: false,
  dropsUnallocated: false,
  localhostNodePorts: { 4: 'never', 6: 'never' },
}
