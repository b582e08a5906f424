// Decides which entries to put and which to drop: compares what owners claim with what the data plane holds. Knows no kernel, no service.
//
// Design note. Goals, in this order:
//
// 1. Several owners may claim one id (two services that select one pod share its hairpin element). While one claim is left the entry
//    stays; a diff per owner would drop an entry that another owner still needs.
// 2. The result depends on the claims, never on their order: the claim of the bytewise smallest owner wins. The base is the owner '',
//    so no service can displace it. If one owner claims an id twice, the first claim counts.
// 3. The cost of a change is proportional to the change: only ids whose winner changed since they were settled are compared.
// 4. Nothing is guessed. `settle` records exactly what the target says it wrote; after a failure `reset` takes what was observed, and
//    everything is compared again. Claims that change between `diff` and `settle` stay due.
// 5. A refused entry is set aside: it is not offered again, and is not part of `wanted`, until it is retried or its content changes.
//    What the data plane held under its id counts as still held.
// 6. Small: one slot per id, and a settled slot shares the entry that it wants, so 200,000 entries cost tens of MB.
// 7. Changes that are written over several syncs are postponed: no diff visits them until they are recalled. If the winner of one of them
//    changes, the ledger says so: then what is being written is out of date.
// 8. Operations on all entries are generators that yield after every `stride` entries. They stay correct if claims change meanwhile.

import { type Steps, stride } from '../lib/yielding.ts'
import type { Changes, Held, Wanted } from './backend.ts'

interface Claim<E> {
  readonly owner: string
  readonly entry: E
}

interface Slot<E> {
  /** The winning entry; undefined if no owner claims the id. */
  entry: E | undefined
  owner: string
  /** The losing claims, smallest owner first. */
  others: Claim<E>[] | undefined
  /** What the data plane holds; the same object as `entry` once settled. */
  held: Held | undefined
  /** Whether the slot is in the list of slots to compare, or in the list of postponed slots. */
  list: 'none' | 'due' | 'postponed'
}

export class Ledger<E extends Held> {
  readonly #slots = new Map<string, Slot<E>>()
  readonly #owned = new Map<string, readonly E[]>()
  /** Slots to compare, each once; a superset of the slots that differ. */
  #due: Slot<E>[] = []
  /** A superset of the postponed slots. */
  #postponed: Slot<E>[] = []
  #isDisturbed = false
  readonly #refused = new Set<string>()
  #hasSettled = false
  /** What was held, for ids that differed when the data plane was observed again; all others were settled. Until the next settle. */
  #beforeReset: Map<string, Held | undefined> | undefined
  #size = 0
  /** How often claims have changed. */
  #claimChanges = 0
  /** The result of the last diff, and its slots in the same order. */
  #lastDiff: { readonly changes: Changes<E>; readonly slots: readonly Slot<E>[] } | undefined
  readonly #wanted: Wanted<E> = this.#makeWanted()

  /** Replaces all claims of an owner. An owner without claims is forgotten. */
  want(owner: string, entries: readonly E[]): void {
    const steps = this.replaceClaims(owner, entries)
    while (steps.next().done !== true);
  }

  /** As `want`, in steps: an owner may have tens of thousands of entries. If the work is abandoned, the claims are replaced all the same. */
  *replaceClaims(owner: string, entries: readonly E[]): Steps<void> {
    const steps = this.#replaceClaims(owner, entries)
    let isDone = false
    try {
      while (!isDone) {
        isDone = steps.next().done === true
        if (!isDone) yield
      }
    } finally {
      while (!isDone) isDone = steps.next().done === true
    }
  }

  *#replaceClaims(owner: string, entries: readonly E[]): Steps<void> {
    this.#claimChanges++
    const before = this.#owned.get(owner)
    // An entry with the same content stays the same object: an equal copy would be collected young, while replacing the old object
    // costs a collection of the whole heap.
    const own: E[] = []
    const ids = before === undefined ? undefined : new Set<string>()
    let seen = 0
    for (const entry of entries) {
      if (++seen % stride === 0) yield
      if (ids?.has(entry.id)) continue
      ids?.add(entry.id)
      own.push(this.#claim(owner, entry, ids !== undefined))
    }
    if (own.length === 0) this.#owned.delete(owner)
    // A list that was filled by push has room for sixteen more entries, and there is one list per service; a slice has none.
    else this.#owned.set(owner, own.slice())
    if (before === undefined) return
    for (const entry of before) {
      if (++seen % stride === 0) yield
      if (!ids?.has(entry.id)) this.#release(owner, entry.id)
    }
  }

  /** Returns what the target must do for the data plane to hold the winners. Changes nothing: a second diff returns the same. */
  *diff(): Steps<Changes<E>> {
    const put: E[] = []
    const drop: Held[] = []
    const slots: Slot<E>[] = []
    const dropped: Slot<E>[] = []
    const claimChanges = this.#claimChanges
    yield* this.#unlistSettled()
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
    // Claims changed in a pause, so slots that were visited before it may be out of date.
    if (claimChanges !== this.#claimChanges) return yield* this.diff()
    this.#lastDiff = { changes: { put, drop }, slots: dropped.length === 0 ? slots : [...slots, ...dropped] }
    return this.#lastDiff.changes
  }

  /** Leaves the slots of these ids out of the next diffs: they are being written. */
  *postpone(isPostponed: (id: string) => boolean): Steps<void> {
    yield* this.#unlistSettled(isPostponed)
  }

  /** True if a postponed slot has another winner by now. */
  get isDisturbed(): boolean {
    return this.#isDisturbed
  }

  /** Compares postponed slots again. */
  *recall(): Steps<void> {
    const slots = this.#postponed
    this.#postponed = []
    this.#isDisturbed = false
    let seen = 0
    for (const slot of slots) {
      if (++seen % stride === 0) yield
      if (slot.list !== 'postponed') continue
      slot.list = 'due'
      this.#due.push(slot)
    }
  }

  /** Records that the target applied all of these changes but the refused ones. */
  *settle(changes: Changes<E>, refused: Iterable<string> = []): Steps<void> {
    const refusedIds = new Set(refused)
    const slots = this.#lastDiff?.changes === changes ? this.#lastDiff.slots : []
    this.#lastDiff = undefined
    let seen = 0
    for (const entry of changes.put) {
      const known = slots[seen]
      if (++seen % stride === 0) yield
      if (refusedIds.size > 0 && refusedIds.has(entry.id)) this.#setAside(entry.id, entry.digest)
      else this.#settlePut(entry, known)
    }
    for (const { id } of changes.drop) {
      const known = slots[seen]
      if (++seen % stride === 0) yield
      if (refusedIds.has(id)) this.#setAside(id, undefined)
      else this.#settleDrop(id, known)
    }
    this.#hasSettled = true
    this.#beforeReset = undefined
    yield* this.#unlistSettled()
  }

  /** Records that the data plane holds exactly these entries. The next diff compares everything. */
  *reset(held: Iterable<Held>): Steps<void> {
    yield* this.recall()
    let seen = 0
    const before = this.#hasSettled ? new Map<string, Held | undefined>() : undefined
    this.#beforeReset = before
    for (const [id, slot] of this.#slots) {
      if (++seen % stride === 0) yield
      if (differs(slot)) before?.set(id, slot.held)
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

  /** The owners that claim an id, the winner first. */
  owners(id: string): readonly string[] {
    const slot = this.#slots.get(id)
    if (slot?.entry === undefined) return []
    return [slot.owner, ...(slot.others ?? []).map((claim) => claim.owner)]
  }

  /** What was written last under an id, whatever another program made of it since. After the first `reset` it is what was observed. */
  lastWritten(id: string): Held | undefined {
    const slot = this.#slots.get(id)
    if (this.#beforeReset === undefined) return slot?.held
    return this.#beforeReset.has(id) ? this.#beforeReset.get(id) : slot?.entry
  }

  /** What was written, is no longer wanted, and was gone when the data plane was observed: nothing has to be dropped. */
  *vanished(): Iterable<Held> {
    for (const [id, held] of this.#beforeReset ?? []) if (held !== undefined && !this.#slots.has(id)) yield held
  }

  /** The entries that an owner claims, whether they win or not. */
  claims(owner: string): readonly E[] {
    return this.#owned.get(owner) ?? []
  }

  /** A live view of the winning entries without the refused ones. */
  wanted(): Wanted<E> {
    return this.#wanted
  }

  /** Every winning entry with its owner, refused ones included. */
  *winners(): Iterable<{ readonly owner: string; readonly entry: E }> {
    for (const { owner, entry } of this.#slots.values()) if (entry !== undefined) yield { owner, entry }
  }

  #makeWanted(): Wanted<E> {
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

  /** Returns the entry that represents the claim: the entry of before if its content is the same. */
  #claim(owner: string, entry: E, claimedBefore: boolean): E {
    flatten(entry.digest)
    flatten(entry.id)
    const slot = this.#slot(entry.id)
    if (slot.entry === undefined) return this.#win(slot, owner, entry)
    // An owner without earlier claims that claims an id again has two entries with one id: the first counts.
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
    if (slot.list === 'postponed') this.#isDisturbed = true
    slot.entry = undefined
    slot.owner = ''
    this.#size--
    this.#refused.delete(id)
    this.#listOrForget(id, slot)
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

  /** `known` is the slot that the diff visited; it may be forgotten by now. */
  #settlePut(entry: E, known: Slot<E> | undefined): void {
    const slot = known !== undefined && isAlive(known) ? known : this.#slot(entry.id)
    slot.held = slot.entry?.digest === entry.digest ? slot.entry : entry
    this.#listOrForget(entry.id, slot)
  }

  #settleDrop(id: string, known: Slot<E> | undefined): void {
    const slot = known !== undefined && isAlive(known) ? known : this.#slots.get(id)
    if (slot === undefined) return
    slot.held = undefined
    this.#listOrForget(id, slot)
  }

  /** Marks an id as refused, unless other content is wanted by now: the refusal does not apply to that. */
  #setAside(id: string, digest: string | undefined): void {
    const slot = this.#slots.get(id)
    if (slot?.entry?.digest !== digest) return
    this.#refused.add(id)
    if (slot?.list === 'postponed') slot.list = 'none'
  }

  #slot(id: string): Slot<E> {
    let slot = this.#slots.get(id)
    if (slot === undefined) {
      slot = { entry: undefined, owner: '', others: undefined, held: undefined, list: 'none' }
      this.#slots.set(id, slot)
    }
    return slot
  }

  /** Lists a slot that differs, and forgets a slot that is neither wanted nor held. */
  #listOrForget(id: string, slot: Slot<E>): void {
    if (slot.list === 'postponed') slot.list = 'none'
    if (differs(slot)) {
      this.#list(slot)
      return
    }
    if (this.#refused.size > 0) this.#refused.delete(id)
    if (slot.entry === undefined) this.#slots.delete(id)
  }

  #list(slot: Slot<E>): void {
    if (slot.list === 'due') return
    if (slot.list === 'postponed') this.#isDisturbed = true
    slot.list = 'due'
    this.#due.push(slot)
  }

  /** Removes slots from the list that no longer differ, were refused or are postponed. A later change of such a slot lists it again. */
  *#unlistSettled(isPostponed: (id: string) => boolean = () => false): Steps<void> {
    const before = this.#due
    // Slots that are listed in a pause go to the new list. Slots that are still on the old list count as listed.
    this.#due = []
    let seen = 0
    try {
      for (const slot of before) {
        if (seen > 0 && seen % stride === 0) yield
        seen++
        const id = (slot.entry ?? slot.held)?.id as string
        const isDue = differs(slot) && !this.#refused.has(id)
        slot.list = isDue ? 'due' : 'none'
        if (isDue && isPostponed(id)) {
          slot.list = 'postponed'
          this.#postponed.push(slot)
        } else if (isDue) this.#due.push(slot)
      }
    } finally {
      for (; seen < before.length; seen++) this.#due.push(before[seen] as Slot<E>)
    }
  }
}

/** False if the slot was forgotten, so that the id may have another slot by now. */
const isAlive = (slot: Slot<Held>): boolean => slot.entry !== undefined || slot.held !== undefined

const differs = (slot: Slot<Held>): boolean => slot.entry?.digest !== slot.held?.digest

const byOwner = (a: { readonly owner: string }, b: { readonly owner: string }): number => (a.owner < b.owner ? -1 : 1)

/** Reads one character: V8 keeps a concatenated string as a tree until someone reads it, and the tree takes several times the memory. */
const flatten = (text: string): number => text.charCodeAt(text.length >> 1)
