// What must be there whatever services exist: the node's address, and the rules that drop unallocated service addresses, but never the API
// server. Pure.

import type { NodeView } from '../../model/types.ts'
import { hostEntry, lastOrders, rulesEntry, type UserspaceEntry } from './entries.ts'
import { chains, commentMatch } from './portal-chains.ts'

export function base(node: NodeView): readonly UserspaceEntry[] {
  // A CIDR may cover the network of the nodes, and redirected packets have an address of this node.
  const elsewhere = '-m addrtype ! --dst-type LOCAL'
  const lines = node.serviceCidrs.map(
    (cidr) => `-A ${chains.filter} -d ${cidr} ${elsewhere} ${commentMatch('unallocated')} -j DROP`,
  )
  const exempt = node.apiServers.map(
    ({ ip, port }) =>
      `-A ${chains.filter} -d ${ip} -p tcp -m tcp --dport ${port} ${commentMatch('API server')} -j RETURN`,
  )
  return [
    hostEntry(node.ip),
    ...(exempt.length === 0 ? [] : [rulesEntry(lastOrders.apiServers, exempt)]),
    ...(lines.length === 0 ? [] : [rulesEntry(lastOrders.unallocated, lines)]),
  ]
}
