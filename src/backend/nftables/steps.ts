// The order in which changes reach the kernel, so that no packet meets less than before, or half of anything. Pure.
//
// 1. A packet reads rules as they were when it entered, but elements as they are now. A chain must therefore be there one
//    transaction before the first element that leads into it, or the packet would run through an empty chain, untranslated.
// 2. Hooks come last: a table that is built in several transactions begins to work when all of it is there.
// 3. What is new comes before what goes; a source range before the list that makes ranges count, and after it on the way out.

import type { Held } from '../backend.ts'
import type { Draft } from './draft.ts'
import type { NftEntry } from './entries.ts'

export type Step =
  | { readonly step: 'prepare'; readonly entry: NftEntry }
  | { readonly step: 'put'; readonly entry: NftEntry }
  | { readonly step: 'drop'; readonly entry: Held }
  /** The kernel refuses ranges that overlap, so the old ones go first, in the same transaction. */
  | { readonly step: 'exchange'; readonly drop: readonly Held[]; readonly put: readonly NftEntry[] }

export interface Steps {
  /** Sets and chains, with a transaction of their own. */
  readonly first: readonly Step[]
  readonly then: readonly Step[]
}

export function stepsOf(put: readonly NftEntry[], drop: readonly Held[]): Steps {
  const chains = put.filter((entry) => entry.kind === 'chain')
  const members = put.filter((entry) => entry.kind === 'element')
  const frontends = put.filter((entry) => entry.kind === 'frontend')
  const first: Step[] = [
    ...put.filter((entry) => entry.kind === 'set').map(putting),
    ...chains.filter(({ chain }) => chain.hook === undefined).map(putting),
    ...frontends.map((entry): Step => ({ step: 'prepare', entry })),
  ]
  const { exchanged, rest } = exchangesOf(members.filter(isRange), drop.filter(isRange))
  const then: Step[] = [
    ...exchanged,
    ...rest.put.map(putting),
    ...members.filter((entry) => !isRange(entry)).map(putting),
    ...frontends.map(putting),
    ...chains.filter(({ chain }) => chain.hook !== undefined).map(putting),
    ...removalOrder.flatMap((wanted) => drop.filter((held) => wanted(held)).map(dropping)),
    ...drop.filter(isFirewalled).map(dropping),
    ...rest.drop.map(dropping),
  ]
  return { first, then }
}

export function take(draft: Draft, step: Step): void {
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

const putting = (entry: NftEntry): Step => ({ step: 'put', entry })
const dropping = (entry: Held): Step => ({ step: 'drop', entry })

const isRange = ({ id }: Held): boolean => id.startsWith('firewall-allowed ')
const isFirewalled = ({ id }: Held): boolean => id.startsWith('firewalled-ips ')

/** What refers to another goes before it. */
const removalOrder: readonly ((held: Held) => boolean)[] = [
  ({ kind }) => kind === 'frontend',
  (held) => held.kind === 'element' && !isRange(held) && !isFirewalled(held),
  ({ kind }) => kind === 'chain',
  ({ kind }) => kind === 'set',
]

/** Destinations of which ranges both come and go. */
function exchangesOf(put: readonly NftEntry[], drop: readonly Held[]) {
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
