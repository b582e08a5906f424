// Says which entries to put and which to drop: claims by owner against what the data plane holds. Knows no kernel and no service.
//
// Design note. Goals, in this order:
//
// 1. Several owners may claim one id (two services that select one pod share its hairpin element). While one claim is
//    left the entry stays; a diff per owner would drop what another still needs.
// 2. The outcome is a function of the claims, never of their order: the bytewise smallest owner's claim wins. The base
//    is the owner '', so no service can displace it. Of two entries with one id from one owner the first counts.
// 3. A change costs the change: only ids whose winner changed since they were settled are compared.
// 4. Nothing is guessed. `settle` records exactly what the target said it wrote; after a failure `reset` takes what was
//    observed, and everything is compared again. Wants that change between `diff` and `settle` stay due.
// 5. A refused entry is set aside: not offered again, nor part of `wanted`, until it is retried or its content changes.
//    What was held under its id stays held.
// 6. Small: one slot per id, and a settled slot shares the entry it wants, so 200,000 entries cost tens of MB.
// 7. Whatever walks over all entries may be interrupted after every `stride` of them, and is right also if wants change meanwhile.

import { runAtOnce, type Steps } from '../lib/yielding.ts'
import type { Changes, Held, Wanted } from './backend.ts'

/** Entries between two places where a walk may be interrupted: a tenth of a millisecond, ten times that while the code is new. */
export const stride = 100

interface Claim<E> {
  readonly owner: string
  readonly entry: E
}

interface Slot<E> {
  /** The winner, undefined if nobody claims the id. */
  entry: E | undefined
  owner: string
  /** The losing claims, smallest owner first. */
  others: Claim<E>[] | undefined
  /** What the data plane holds; the very same object as `entry` once settled. */
  held: Held | undefined
  /** It is on the list of those to compare. */
  listed: boolean
}

export class Ledger<E extends Held> {
  readonly #slots = new Map<string, Slot<E>>()
  readonly #owned = new Map<string, readonly E[]>()
  /** To compare, each once; a superset of those that differ. */
  #due: Slot<E>[] = []
  readonly #refused = new Set<string>()
  #size = 0
  /** How often wants have changed. */
  #wants = 0
  /** The last diff, and the slots it speaks of, in its order. */
  #told: { readonly changes: Changes<E>; readonly slots: readonly Slot<E>[] } | undefined
  readonly #wanted: Wanted<E> = this.#view()

  /** Replaces all claims of an owner; none: the owner is forgotten. */
  want(owner: string, entries: readonly E[]): void {
    this.#wants++
    const before = this.#owned.get(owner)
    // What is there already stays the very same object: its equal is soon forgotten, and old objects are dear to forget.
    const own: E[] = []
    const ids = before === undefined ? undefined : new Set<string>()
    for (const entry of entries) {
      if (ids?.has(entry.id)) continue
      ids?.add(entry.id)
      own.push(this.#claim(owner, entry, ids !== undefined))
    }
    if (own.length === 0) this.#owned.delete(owner)
    // A list that was filled by push has room for sixteen more; there is one per service.
    else this.#owned.set(owner, own.slice())
    if (before === undefined) return
    for (const entry of before) if (!ids?.has(entry.id)) this.#release(owner, entry.id)
  }

  /** What the target must do for the data plane to hold the winners. Changes nothing: ask again, get the same. */
  diff(): Changes<E> {
    return runAtOnce(this.diffSteps())
  }

  *diffSteps(): Steps<Changes<E>> {
    const put: E[] = []
    const drop: Held[] = []
    const slots: Slot<E>[] = []
    const dropped: Slot<E>[] = []
    const wants = this.#wants
    yield* this.#shortening()
    let seen = 0
    for (const slot of this.#due) {
      if (++seen % stride === 0) yield
      if (slot.entry !== undefined) {
        put.push(slot.entry)
        slots.push(slot)
      } else {
        drop.push(slot.held as Held)
        dropped.push(slot)
      }
    }
    // Something was wanted in a pause: what was seen before it may no longer be so.
    if (wants !== this.#wants) return yield* this.diffSteps()
    this.#told = { changes: { put, drop }, slots: dropped.length === 0 ? slots : [...slots, ...dropped] }
    return this.#told.changes
  }

  /** The target did all of these changes but the refused ones. */
  settle(changes: Changes<E>, refused: Iterable<string> = []): void {
    runAtOnce(this.settleSteps(changes, refused))
  }

  *settleSteps(changes: Changes<E>, refused: Iterable<string> = []): Steps<void> {
    const failed = new Set(refused)
    const slots = this.#told?.changes === changes ? this.#told.slots : []
    this.#told = undefined
    let seen = 0
    for (const entry of changes.put) {
      const known = slots[seen]
      if (++seen % stride === 0) yield
      if (failed.size > 0 && failed.has(entry.id)) {
        this.#setAside(entry.id, entry.digest)
        continue
      }
      const slot = known !== undefined && isAlive(known) ? known : this.#slot(entry.id)
      slot.held = slot.entry?.digest === entry.digest ? slot.entry : entry
      this.#tidy(entry.id, slot)
    }
    for (const { id } of changes.drop) {
      const known = slots[seen]
      if (++seen % stride === 0) yield
      const slot = known !== undefined && isAlive(known) ? known : this.#slots.get(id)
      if (failed.has(id)) this.#setAside(id, undefined)
      else if (slot !== undefined) {
        slot.held = undefined
        this.#tidy(id, slot)
      }
    }
    yield* this.#shortening()
  }

  /** This, and nothing else, is what the data plane holds. Everything is compared by the next diff. */
  reset(held: Iterable<Held>): void {
    runAtOnce(this.resetSteps(held))
  }

  *resetSteps(held: Iterable<Held>): Steps<void> {
    let seen = 0
    for (const [id, slot] of this.#slots) {
      if (++seen % stride === 0) yield
      slot.held = undefined
      if (slot.entry === undefined) this.#slots.delete(id)
      else this.#list(slot)
    }
    for (const one of held) {
      if (++seen % stride === 0) yield
      const slot = this.#slot(one.id)
      slot.held = slot.entry?.digest === one.digest ? slot.entry : one
      this.#list(slot)
    }
    for (const id of this.#refused) {
      const slot = this.#slots.get(id)
      if (slot === undefined || !differs(slot)) this.#refused.delete(id)
    }
  }

  /** Offers a refused entry again. */
  retry(id: string): void {
    const slot = this.#slots.get(id)
    if (this.#refused.delete(id) && slot !== undefined) this.#list(slot)
  }

  /** Who claims an id, the winner first. */
  owners(id: string): readonly string[] {
    const slot = this.#slots.get(id)
    if (slot?.entry === undefined) return []
    return [slot.owner, ...(slot.others ?? []).map((claim) => claim.owner)]
  }

  /** What an owner claims, won or not. */
  claims(owner: string): readonly E[] {
    return this.#owned.get(owner) ?? []
  }

  /** The winners but the refused ones. A live view. */
  wanted(): Wanted<E> {
    return this.#wanted
  }

  /** Every winner with its owner, refused ones included. */
  *winners(): Iterable<{ readonly owner: string; readonly entry: E }> {
    for (const { owner, entry } of this.#slots.values()) if (entry !== undefined) yield { owner, entry }
  }

  #view(): Wanted<E> {
    const ledger = this
    return {
      get size() {
        let refused = 0
        for (const id of ledger.#refused) if (ledger.#slots.get(id)?.entry !== undefined) refused++
        return ledger.#size - refused
      },
      entry: (id) => (ledger.#refused.has(id) ? undefined : ledger.#slots.get(id)?.entry),
      *entries() {
        for (const [id, slot] of ledger.#slots) {
          if (slot.entry !== undefined && !ledger.#refused.has(id)) yield slot.entry
        }
      },
    }
  }

  /** Returns the entry that stands for the claim: one that was there already, if it says the same. */
  #claim(owner: string, entry: E, claimedBefore: boolean): E {
    flatten(entry.digest)
    flatten(entry.id)
    const slot = this.#slot(entry.id)
    if (slot.entry === undefined) return this.#win(slot, owner, entry)
    // Without earlier claims a second one of one owner is a second entry with one id: the first counts.
    if (slot.owner === owner) return claimedBefore ? this.#win(slot, owner, entry) : entry
    if (owner < slot.owner) {
      const loser = { owner: slot.owner, entry: slot.entry }
      slot.others = [loser, ...(slot.others ?? []).filter((claim) => claim.owner !== owner)]
      return this.#win(slot, owner, entry)
    }
    const rest = slot.others ?? []
    if (claimedBefore || !rest.some((claim) => claim.owner === owner)) {
      slot.others = [...rest.filter((claim) => claim.owner !== owner), { owner, entry }].sort(byOwner)
    }
    return entry
  }

  #release(owner: string, id: string): void {
    const slot = this.#slots.get(id)
    if (slot === undefined) return
    if (slot.owner !== owner || slot.entry === undefined) {
      const rest = slot.others?.filter((claim) => claim.owner !== owner)
      slot.others = rest?.length === 0 ? undefined : rest
      return
    }
    const next = slot.others?.shift()
    if (slot.others?.length === 0) slot.others = undefined
    if (next !== undefined) {
      this.#win(slot, next.owner, next.entry)
      return
    }
    slot.entry = undefined
    slot.owner = ''
    this.#size--
    this.#refused.delete(id)
    this.#tidy(id, slot)
  }

  #win(slot: Slot<E>, owner: string, entry: E): E {
    const before = slot.entry
    slot.owner = owner
    if (before?.digest === entry.digest) return before
    slot.entry = entry
    if (before === undefined) this.#size++
    this.#refused.delete(entry.id)
    this.#list(slot)
    return entry
  }

  /** Unless something else is wanted by now: then the refusal says nothing about what would be offered next. */
  #setAside(id: string, digest: string | undefined): void {
    if (this.#slots.get(id)?.entry?.digest !== digest) return
    this.#refused.add(id)
  }

  #slot(id: string): Slot<E> {
    let slot = this.#slots.get(id)
    if (slot === undefined) {
      slot = { entry: undefined, owner: '', others: undefined, held: undefined, listed: false }
      this.#slots.set(id, slot)
    }
    return slot
  }

  /** Lists a slot that differs, and forgets one that says nothing any more. */
  #tidy(id: string, slot: Slot<E>): void {
    if (differs(slot)) {
      this.#list(slot)
      return
    }
    if (this.#refused.size > 0) this.#refused.delete(id)
    if (slot.entry === undefined) this.#slots.delete(id)
  }

  #list(slot: Slot<E>): void {
    if (slot.listed) return
    slot.listed = true
    this.#due.push(slot)
  }

  /** Takes off the list what does not differ any more, or was refused: what brings it back lists it again. */
  *#shortening(): Steps<void> {
    const before = this.#due
    // What is listed in a pause comes here. What is still on the old list counts as listed.
    this.#due = []
    let seen = 0
    try {
      for (const slot of before) {
        if (seen > 0 && seen % stride === 0) yield
        seen++
        slot.listed = differs(slot) && !this.#refused.has((slot.entry ?? slot.held)?.id as string)
        if (slot.listed) this.#due.push(slot)
      }
    } finally {
      for (; seen < before.length; seen++) this.#due.push(before[seen] as Slot<E>)
    }
  }
}

/** Otherwise it is forgotten, and there may be another one by now. */
const isAlive = (slot: Slot<Held>): boolean => slot.entry !== undefined || slot.held !== undefined

const differs = (slot: Slot<Held>): boolean => slot.entry?.digest !== slot.held?.digest

const byOwner = (a: { readonly owner: string }, b: { readonly owner: string }): number => (a.owner < b.owner ? -1 : 1)

/** V8 keeps a text made of parts as a tree of them until somebody looks inside; as a tree it takes several times the memory. */
const flatten = (text: string): number => text.charCodeAt(text.length >> 1)
