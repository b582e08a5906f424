// Works out what a write changes in the kernel's tables: which chains are written and deleted, and what the tables hold then. Pure.
//
// If a service port changed, only its chains that differ from the written ones are written, and chains that it no longer has are
// deleted. The result is applied to `WrittenRules` after the kernel has accepted it, so there is nothing to undo if it does not.

import type { Held } from '../../backend.ts'
import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { type BaseEntry, type IptablesEntry, isIptablesEntry, type PortEntry, strayChainOf } from '../entries.ts'
import type { IptablesFeatures } from '../features.ts'
import { groupByChain } from '../port-text.ts'
import type { Unit } from './units.ts'
import { compareIds, type WrittenChange, type WrittenRules } from './written.ts'

export interface StagedWrite extends WrittenChange {
  /** Service chains to delete. Chains that jump come before those that they jump to. */
  readonly staleChains: readonly string[]
  /** Ports with chains to write, in order. */
  readonly rewritten: readonly PortEntry[]
  /** The chains to write, per id of their port; undefined: all chains of all rewritten ports. */
  readonly chains: ReadonlyMap<string, ReadonlySet<string>> | undefined
  /** Rules that follow those which a chain has already, per chain. These chains are not emptied. */
  readonly appended: ReadonlyMap<string, string>
  /** True if every shared chain stays as it was: then none is written. */
  readonly keepsShared: boolean
  readonly base: ReadonlyMap<string, BaseEntry>
  /** Endpoints of all ports after the write. */
  readonly endpoints: number
  readonly features: IptablesFeatures
}

/** If `everything` is true, no chain is taken to be as it was written: all chains of the units are written. */
export function stage(written: WrittenRules, units: readonly Unit[], everything: boolean): StagedWrite {
  const { changed: put, own, stale, hasStrays } = collectChanges(written, units)
  const drop = units.flatMap((unit) => unit.drop.map(({ id }) => id)).filter((id) => written.entry(id) !== undefined)
  const ports = mergePorts(written.ports(), put, drop)
  // A stray may have the name of a chain that is wanted by now.
  if (hasStrays) for (const { rules } of ports) for (const chain of rules.chains()) stale.delete(chain)
  const appended = new Map<string, string>()
  const chains = everything ? undefined : findChangedChains(written, put, appended)
  const rewritten = chains === undefined ? own : own.filter(({ id }) => chains.has(id))
  return {
    put,
    drop,
    ports,
    staleChains: [...stale].sort(compareDeletions),
    // Usually all ports are rewritten if everything is written.
    rewritten: rewritten.length === ports.length ? ports : rewritten.sort(compareIds),
    chains,
    appended,
    keepsShared: !everything && drop.length === 0 && !hasStrays && put.every((entry) => hasSameShared(written, entry)),
    base: mergeBase(written.base, put, drop),
    endpoints: countEndpoints(written, put, drop),
    features: written.features,
  }
}

/** True if the rules of an entry in shared chains are as they were. Endpoints that come and go leave them alone. */
function hasSameShared(written: WrittenRules, entry: IptablesEntry): boolean {
  if (entry.kind === 'base') return false
  const old = written.port(entry.id)?.rules
  const { rules } = entry
  return old !== undefined && old.shared() === rules.shared() && old.filter() === rules.filter()
}

interface CollectedChanges {
  /** Entries that are not written yet. Most of a full write is what was there before. */
  readonly changed: readonly IptablesEntry[]
  /** Ports among the units, changed or not. */
  readonly own: PortEntry[]
  /** Chains that the units no longer need. */
  readonly stale: Set<string>
  /** True if the units drop chains that no known entry has. */
  readonly hasStrays: boolean
}

function collectChanges(written: WrittenRules, units: readonly Unit[]): CollectedChanges {
  const changed: IptablesEntry[] = []
  const own: PortEntry[] = []
  const stale = new Set<string>()
  let hasStrays = false
  const discard = (chains: readonly string[]) => {
    for (const chain of chains) stale.add(chain)
  }
  for (const { put, drop, keepsChains = false } of units) {
    for (const entry of put) {
      if (entry.kind === 'port') own.push(entry)
      if (written.entry(entry.id)?.digest === entry.digest) continue
      changed.push(entry)
      if (!keepsChains) discard(findLostChains(written, entry))
    }
    if (keepsChains) continue
    hasStrays ||= drop.some((held) => !isIptablesEntry(held))
    for (const held of drop) discard(findChainsOf(written, held))
  }
  return { changed, own, stale, hasStrays }
}

/** Service chains that a port has and would lose. */
export function findLostChains(written: WrittenRules, entry: IptablesEntry): readonly string[] {
  const old = written.port(entry.id)
  if (old === undefined || entry.kind === 'base') return []
  const own = new Set(entry.rules.chains())
  return old.rules.chains().filter((chain) => !own.has(chain))
}

function findChangedChains(
  written: WrittenRules,
  put: readonly IptablesEntry[],
  appended: Map<string, string>,
): ReadonlyMap<string, ReadonlySet<string>> {
  const changed = new Map<string, ReadonlySet<string>>()
  for (const entry of put.filter(isPort)) {
    const chains = compareChains(written.port(entry.id), entry, appended)
    if (chains.size > 0) changed.set(entry.id, chains)
  }
  return changed
}

/** Chains of a port that are not as they were. If all old rules of a chain stay in front, the others go to `appended`. */
function compareChains(
  old: PortEntry | undefined,
  entry: PortEntry,
  appended: Map<string, string>,
): ReadonlySet<string> {
  const chains = entry.rules.chains()
  if (old === undefined) return new Set(chains)
  const [before, after] = [groupByChain(old.rules.own()), groupByChain(entry.rules.own())]
  const known = new Set(old.rules.chains())
  const changed = chains.filter((chain) => !known.has(chain) || before.get(chain) !== after.get(chain))
  for (const chain of changed) {
    const start = before.get(chain)
    const text = after.get(chain)
    if (start !== undefined && text?.startsWith(start)) appended.set(chain, text.slice(start.length))
  }
  return new Set(changed)
}

/** Chains of a dropped entry or stray. */
function findChainsOf(written: WrittenRules, held: Held): readonly string[] {
  if (!isIptablesEntry(held)) return [strayChainOf(held)]
  const old = written.port(held.id)
  return [...(held.kind === 'port' ? held.rules.chains() : []), ...(old?.rules.chains() ?? [])]
}

const compareDeletions = (a: string, b: string): number => Number(isEndpointChain(a)) - Number(isEndpointChain(b))

const isPort = (entry: IptablesEntry): entry is PortEntry => entry.kind === 'port'

/** Up to this many changes are made one by one in a copy of the list, without a loop over all ports that V8 would have to compile. */
const fewChanges = 100

/** The ports after a change, in order. */
function mergePorts(
  sorted: readonly PortEntry[],
  put: readonly IptablesEntry[],
  drop: readonly string[],
): readonly PortEntry[] {
  const ports = put.filter(isPort)
  if (ports.length + drop.length > fewChanges) {
    const replaced = new Set([...drop, ...ports.map(({ id }) => id)])
    return [...sorted.filter(({ id }) => !replaced.has(id)), ...ports].sort(compareIds)
  }
  const merged = [...sorted]
  for (const id of drop) {
    const at = findPlace(merged, id)
    if (merged[at]?.id === id) merged.splice(at, 1)
  }
  for (const port of ports) {
    const at = findPlace(merged, port.id)
    if (merged[at]?.id === port.id) merged[at] = port
    else merged.splice(at, 0, port)
  }
  return merged
}

/** Index of the first port from `from` on whose id is not before `id`. */
export function findPlace(sorted: readonly PortEntry[], id: string, from = 0): number {
  let low = from
  for (let high = sorted.length; low < high; ) {
    const middle = (low + high) >> 1
    if ((sorted[middle] as PortEntry).id < id) low = middle + 1
    else high = middle
  }
  return low
}

function mergeBase(
  base: ReadonlyMap<string, BaseEntry>,
  put: readonly IptablesEntry[],
  drop: readonly string[],
): ReadonlyMap<string, BaseEntry> {
  const merged = new Map(base)
  for (const id of drop) merged.delete(id)
  for (const entry of put) if (entry.kind === 'base') merged.set(entry.id, entry)
  return merged
}

function countEndpoints(written: WrittenRules, put: readonly IptablesEntry[], drop: readonly string[]): number {
  let endpoints = written.endpoints
  for (const id of drop) endpoints -= written.port(id)?.endpoints ?? 0
  for (const entry of put.filter(isPort)) endpoints += entry.endpoints - (written.port(entry.id)?.endpoints ?? 0)
  return endpoints
}
