// The rules of a service port by chain, so that versions between an old and a new one can be built. Pure.

import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { linesOf } from '../../iptables-kit/restore-text.ts'
import { hash32 } from '../../names.ts'
import { createPortEntry, type PortEntry } from '../entries.ts'
import { groupByChain } from '../port-text.ts'

/** The rules of a port. Lines have no newline. */
export interface PortContent {
  readonly byChain: ReadonlyMap<string, readonly string[]>
  readonly shared: readonly string[]
  readonly counted: number
  readonly filter: readonly string[]
}

/** A chain and its rules. */
export type NamedChain = readonly [string, readonly string[]]

const nothing: PortContent = { byChain: new Map(), shared: [], counted: 0, filter: [] }

export function contentOf(entry: PortEntry | undefined): PortContent {
  if (entry === undefined) return nothing
  const { rules } = entry
  const texts = groupByChain(rules.own())
  const byChain = new Map(rules.chains().map((chain) => [chain, listLines(texts.get(chain) ?? '')]))
  return {
    byChain,
    shared: listLines(rules.shared()),
    counted: rules.countedCount,
    filter: listLines(rules.filter()),
  }
}

export function buildEntry({ id, service, endpoints }: PortEntry, { byChain, ...rest }: PortContent): PortEntry {
  const rules = { ...rest, chains: [...byChain.keys()], own: [...byChain.values()].flat(), unreached: 0 }
  return createPortEntry({ id, service }, rules, endpoints)
}

const listLines = (text: string): readonly string[] => linesOf(text).map((line) => line.slice(0, -1))

/** The content with more chains, or with other rules in chains that it has. */
export const extend = (content: PortContent, chains: readonly NamedChain[]): PortContent => ({
  ...content,
  byChain: new Map([...content.byChain, ...chains]),
})

/** Whether a rule leads to the chain. */
export function isUsed({ byChain, shared }: PortContent, chain: string): boolean {
  const jump = `-j ${chain}`
  const jumps = (rules: readonly string[]) => rules.some((rule) => rule.includes(jump))
  return jumps(shared) || [...byChain].some(([name, rules]) => name !== chain && !isEndpointChain(name) && jumps(rules))
}

/** The chain that takes the place of another for a while. Its prefix is the same, by which cleanup finds it. */
export const substituteOf = (chain: string): string =>
  `${chain.slice(0, chain.lastIndexOf('-') + 1)}${hash32(`${chain} substitute`, 16)}`

/** The content with the substitutes of these chains in their place, in every rule. */
export function substitute({ byChain, shared, ...rest }: PortContent, chains: readonly string[]): PortContent {
  const names = chains.map((chain) => [chain, substituteOf(chain)] as const)
  const rename = (text: string) => names.reduce((result, [from, to]) => result.replaceAll(from, to), text)
  const renameChain = ([chain, rules]: NamedChain): NamedChain =>
    isEndpointChain(chain) ? [chain, rules] : [rename(chain), rules.map(rename)]
  return { ...rest, byChain: new Map([...byChain].map(renameChain)), shared: shared.map(rename) }
}
