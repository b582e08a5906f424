// How proxy modes answer the same packet differently: what `trace` assumes about a mode. Each mode's values are in its own folder.

import type { Family } from '../lib/ip.ts'

/** When node ports answer on loopback: never, if the configuration names a loopback CIDR, or if the configured CIDRs cover loopback. */
export type LocalhostNodePorts = 'never' | 'named' | 'covered'

export interface ModeBehaviour {
  readonly name: string
  /** A port of an active cluster IP that no service uses is refused; otherwise routing decides. */
  readonly rejectsUnusedPorts: boolean
  /** External and load balancer IPs become addresses of the node, so ports of theirs that no service uses are refused as well. */
  readonly ownsAddresses: boolean
  /** Under externalTrafficPolicy Local, the node and its pods reach endpoints on other nodes even if this node has endpoints. */
  readonly shortCircuits: boolean
  /** An address inside the service CIDRs that no service has is dropped; otherwise routing decides. */
  readonly dropsUnallocated: boolean
  /** The node's own packets to an external or load balancer IP without endpoints are refused, like forwarded ones. */
  readonly rejectsNodeToExternal: boolean
  /** Which endpoints get their own packets back under another source: the endpoints on this node, or all reachable ones. */
  readonly hairpin: 'local' | 'all'
  /** What happens to sources outside the ranges when there are no endpoints: dropped as always, or refused like all other sources. */
  readonly firewallWithoutEndpoints: 'drop' | 'reject'
  readonly localhostNodePorts: Readonly<Record<Family, LocalhostNodePorts>>
  /** A node port that cannot be served is refused or dropped on every address of the node, whatever nodePortAddresses says. */
  readonly refusesNodePortsEverywhere: boolean
  /** The endpoint sees this node as the source whatever the policies say: the proxy opens a connection of its own. */
  readonly hidesClients: boolean
  /** SCTP is refused. */
  readonly refusesSctp: boolean
  /** Where consistent hashing looks up the endpoint of a client: in our table, in one that the kernel makes for itself, or not at all. */
  readonly hashTable: 'ours' | 'kernel' | 'none'
}

/** The behaviour that modes share; each mode adds its name and its differences. */
export const commonBehaviour: Omit<ModeBehaviour, 'name' | 'localhostNodePorts'> = {
  rejectsUnusedPorts: true,
  ownsAddresses: false,
  shortCircuits: true,
  dropsUnallocated: true,
  rejectsNodeToExternal: true,
  hairpin: 'local',
  firewallWithoutEndpoints: 'drop',
  refusesNodePortsEverywhere: false,
  hidesClients: false,
  refusesSctp: false,
  hashTable: 'ours',
}
