// Which virtual servers are ours: those at our addresses, and those that our sets name. Pure.

import { contains, parseCidr } from '../../lib/ip.ts'
import type { Service } from '../../sys/netlink/ipvs.ts'
import { memberEntry } from './entries.ts'
import { serverSets, setName } from './set-definitions.ts'

/** Says which addresses are in none of these ranges. */
export function outside(cidrs: readonly string[]): (ip: string) => boolean {
  const parsed = cidrs.flatMap((text) => parseCidr(text) ?? [])
  return (ip) => !parsed.some((cidr) => contains(cidr, ip))
}

/** `bound`: addresses on the device; `members`: ids of the members of our sets. */
export function isOurs(server: Service, bound: ReadonlySet<string>, members: ReadonlySet<string>): boolean {
  const { family, ip, protocol, port } = server
  if (bound.has(ip)) return true
  const at = `${ip},${protocol}:${port}`
  if (serverSets.some((name) => members.has(memberEntry(setName(name, family), at).id))) return true
  if (protocol === 'sctp') return false
  const ports = setName(protocol === 'tcp' ? 'KUBE-NODE-PORT-TCP' : 'KUBE-NODE-PORT-UDP', family)
  return members.has(memberEntry(ports, String(port)).id)
}
