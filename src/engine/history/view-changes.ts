// Describes how the view of the node changed: addresses for node ports, zone, service CIDRs, addresses of the API server. Pure.

import { cutText } from '../../lib/bounded-json.ts'
import { deepEqual } from '../../lib/equal.ts'
import { hostPort } from '../../lib/ip.ts'
import type { NodeView } from '../../model/types.ts'
import type { PartChange } from './history-record.ts'

const maxValue = 200

const fields: readonly (readonly [string, (view: NodeView) => unknown, (view: NodeView) => string])[] = [
  ['zone', ({ zone }) => zone, ({ zone }) => zone],
  ['node address', ({ ip }) => ip, ({ ip }) => ip],
  ['service CIDRs', ({ serviceCidrs }) => serviceCidrs, ({ serviceCidrs }) => serviceCidrs.join(', ')],
  ['addresses of node ports', ({ nodePorts }) => nodePorts, ({ nodePorts }) => nodePorts.addresses.join(', ')],
  [
    'addresses of the API server',
    ({ apiServers }) => apiServers,
    ({ apiServers }) => apiServers.map(({ ip, port }) => hostPort(ip, port)).join(', '),
  ],
  ['reserved addresses', ({ reserved }) => reserved, ({ reserved }) => Object.keys(reserved).join(', ')],
]

export function describeViewChange(before: NodeView, after: NodeView): { parts: readonly PartChange[]; text: string } {
  const parts = fields.flatMap(([part, read, show]) =>
    deepEqual(read(before), read(after))
      ? []
      : [{ part, before: cutText(show(before), maxValue), after: cutText(show(after), maxValue) }],
  )
  const changes = parts.map((one) => `${one.part}: ${one.before || 'none'} before, ${one.after || 'none'} now`)
  return { parts, text: changes.join('; ') || 'the view of the node changed' }
}
