// The order in which changes reach the kernel, so that no packet meets less than before, or half of anything. Pure.
//
// 1. A packet reads rules as they were when it entered, but elements as they are now. A chain must therefore be there one
//    transaction before the first element that leads into it, or the packet would run through an empty chain, untranslated.
// 2. Hooks come last: a table that is built in several transactions begins to work when all of it is there.
// 3. What is new comes before what goes; a source range before the list that makes ranges count, and after it on the way out.

import type { Steps } from '../../../lib/yielding.ts'
import type { Changes, Held } from '../../backend.ts'
import type { NftEntry } from '../entries.ts'
import { stride, type Transaction } from './transaction.ts'

export type Step =
  | { readonly step: 'prepare'; readonly entry: NftEntry }
  | { readonly step: 'put'; readonly entry: NftEntry }
  | { readonly step: 'drop'; readonly entry: Held }
  /** The kernel refuses ranges that overlap, so the old ones go first, in the same transaction. */
  | { readonly step: 'exchange'; readonly drop: readonly Held[]; readonly put: readonly NftEntry[] }

export interface OrderedSteps {
  /** Sets and chains, with a transaction of their own. */
  readonly first: Iterable<Step>
  readonly second: Iterable<Step>
}

/** Sorted out first, put into words only as far as they are read: there may be a hundred thousand. */
export function* orderSteps(put: readonly NftEntry[], drop: readonly Held[]): Steps<OrderedSteps> {
  const coming = yield* sortComing(put)
  const going = yield* sortGoing(drop)
  return { first: firstSteps(coming), second: secondSteps(coming, going) }
}

interface Coming {
  readonly sets: readonly NftEntry[]
  readonly chains: readonly NftEntry[]
  readonly hooks: readonly NftEntry[]
  readonly ranges: readonly NftEntry[]
  readonly members: readonly NftEntry[]
  readonly frontends: readonly NftEntry[]
}

function* sortComing(put: readonly NftEntry[]): Steps<Coming> {
  const [sets, chains, hooks]: [NftEntry[], NftEntry[], NftEntry[]] = [[], [], []]
  const [ranges, members, frontends]: [NftEntry[], NftEntry[], NftEntry[]] = [[], [], []]
  let seen = 0
  for (const entry of put) {
    if (++seen % stride === 0) yield
    if (entry.kind === 'frontend') frontends.push(entry)
    else if (entry.kind === 'element') (isRange(entry) ? ranges : members).push(entry)
    else if (entry.kind === 'chain') (entry.chain.hook === undefined ? chains : hooks).push(entry)
    else if (entry.kind === 'set') sets.push(entry)
  }
  return { sets, chains, hooks, ranges, members, frontends }
}

interface Going {
  readonly frontends: readonly Held[]
  readonly members: readonly Held[]
  readonly chains: readonly Held[]
  readonly sets: readonly Held[]
  readonly firewalled: readonly Held[]
  readonly ranges: readonly Held[]
}

function* sortGoing(drop: readonly Held[]): Steps<Going> {
  const [frontends, members, chains]: [Held[], Held[], Held[]] = [[], [], []]
  const [sets, firewalled, ranges]: [Held[], Held[], Held[]] = [[], [], []]
  let seen = 0
  for (const held of drop) {
    if (++seen % stride === 0) yield
    if (held.kind === 'frontend') frontends.push(held)
    else if (held.kind === 'element') (isRange(held) ? ranges : isFirewalled(held) ? firewalled : members).push(held)
    else if (held.kind === 'chain') chains.push(held)
    else if (held.kind === 'set') sets.push(held)
  }
  return { frontends, members, chains, sets, firewalled, ranges }
}

/** Lists of lists: most are empty, and a generator for each would cost more than a small change. */
function* firstSteps({ sets, chains, frontends }: Coming): Generator<Step> {
  for (const list of [sets, chains]) for (const entry of list) yield { step: 'put', entry }
  for (const entry of frontends) yield { step: 'prepare', entry }
}

/** On the way out, what refers to another goes before it. */
function* secondSteps({ members, frontends, hooks, ...coming }: Coming, going: Going): Generator<Step> {
  const { exchanged, rest } = exchangesOf(coming.ranges, going.ranges)
  for (const step of exchanged) yield step
  for (const list of [rest.put, members, frontends, hooks]) for (const entry of list) yield { step: 'put', entry }
  const { chains, sets, firewalled } = going
  for (const list of [going.frontends, going.members, chains, sets, firewalled, rest.drop]) {
    for (const entry of list) yield { step: 'drop', entry }
  }
}

/** Sockets among the changes: no step of the table's. */
export function* listening({ put, drop }: Changes<NftEntry>): Steps<Changes<NftEntry>> {
  const found = { put: [] as NftEntry[], drop: [] as Held[] }
  let seen = 0
  for (const entry of put) {
    if (++seen % stride === 0) yield
    if (entry.kind === 'listener') found.put.push(entry)
  }
  for (const held of drop) {
    if (++seen % stride === 0) yield
    if (held.kind === 'listener') found.drop.push(held)
  }
  return found
}

export function applyStep(draft: Transaction, step: Step): void {
  if (step.step === 'prepare') draft.prepare(step.entry)
  else if (step.step === 'put') draft.put(step.entry)
  else if (step.step === 'drop') draft.drop(step.entry)
  else {
    for (const held of step.drop) draft.drop(held)
    for (const entry of step.put) draft.put(entry)
  }
}

/** The step without what is out; undefined if nothing is left of it. */
export function without(step: Step, out: ReadonlySet<string>): Step | undefined {
  if (out.size === 0) return step
  if (step.step !== 'exchange') return out.has(step.entry.id) ? undefined : step
  const keep = <H extends Held>(list: readonly H[]) => list.filter(({ id }) => !out.has(id))
  return { ...step, drop: keep(step.drop), put: keep(step.put) }
}

const isRange = ({ id }: Held): boolean => id.startsWith('firewall-allowed ')
const isFirewalled = ({ id }: Held): boolean => id.startsWith('firewalled-ips ')

/** Destinations of which ranges both come and go. */
function exchangesOf(put: readonly NftEntry[], drop: readonly Held[]) {
  if (put.length === 0 || drop.length === 0) return { exchanged: [], rest: { put, drop } }
  const exchanges = new Map<string, { step: 'exchange'; drop: Held[]; put: NftEntry[] }>()
  const coming = new Set(put.map(destination))
  const rest = { put: [] as NftEntry[], drop: [] as Held[] }
  for (const held of drop) {
    const key = destination(held)
    if (!coming.has(key)) rest.drop.push(held)
    else if (exchanges.has(key)) exchanges.get(key)?.drop.push(held)
    else exchanges.set(key, { step: 'exchange', drop: [held], put: [] })
  }
  for (const entry of put) (exchanges.get(destination(entry))?.put ?? rest.put).push(entry)
  return { exchanged: [...exchanges.values()], rest }
}

const destination = ({ id }: Held): string => id.slice(0, id.lastIndexOf(' '))
