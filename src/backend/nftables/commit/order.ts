// Decides the order in which changes reach the kernel, so that no packet meets less than before, or half of anything. Pure.
//
// 1. A packet reads rules as they were when it entered the hook, but elements as they are at the moment. Therefore a chain must exist one
//    transaction before the first element that leads into it. Otherwise the packet would run through an empty chain, untranslated.
// 2. Hooks come last: a table that is built in several transactions begins to work when all of it is there.
// 3. New objects come before removed ones are deleted. A source range is added before the element that makes ranges count, and is
//    deleted after that element.

import { type Steps, stride } from '../../../lib/yielding.ts'
import { beginChanges, type Changes, type Held } from '../../backend.ts'
import type { NftEntry } from '../entries.ts'
import type { Transaction } from './transaction.ts'

export type Step =
  /** Writes the chains that a frontend will lead into. */
  | { readonly step: 'prepare'; readonly entry: NftEntry }
  | { readonly step: 'put'; readonly entry: NftEntry }
  | { readonly step: 'drop'; readonly entry: Held }
  /** Replaces source ranges in one transaction. The kernel refuses ranges that overlap, so the old ones are deleted first. */
  | { readonly step: 'replace'; readonly drop: readonly Held[]; readonly put: readonly NftEntry[] }

export interface OrderedSteps {
  /** Sets and chains, which need a transaction of their own. */
  readonly first: Generator<Step>
  readonly second: Generator<Step>
}

/** Sorts the changes at once, but makes the steps only as they are read: there may be a hundred thousand. */
export function* orderSteps(put: readonly NftEntry[], drop: readonly Held[]): Steps<OrderedSteps> {
  const puts = yield* sortPuts(put)
  const drops = yield* sortDrops(drop)
  return { first: makeFirstSteps(puts), second: makeSecondSteps(puts, drops) }
}

interface SortedPuts {
  readonly sets: NftEntry[]
  readonly chains: NftEntry[]
  readonly hooks: NftEntry[]
  readonly ranges: NftEntry[]
  readonly members: NftEntry[]
  readonly frontends: NftEntry[]
}

function* sortPuts(put: readonly NftEntry[]): Steps<SortedPuts> {
  const sorted: SortedPuts = { sets: [], chains: [], hooks: [], ranges: [], members: [], frontends: [] }
  let seen = 0
  for (const entry of put) {
    if (++seen % stride === 0) yield
    if (entry.kind === 'frontend') sorted.frontends.push(entry)
    else if (entry.kind === 'element') (isRange(entry) ? sorted.ranges : sorted.members).push(entry)
    else if (entry.kind === 'chain') (entry.chain.hook === undefined ? sorted.chains : sorted.hooks).push(entry)
    else if (entry.kind === 'set') sorted.sets.push(entry)
  }
  sortChains(sorted.chains, 1)
  return sorted
}

interface SortedDrops {
  readonly frontends: Held[]
  readonly members: Held[]
  readonly chains: Held[]
  readonly sets: Held[]
  readonly firewalled: Held[]
  readonly ranges: Held[]
}

function* sortDrops(drop: readonly Held[]): Steps<SortedDrops> {
  const sorted: SortedDrops = { frontends: [], members: [], chains: [], sets: [], firewalled: [], ranges: [] }
  let seen = 0
  for (const held of drop) {
    if (++seen % stride === 0) yield
    if (held.kind === 'frontend') sorted.frontends.push(held)
    else if (held.kind === 'chain') sorted.chains.push(held)
    else if (held.kind === 'set') sorted.sets.push(held)
    else if (held.kind !== 'element') continue
    else if (isRange(held)) sorted.ranges.push(held)
    else if (isFirewalled(held)) sorted.firewalled.push(held)
    else sorted.members.push(held)
  }
  sortChains(sorted.chains, -1)
  return sorted
}

/**
 * Sorts the chains of services with affinity so that each comes after those that it jumps to, or before them with sign -1: there may be
 * several transactions and syncs between the first and the last chain of a service. Other chains keep their order.
 */
function sortChains(chains: Held[], sign: 1 | -1): void {
  if (chains.length < 2) return
  const ranked = chains.map((chain) => ({ chain, rank: sign * chainRank(chain.id) }))
  ranked.sort((a, b) => a.rank - b.rank)
  for (const [i, { chain }] of ranked.entries()) chains[i] = chain
}

function chainRank(id: string): number {
  if (!id.includes('/')) return 0 // A base chain, such as service-endpoints-check: only chains of services have a slash in their names.
  if (id.startsWith('chain endpoint-')) return 1
  if (partChain.test(id)) return 2
  if (id.startsWith('chain service-') || id.startsWith('chain local-')) return 3
  return id.startsWith('chain external-') ? 4 : 0
}

/** Matches the chains over which the rules of a service with many endpoints are spread. Hashes of services have eight characters. */
const partChain = /^chain (service|local)-[A-Z2-7]{1,2}-/

/** Iterates over lists of lists: most are empty, and a generator for each would cost more than a small change. */
function* makeFirstSteps({ sets, chains, frontends }: SortedPuts): Generator<Step> {
  for (const list of [sets, chains]) for (const entry of list) yield { step: 'put', entry }
  for (const entry of frontends) yield { step: 'prepare', entry }
}

/** An object that refers to another is deleted before it. */
function* makeSecondSteps(puts: SortedPuts, drops: SortedDrops): Generator<Step> {
  const { replacements, put, drop } = pairRanges(puts.ranges, drops.ranges)
  for (const step of replacements) yield step
  for (const list of [put, puts.members, puts.frontends, puts.hooks]) {
    for (const entry of list) yield { step: 'put', entry }
  }
  for (const list of [drops.frontends, drops.members, drops.chains, drops.sets, drops.firewalled, drop]) {
    for (const entry of list) yield { step: 'drop', entry }
  }
}

/** Selects the loopback listeners, which are sockets and not parts of the table. */
export function* selectListeners({ put, drop }: Changes<NftEntry>): Steps<Changes<NftEntry>> {
  const selected = beginChanges<NftEntry>()
  let seen = 0
  for (const entry of put) {
    if (++seen % stride === 0) yield
    if (entry.kind === 'listener') selected.put.push(entry)
  }
  for (const held of drop) {
    if (++seen % stride === 0) yield
    if (held.kind === 'listener') selected.drop.push(held)
  }
  return selected
}

export function applyStep(transaction: Transaction, step: Step): void {
  switch (step.step) {
    case 'prepare':
      transaction.prepare(step.entry)
      break
    case 'put':
      transaction.put(step.entry)
      break
    case 'drop':
      transaction.drop(step.entry)
      break
    case 'replace':
      for (const held of step.drop) transaction.drop(held)
      for (const entry of step.put) transaction.put(entry)
      break
  }
}

/** Returns the step without the refused entries; undefined if nothing is left of it. */
export function omitRefused(step: Step, refused: ReadonlyMap<string, unknown>): Step | undefined {
  if (refused.size === 0) return step
  if (step.step !== 'replace') return refused.has(step.entry.id) ? undefined : step
  const omit = <H extends Held>(list: readonly H[]) => list.filter(({ id }) => !refused.has(id))
  return { ...step, drop: omit(step.drop), put: omit(step.put) }
}

const isRange = ({ id }: Held): boolean => id.startsWith('firewall-allowed ')
const isFirewalled = ({ id }: Held): boolean => id.startsWith('firewalled-ips ')

interface PairedRanges {
  readonly replacements: readonly Step[]
  readonly put: readonly NftEntry[]
  readonly drop: readonly Held[]
}

/** Pairs the ranges of destinations that get some and lose some; the other ranges remain in `put` and `drop`. */
function pairRanges(put: readonly NftEntry[], drop: readonly Held[]): PairedRanges {
  if (put.length === 0 || drop.length === 0) return { replacements: [], put, drop }
  const replacements = new Map<string, { step: 'replace'; drop: Held[]; put: NftEntry[] }>()
  const destinations = new Set(put.map(destinationOf))
  const rest = beginChanges<NftEntry>()
  for (const held of drop) {
    const destination = destinationOf(held)
    const replacement = replacements.get(destination)
    if (!destinations.has(destination)) rest.drop.push(held)
    else if (replacement !== undefined) replacement.drop.push(held)
    else replacements.set(destination, { step: 'replace', drop: [held], put: [] })
  }
  for (const entry of put) (replacements.get(destinationOf(entry))?.put ?? rest.put).push(entry)
  return { replacements: [...replacements.values()], ...rest }
}

const destinationOf = ({ id }: Held): string => id.slice(0, id.lastIndexOf(' '))
