// Splits the changes of service ports with thousands of chains into parts, between which others can be written. Pure.
//
// A part is an entry that is not complete yet: first the chains of new endpoints, some at a time; then the rules that choose among them,
// also some at a time; then all rules, with which traffic arrives; and at last the chains that nothing jumps to any more go, some at a
// time. No packet meets half of anything: nothing leads to a chain that is new.
//
// iptables-nft-restore 1.8.9 takes 7 ms for 100 chains, 40 ms for 1,000 rules that jump and 2.3 s for 10,000 of them: its time grows with
// the square of what one restore has. So rules are appended where possible (stage.ts). A long chain that traffic uses gets a substitute:
// the new rules are appended to the substitute, traffic is led there, the chain is deleted and written again in the same way, and traffic is
// led back. Each switch is one restore with few rules. Inserting new rules into the chain and deleting old ones would take longer: with
// positions iptables-nft-restore reads the whole chain.

import type { Changes, Held } from '../../backend.ts'
import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { type IptablesEntry, isIptablesEntry, type PortEntry } from '../entries.ts'
import {
  buildEntry,
  contentOf,
  extend,
  isUsed,
  type NamedChain,
  type PortContent,
  substitute,
  substituteOf,
} from './port-content.ts'

/** What one part may have. */
export interface PartLimits {
  /** Chains that are written. */
  readonly chains: number
  /** Rules that are added to a chain. */
  readonly rules: number
}

export interface Part {
  /** The port that it is a part of; '' for all changes that are not split. */
  readonly id: string
  /** True if the port goes. */
  readonly isRemoval: boolean
  /** Makes what is to be written. There may be tens of parts with the text of a large port each. */
  readonly changes: () => Changes<IptablesEntry>
  /** The changes, as the caller knows them, that are complete with this part. */
  readonly complete: Changes<IptablesEntry>
}

/** `writtenPort` returns what the tables hold for a port. Small changes are one part, which comes first. */
export function splitChanges(
  { put, drop }: Changes<IptablesEntry>,
  writtenPort: (id: string) => PortEntry | undefined,
  limits: PartLimits,
): readonly Part[] {
  const small = { put: [] as IptablesEntry[], drop: [] as Held[] }
  const parts: Part[] = []
  for (const entry of put) {
    const steps = entry.kind === 'port' ? listSteps(writtenPort(entry.id), entry, limits) : []
    if (steps.length === 0) small.put.push(entry)
    else parts.push(...makeParts(entry.id, steps, { put: [entry], drop: [] }))
  }
  for (const held of drop) {
    const old = isIptablesEntry(held) ? writtenPort(held.id) : undefined
    const steps = old === undefined ? [] : listSteps(old, undefined, limits)
    if (steps.length === 0) small.drop.push(held)
    else parts.push(...makeParts(held.id, steps, { put: [], drop: [held] }))
  }
  const isEmpty = small.put.length + small.drop.length === 0
  if (isEmpty && parts.length > 0) return parts
  return [{ id: '', isRemoval: false, changes: () => small, complete: small }, ...parts]
}

type Step = () => PortEntry

function makeParts(id: string, steps: readonly Step[], complete: Part['complete']): readonly Part[] {
  const isRemoval = complete.drop.length > 0
  const changesOf = (step: Step) => () => ({ put: [step()], drop: [] })
  const parts = steps.map((step): Part => ({ id, isRemoval, changes: changesOf(step), complete: none }))
  // A port that goes has only the chains of its last step by now.
  const changes = () => (isRemoval ? { put: [], drop: [(steps.at(-1) as Step)()] } : complete)
  return [...parts, { id, isRemoval, changes, complete }]
}

const none = { put: [], drop: [] }

/** Makes the entries between what is written and what is wanted; none if the change is small. */
function listSteps(old: PortEntry | undefined, wanted: PortEntry | undefined, limits: PartLimits): readonly Step[] {
  const { chains } = limits
  const mostChanged = (old?.rules.chainCount ?? 0) + (wanted?.rules.chainCount ?? 0)
  if (mostChanged <= chains) return []
  const [before, after] = [contentOf(old), contentOf(wanted)]
  const added = [...after.byChain.keys()].filter((chain) => !before.byChain.has(chain))
  const gone = [...before.byChain.keys()].filter((chain) => !after.byChain.has(chain))
  const long = findLongChanges(before, after, limits.rules)
  if (added.length <= chains && gone.length <= chains && long.length === 0) return []
  const last = (wanted ?? old) as PortEntry
  const build = (content: () => PortContent) => () => buildEntry(last, content())
  const grown = listGrowth(before, after, { added, long, limits })
  if (gone.length <= chains) return grown.map(build)
  const stale = gone.filter(isEndpointChain)
  const shrunk = Array.from({ length: Math.ceil(stale.length / chains) }, (_, i) => () => {
    const kept = stale.slice(0, stale.length - i * chains)
    return extend(
      after,
      kept.map((chain) => [chain, before.byChain.get(chain) ?? []]),
    )
  })
  return [...grown, ...shrunk].map(build)
}

/** Chains with other rules than before that are too many for one restore. Chains of endpoints have two or three rules. */
const findLongChanges = (before: PortContent, after: PortContent, limit: number): readonly string[] =>
  [...after.byChain]
    .filter(([chain, rules]) => rules.length > limit && before.byChain.get(chain)?.join('\n') !== rules.join('\n'))
    .map(([chain]) => chain)

interface Growth {
  /** Chains that are new. */
  readonly added: readonly string[]
  /** Chains that one restore cannot write. */
  readonly long: readonly string[]
  readonly limits: PartLimits
}

/** What was there with more and more of what is new: chains of endpoints, then the rules of long chains. */
function listGrowth(
  before: PortContent,
  after: PortContent,
  { added, long, limits }: Growth,
): readonly (() => PortContent)[] {
  const rulesOf = (chain: string) => after.byChain.get(chain) ?? []
  const endpoints = added.filter(isEndpointChain).map((chain): NamedChain => [chain, rulesOf(chain)])
  const steps = Array.from(
    { length: Math.ceil(endpoints.length / limits.chains) },
    (_, i) => () => extend(before, endpoints.slice(0, (i + 1) * limits.chains)),
  )
  const used = long.filter((chain) => isUsed(before, chain))
  const substituted = substitute(after, used)
  const unused = long.map((chain) => (used.includes(chain) ? substituteOf(chain) : chain))
  const named = unused.map((chain): NamedChain => [chain, substituted.byChain.get(chain) ?? []])
  steps.push(...listAppends(() => extend(before, endpoints), named, limits.rules))
  if (used.length === 0) return steps
  // Chains of endpoints that go are deleted later.
  const stale = [...before.byChain].filter(([chain]) => isEndpointChain(chain) && !after.byChain.has(chain))
  const switched = () => extend(substituted, stale)
  const again = used.map((chain): NamedChain => [chain, rulesOf(chain)])
  return [...steps, switched, ...listAppends(switched, again, limits.rules)]
}

/** The content with one chain after the other, each with more and more of its rules. */
const listAppends = (
  content: () => PortContent,
  chains: readonly NamedChain[],
  limit: number,
): readonly (() => PortContent)[] =>
  chains.flatMap(([chain, rules], n) =>
    Array.from(
      { length: Math.ceil(rules.length / limit) },
      (_, i) => () => extend(content(), [...chains.slice(0, n), [chain, rules.slice(0, (i + 1) * limit)]]),
    ),
  )
