// What must be there whatever services exist: the node's address, and the rules that drop unallocated service addresses. Pure.

import type { NodeView } from '../../model/types.ts'
import { hostEntry, lastOrders, rulesEntry, type UserspaceEntry } from './entries.ts'
import { chains, commentMatch } from './portal-chains.ts'

export function base(node: NodeView): readonly UserspaceEntry[] {
  const lines = node.serviceCidrs.map((cidr) => `-A ${chains.filter} -d ${cidr} ${commentMatch('unallocated')} -j DROP`)
  return [hostEntry(node.ip), ...(lines.length === 0 ? [] : [rulesEntry(lastOrders.unallocated, lines)])]
}
