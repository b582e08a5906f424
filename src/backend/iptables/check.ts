// Compares the parts of entries with the rules that are in the tables now.

import type { Held, Presence } from '../backend.ts'
import { formatJump, type IptablesTableName, jumps, kubeletFirewall } from '../iptables-kit/chains.ts'
import { linesOf } from '../iptables-kit/restore-text.ts'
import type { RuleCheck } from '../iptables-kit/rule-check.ts'
import { type BasePart, strayChainOf } from './entries.ts'

export function checkPart(check: RuleCheck, part: Held): Presence {
  if (part.kind === 'chain') return check.compareChain('nat', strayChainOf(part), part.digest)
  const table: IptablesTableName = part.id.startsWith('nat ') ? 'nat' : 'filter'
  const rules = linesOf(part.digest).map((line) => line.trimEnd())
  return check.compareRules(table, [...rules, ...jumpsOf(part)], isOptional)
}

/** A kernel without nfacct gets no rules that only count, and one that is liberal about TCP drops nothing as invalid. */
const isOptional = (rule: string): boolean => rule.includes(' --nfacct-name ') || rule.includes(' --ctstate INVALID ')

/** The base includes the jumps from the built-in chains: one part of each table stands for them. */
function jumpsOf({ kind, id }: Held): readonly string[] {
  if (kind !== 'base') return []
  const part = id as BasePart
  if (part === 'filter head') return jumps.filter(({ to }) => to === kubeletFirewall).map(formatJump)
  const table = { 'nat head': 'nat', 'filter tail': 'filter', 'nat tail': '' }[part]
  return jumps.filter((jump) => jump.table === table && jump.to !== kubeletFirewall).map(formatJump)
}
