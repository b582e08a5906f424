// How iptables mode answers packets, for `trace`. Pure.

import { commonBehaviour, type ModeBehaviour } from '../../../model/mode-behaviour.ts'

/** The behaviour of kube-proxy's iptables mode. Its setting `localhostNodePorts` is on by default. */
export const iptablesBehaviour = (localhostNodePorts: boolean): ModeBehaviour => ({
  ...commonBehaviour,
  hashTable: 'none',
  name: 'iptables',
  rejectsUnusedPorts: false,
  dropsUnallocated: false,
  // filter OUTPUT does not visit the chain that holds these rejections.
  rejectsNodeToExternal: false,
  hairpin: 'all',
  firewallWithoutEndpoints: 'reject',
  localhostNodePorts: { 4: localhostNodePorts ? 'covered' : 'never', 6: 'never' },
  // The filter rule matches any local destination; only the nat rule knows nodePortAddresses.
  refusesNodePortsEverywhere: true,
})
