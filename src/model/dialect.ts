// How proxy modes answer the same packet differently: what `trace` assumes about a mode's rules, and nothing about how they are made.

import type { Family } from '../lib/ip.ts'

/** When node ports answer on loopback: not at all, if a loopback CIDR was named, or if the configured CIDRs cover it. */
export type Localhost = 'never' | 'named' | 'covered'

export interface Dialect {
  readonly name: string
  /** A port of an active cluster IP that no service uses is refused; otherwise routing decides. */
  readonly rejectsUnusedPorts: boolean
  /** An address inside the service CIDRs that no service has is dropped; otherwise routing decides. */
  readonly dropsUnallocated: boolean
  /** The node's own packets to an external or load balancer IP without endpoints are refused too, not only forwarded ones. */
  readonly rejectsNodeToExternal: boolean
  /** Which endpoints get their own packets back under another source: those on this node, or all that are reachable. */
  readonly hairpin: 'local' | 'all'
  /** Sources outside the ranges, when there are no endpoints: dropped all the same, or refused like everybody. */
  readonly firewallWithoutEndpoints: 'drop' | 'reject'
  readonly localhostNodePorts: Readonly<Record<Family, Localhost>>
  /** A node port that cannot be served is refused or dropped on every address of the node, whatever nodePortAddresses says. */
  readonly refusesNodePortsEverywhere: boolean
}

/** The reference: every other mode is described by how it differs. */
export const nftables: Dialect = {
  name: 'nftables',
  rejectsUnusedPorts: true,
  dropsUnallocated: true,
  rejectsNodeToExternal: true,
  hairpin: 'local',
  firewallWithoutEndpoints: 'drop',
  // kube-proxy 1.36 never serves them here; we do where the configuration asks for loopback by name, as 1.37 does.
  localhostNodePorts: { 4: 'named', 6: 'never' },
  refusesNodePortsEverywhere: false,
}

/** As kube-proxy's iptables mode with `localhostNodePorts` on, its default. */
export const iptables: Dialect = {
  name: 'iptables',
  rejectsUnusedPorts: false,
  dropsUnallocated: false,
  // filter OUTPUT does not visit the chain that holds these rejections.
  rejectsNodeToExternal: false,
  hairpin: 'all',
  firewallWithoutEndpoints: 'reject',
  localhostNodePorts: { 4: 'covered', 6: 'never' },
  // The filter rule matches any local destination; only the nat rule knows nodePortAddresses.
  refusesNodePortsEverywhere: true,
}

export const iptablesWithoutLocalhost: Dialect = { ...iptables, localhostNodePorts: { 4: 'never', 6: 'never' } }
