// Splits the changes of service ports with thousands of chains into parts, between which others can be written. Pure.
//
// A part is an entry that is not complete yet: first the chains of new endpoints, some at a time; then the rules that choose among them,
// also some at a time; then all rules, with which traffic arrives; and at last the chains that nothing jumps to any more go, some at a
// time. No packet meets half of anything: nothing leads to a chain that is new, and the rules of a chain in use are exchanged at once.
//
// iptables-nft-restore 1.8.9 takes 7 ms for 100 chains, 40 ms for 1,000 rules that jump and 2.3 s for 10,000 of them: its time grows with
// the square of what one restore has. So rules are appended where possible (stage.ts).

import type { Changes, Held } from '../../backend.ts'
import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { linesOf } from '../../iptables-kit/restore-text.ts'
import { createPortEntry, type IptablesEntry, isIptablesEntry, type PortEntry } from '../entries.ts'
import { groupByChain } from '../port-text.ts'

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
  return isEmpty && parts.length > 0 ? parts : [{ id: '', changes: () => small, complete: small }, ...parts]
}

type Step = () => PortEntry

function makeParts(id: string, steps: readonly Step[], complete: Part['complete']): readonly Part[] {
  const parts = steps.map((step): Part => ({ id, changes: () => ({ put: [step()], drop: [] }), complete: none }))
  // A port that goes has only the chains of its last step by now.
  const isDrop = complete.drop.length > 0
  const changes = () => (isDrop ? { put: [], drop: [(steps.at(-1) as Step)()] } : complete)
  return [...parts, { id, changes, complete }]
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
  if (added.length <= chains && gone.length <= chains) return []
  const last = (wanted ?? old) as PortEntry
  const build = (content: () => Content) => () => buildEntry(last, content())
  const grown = listGrowth(before, after, { added, limits })
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

interface Growth {
  /** Chains that are new. */
  readonly added: readonly string[]
  readonly limits: PartLimits
}

/** What was there with more and more of what is new: chains of endpoints, then the rules of other chains. */
function listGrowth(before: Content, after: Content, { added, limits }: Growth): readonly (() => Content)[] {
  const rulesOf = (chain: string) => after.byChain.get(chain) ?? []
  const endpoints = added.filter(isEndpointChain).map((chain) => [chain, rulesOf(chain)] as const)
  const steps = Array.from(
    { length: Math.ceil(endpoints.length / limits.chains) },
    (_, i) => () => extend(before, endpoints.slice(0, (i + 1) * limits.chains)),
  )
  const long = added.filter((chain) => !isEndpointChain(chain) && rulesOf(chain).length > limits.rules)
  for (const [n, chain] of long.entries()) {
    const others = [...endpoints, ...long.slice(0, n).map((one) => [one, rulesOf(one)] as const)]
    for (let from = 0; from < rulesOf(chain).length; from += limits.rules) {
      const rules = () => rulesOf(chain).slice(0, from + limits.rules)
      steps.push(() => extend(before, [...others, [chain, rules()]]))
    }
  }
  return steps
}

const extend = (content: Content, chains: readonly (readonly [string, readonly string[]])[]): Content => ({
  ...content,
  byChain: new Map([...content.byChain, ...chains]),
})

/** The rules of a port. Lines have no newline. */
interface Content {
  readonly byChain: ReadonlyMap<string, readonly string[]>
  readonly shared: readonly string[]
  readonly counted: number
  readonly filter: readonly string[]
}

const nothing: Content = { byChain: new Map(), shared: [], counted: 0, filter: [] }

function contentOf(entry: PortEntry | undefined): Content {
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

function buildEntry({ id, service, endpoints }: PortEntry, { byChain, ...rest }: Content): PortEntry {
  const rules = { ...rest, chains: [...byChain.keys()], own: [...byChain.values()].flat(), unreached: 0 }
  return createPortEntry({ id, service }, rules, endpoints)
}

const listLines = (text: string): readonly string[] => linesOf(text).map((line) => line.slice(0, -1))
