// Decides which virtual servers are ours: those at addresses on the device, and those that a member of our sets names. Pure.

import { contains, parseCidr } from '../../lib/ip.ts'
import type { VirtualServer } from '../../sys/netlink/ipvs.ts'
import { memberEntry } from './entries.ts'
import { serverSets, setName } from './set-definitions.ts'

export interface OwnershipFacts {
  /** Addresses on kube-ipvs0. */
  readonly bound: ReadonlySet<string>
  /** Ids of the members of our sets. */
  readonly members: ReadonlySet<string>
  /** Servers in these ranges belong to someone else, whatever the sets say. */
  readonly excludedCidrs: readonly string[]
}

/** Returns a predicate: the ranges are parsed only once. */
export function decideOwnership({ bound, members, excludedCidrs }: OwnershipFacts): (server: VirtualServer) => boolean {
  const excluded = excludedCidrs.flatMap((text) => parseCidr(text) ?? [])
  return (server) => {
    if (excluded.some((cidr) => contains(cidr, server.ip))) return false
    return bound.has(server.ip) || isNamed(server, members)
  }
}

/** Node ports are named by their number, except SCTP's, which are named with an address. */
function isNamed({ family, ip, protocol, port }: VirtualServer, members: ReadonlySet<string>): boolean {
  const address = `${ip},${protocol}:${port}`
  if (serverSets.some((name) => members.has(memberEntry(setName(name, family), address).id))) return true
  if (protocol === 'sctp') return false
  const nodePorts = setName(protocol === 'tcp' ? 'KUBE-NODE-PORT-TCP' : 'KUBE-NODE-PORT-UDP', family)
  return members.has(memberEntry(nodePorts, String(port)).id)
}
