// What the kernel holds of our table, as far as we know: read once at the start, then kept by what was committed.

import type { ChainSpec } from '../entries.ts'

/** Slots of one frontend. Those from `count` on are no longer chosen and wait to be swept. */
export interface SlotTable {
  /** The endpoint in each slot that the kernel has. */
  present: string[]
  count: number
  /** Number of the first slot. */
  readonly offset: number
}

export interface RetiredSlots {
  /** Slots, where they are kept. */
  readonly slots: readonly (readonly [string, SlotTable])[]
  readonly chains: readonly string[]
}

export class CommittedState {
  /** Digest by name. */
  readonly sets = new Map<string, string>()
  readonly chains = new Map<string, string>()
  /** Value and comment by `set key`; the members of every set and map but the slots. */
  readonly elements = new Map<string, string>()
  readonly slots = new Map<string, SlotTable>()
  /** How many slots were found behind a hole; they are among the elements. */
  strays = 0
  /** Chains of frontends that are not as they should be: written by another version, or damaged. */
  readonly stale = new Map<string, ChainSpec>()
  /** How many elements lead into a chain. */
  readonly #entrances = new Map<string, number>()
  /** Since which turn; only what was retired in an earlier turn may be swept. */
  readonly #retiredSlots = new Map<string, number>()
  readonly #retiredChains = new Map<string, number>()
  #turn = 0

  setElement(id: string, digest: string | undefined): void {
    this.#count(this.elements.get(id), -1)
    this.#count(digest, 1)
    if (digest === undefined) this.elements.delete(id)
    else this.elements.set(id, digest)
  }

  /** It is in the kernel. One that no element leads into is swept. */
  adoptChain(name: string): void {
    if ((this.#entrances.get(name) ?? 0) === 0) this.#retiredChains.set(name, this.#turn)
  }

  /** Found in the kernel. */
  adoptSlots(id: string, table: SlotTable): void {
    this.slots.set(id, table)
    if (table.present.length > table.count) this.#retiredSlots.set(id, this.#turn)
  }

  setSlots(id: string, offset: number, slots: readonly string[]): void {
    const table = this.slots.get(id)
    if (table === undefined) {
      if (slots.length > 0) this.slots.set(id, { present: slots.slice(), count: slots.length, offset })
      return
    }
    for (const [i, endpoint] of slots.entries()) table.present[i] = endpoint
    this.retireSlots(id, table, slots.length)
  }

  retireSlots(id: string, table: SlotTable, count: number): void {
    table.count = count
    if (table.present.length > count) this.#retiredSlots.set(id, this.#turn)
    else this.#retiredSlots.delete(id)
    if (table.present.length === 0) this.slots.delete(id)
  }

  setChain(name: string, digest: string): void {
    this.chains.set(name, digest)
    this.#retiredChains.delete(name)
    // Made or mended ahead of the elements that lead into it; if none comes, it goes.
    if (/^(lb|np)-/.test(name)) this.adoptChain(name)
  }

  /** Its rules are gone already; the kernel before 6.2 counts a removed element's reference for a moment longer. */
  retireChain(name: string): void {
    this.chains.set(name, '')
    this.#retiredChains.set(name, this.#turn)
  }

  /** From now on what was retired until now may be swept. */
  age(): void {
    this.#turn++
  }

  /** What is to be swept, of about so many at most: a packet that was about to read it has long done so. */
  retired(limit: number): RetiredSlots {
    const slots: [string, SlotTable][] = []
    let count = 0
    for (const [id, since] of this.#retiredSlots) {
      const table = this.slots.get(id)
      if (table === undefined) this.#retiredSlots.delete(id)
      if (since >= this.#turn || table === undefined) continue
      slots.push([id, table])
      count += table.present.length - table.count
      if (count >= limit) break
    }
    const chains: string[] = []
    for (const [name, since] of this.#retiredChains) {
      if (count >= limit) break
      if (!this.chains.has(name)) this.#retiredChains.delete(name)
      else if (since < this.#turn) chains.push(name)
      count++
    }
    return { slots, chains }
  }

  get anyRetired(): boolean {
    return this.#retiredSlots.size > 0 || this.#retiredChains.size > 0
  }

  /** The kernel has removed it. */
  swept({ slots, chains }: RetiredSlots): void {
    for (const [id, table] of slots) {
      table.present.splice(table.count)
      this.#retiredSlots.delete(id)
      if (table.present.length === 0) this.slots.delete(id)
    }
    for (const name of chains) {
      this.chains.delete(name)
      this.#entrances.delete(name)
      this.#retiredChains.delete(name)
    }
  }

  clear(): void {
    for (const map of [this.sets, this.chains, this.elements, this.slots, this.stale, this.#entrances]) map.clear()
    this.#retiredSlots.clear()
    this.#retiredChains.clear()
    this.strays = 0
  }

  /** Chains of frontends have no owner: they go when no element leads to them. */
  #count(digest: string | undefined, step: number): void {
    if (digest === undefined || !(digest.startsWith('goto lb-') || digest.startsWith('goto np-'))) return
    const space = digest.indexOf(' ', 5)
    const name = space < 0 ? digest.slice(5) : digest.slice(5, space)
    for (const chain of withPlain(name)) {
      const count = (this.#entrances.get(chain) ?? 0) + step
      this.#entrances.set(chain, count)
      if (count <= 0) this.#retiredChains.set(chain, this.#turn)
      else this.#retiredChains.delete(chain)
    }
  }
}

const [zero, nine] = [48, 57]

/** `lb-masquerade-5` and `lb-local-2-of-5` lead on into `lb-5`. */
function withPlain(name: string): readonly string[] {
  const third = name.charCodeAt(3)
  if (third >= zero && third <= nine) return [name]
  const match = /^(lb|np)-(?:masquerade-|local-\d+-of-)(\d+)$/.exec(name)
  return match === null ? [name] : [name, `${match[1]}-${match[2]}`]
}

/** Where the slots of a frontend are kept: those of the whole cluster, or those of this node. */
export const slotKey = (key: string, offset: number): string => (offset === 0 ? key : `${key} local`)
