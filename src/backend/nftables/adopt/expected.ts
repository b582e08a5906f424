// Describes our table as it should be, so that a dump can be compared with it. Pure.

import type { NodeView } from '../../../model/types.ts'
import { base } from '../base.ts'
import type { ChainSpec, NftSetShape, NftSetSpec } from '../entries.ts'
import { BalanceChains } from '../rules.ts'

export interface ExpectedTable {
  readonly node: NodeView
  /** The sets and chains of the base by name. */
  readonly sets: ReadonlyMap<string, NftSetSpec>
  readonly chains: ReadonlyMap<string, ChainSpec>
  readonly balanceChains: BalanceChains
  /** Whether slots count. */
  readonly counting: boolean
}

/** Describes the base with every set that it may ever have. */
export function describeTable(node: NodeView, counting: boolean): ExpectedTable {
  const sets = new Map<string, NftSetSpec>()
  const chains = new Map<string, ChainSpec>()
  for (const entry of base({ ...node, nodePorts: { ...node.nodePorts, all: false } })) {
    if (entry.kind === 'set') sets.set(entry.set.name, entry.set)
    else if (entry.kind === 'chain') chains.set(entry.chain.name, entry.chain)
  }
  return { node, sets, chains, balanceChains: new BalanceChains(node), counting }
}

export const isAffinitySet = (name: string): boolean => name.startsWith('affinity-')

/** Undefined if our table has no such set. */
export const findShape = ({ sets }: ExpectedTable, set: string): NftSetShape | undefined =>
  isAffinitySet(set) ? 'affinity' : sets.get(set)?.shape
