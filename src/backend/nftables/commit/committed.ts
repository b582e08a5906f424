// What the kernel holds of our table: read once at the start, then updated by every committed transaction. Pure.

import { FrontendOwners } from '../count/frontend-owners.ts'
import type { ChainSpec } from '../entries.ts'
import { SlotTable } from './slot-table.ts'

/** Slots and chains that nothing refers to any more. */
export interface RetiredObjects {
  /** Key and table of frontends with retired slots. */
  readonly slots: readonly (readonly [string, SlotTable])[]
  readonly chains: readonly string[]
}

export class CommittedState {
  /** Digest by name. */
  readonly sets = new Map<string, string>()
  readonly chains = new Map<string, string>()
  /** Value and comment by `set key`, for the members of every set and map. Slots are in `slots`, except stray ones. */
  readonly elements = new Map<string, string>()
  /** Slots by `slotKey`. */
  readonly slots = new Map<string, SlotTable>()
  /** False as long as no frontend has had slots of its own for endpoints on this node. Most nodes have none. */
  mayHaveLocalSlots = false
  /** The number of slots that were found after a hole. They are stored as elements. */
  strays = 0
  /** Chains of frontends that differ from what they should be: another version wrote them, or another process damaged them. */
  readonly damagedChains = new Map<string, ChainSpec>()
  /** The names of the counters in the table that are not part of a rule or a slot. */
  readonly counters = new Set<string>()
  /** Which service ports the frontends belong to; empty if nothing is counted. */
  readonly owners = new FrontendOwners()
  readonly #isCounting: boolean
  /** The number of elements that lead into each chain. */
  readonly #references = new Map<string, number>()
  /** The age at which each object was retired. Only objects that were retired at an earlier age may be swept. */
  readonly #retiredSlots = new Map<string, number>()
  readonly #retiredChains = new Map<string, number>()
  #age = 0

  constructor(isCounting = false) {
    this.#isCounting = isCounting
  }

  /** True if slots and the rules of endpoints with affinity count connections. */
  get isCounting(): boolean {
    return this.#isCounting
  }

  setElement(id: string, digest: string | undefined): void {
    const before = this.elements.get(id)
    if (this.#isCounting) this.owners.update(id, before, digest)
    this.#countReference(before, -1)
    this.#countReference(digest, 1)
    if (digest === undefined) this.elements.delete(id)
    else this.elements.set(id, digest)
  }

  /** Records that the kernel has the chain. A chain that no element leads into is swept. */
  adoptChain(name: string): void {
    if ((this.#references.get(name) ?? 0) === 0) this.#retiredChains.set(name, this.#age)
  }

  /** Records slots that were found in the kernel. */
  adoptSlots(id: string, table: SlotTable): void {
    this.slots.set(id, table)
    if (table.offset > 0) this.mayHaveLocalSlots = true
    if (table.size > table.count) this.#retiredSlots.set(id, this.#age)
  }

  setSlots(id: string, offset: number, slots: readonly string[]): void {
    const table = this.slots.get(id)
    if (table === undefined) {
      if (slots.length > 0) this.slots.set(id, new SlotTable(slots, slots.length, offset))
      if (offset > 0) this.mayHaveLocalSlots = true
      return
    }
    table.replaceFirst(slots)
    this.retireSlots(id, table, slots.length)
  }

  /** Retires the slots from `count` on. */
  retireSlots(id: string, table: SlotTable, count: number): void {
    table.count = count
    if (table.size > count) this.#retiredSlots.set(id, this.#age)
    else this.#retiredSlots.delete(id)
    if (table.size === 0) this.slots.delete(id)
  }

  setChain(name: string, digest: string): void {
    this.chains.set(name, digest)
    this.damagedChains.delete(name)
    this.#retiredChains.delete(name)
    // The chain is written before the elements that lead into it. If none follows, the chain is swept.
    if (/^(lb|np)-/.test(name)) this.adoptChain(name)
  }

  /** The chain has no rules any more. Kernels before 6.2 count the reference of a removed element for a moment longer. */
  retireChain(name: string): void {
    this.chains.set(name, '')
    this.#retiredChains.set(name, this.#age)
  }

  /** Allows everything retired until now to be swept. */
  advanceAge(): void {
    this.#age++
  }

  /** Selects about `limit` objects to sweep. They were retired so long ago that no packet is about to read them. */
  selectRetired(limit: number): RetiredObjects {
    const slots: [string, SlotTable][] = []
    let count = 0
    for (const [id, age] of this.#retiredSlots) {
      const table = this.slots.get(id)
      if (table === undefined) this.#retiredSlots.delete(id)
      if (age >= this.#age || table === undefined) continue
      slots.push([id, table])
      count += table.size - table.count
      if (count >= limit) break
    }
    const chains: string[] = []
    for (const [name, age] of this.#retiredChains) {
      if (count >= limit) break
      if (!this.chains.has(name)) this.#retiredChains.delete(name)
      else if (age < this.#age) chains.push(name)
      count++
    }
    return { slots, chains }
  }

  get hasRetired(): boolean {
    return this.#retiredSlots.size > 0 || this.#retiredChains.size > 0
  }

  /** Records that the kernel removed the objects. */
  removeSwept({ slots, chains }: RetiredObjects): void {
    for (const [id, table] of slots) {
      table.removeRetired()
      this.#retiredSlots.delete(id)
      if (table.size === 0) {
        this.slots.delete(id)
        this.owners.forget(id.replace(/ local$/, ''))
      }
    }
    for (const name of chains) {
      this.chains.delete(name)
      this.#references.delete(name)
      this.#retiredChains.delete(name)
    }
  }

  clear(): void {
    for (const map of [this.sets, this.chains, this.elements, this.slots, this.damagedChains]) map.clear()
    this.owners.clear()
    this.counters.clear()
    for (const map of [this.#references, this.#retiredSlots, this.#retiredChains]) map.clear()
    this.strays = 0
  }

  /** Chains of frontends are shared, so they are retired when no element leads into them. */
  #countReference(digest: string | undefined, step: number): void {
    if (digest === undefined || !(digest.startsWith('goto lb-') || digest.startsWith('goto np-'))) return
    const space = digest.indexOf(' ', 5)
    const name = space < 0 ? digest.slice(5) : digest.slice(5, space)
    for (const chain of reachedChains(name)) {
      const count = (this.#references.get(chain) ?? 0) + step
      this.#references.set(chain, count)
      if (count <= 0) this.#retiredChains.set(chain, this.#age)
      else this.#retiredChains.delete(chain)
    }
  }
}

const [zero, nine] = [0x30, 0x39]

/** The chain itself, and the plain chain that it leads into: `lb-masquerade-5` and `lb-hash-local-2-of-5` lead into `lb-5` and `lb-hash-5`. */
function reachedChains(name: string): readonly string[] {
  const third = name.charCodeAt(3)
  if (third >= zero && third <= nine) return [name]
  const match = /^((?:lb|np)-(?:hash-|turn-)?)(?:masquerade-|local-\d+-of-)(\d+(?:-[A-Z2-7]+)?)$/.exec(name)
  return match === null ? [name] : [name, `${match[1]}${match[2]}`]
}

/** The key under which slots are stored: a frontend may have slots of the whole cluster and slots of this node. */
export const slotKey = (key: string, offset: number): string => (offset === 0 ? key : `${key} local`)
