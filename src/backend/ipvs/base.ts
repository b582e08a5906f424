// What must be there whatever services exist: the device, the sets and the rules. Pure.

import { createHash } from 'node:crypto'
import type { NodeView } from '../../model/types.ts'
import { deviceEntry, type IpvsEntry, setEntry } from './entries.ts'
import { composeRules } from './rule-text.ts'
import { listSets } from './set-definitions.ts'

export function base(node: NodeView): readonly IpvsEntry[] {
  const text = composeRules(node)
  const digest = createHash('sha256').update(text).digest('base64url')
  return [deviceEntry, ...listSets(node.family).map(setEntry), { id: 'rules', kind: 'rules', digest, text }]
}
