// Finds which of very many elements occur twice. It keeps 64 bits of each key and makes no text. Pure.

import { mix32 } from '../../../lib/set-hash.ts'
import type { ListedElement } from './elements.ts'

const firstCapacity = 1 << 12

/** The parts of an element that distinguish it from all others of its set. */
type ListedKey = Pick<ListedElement, 'bytes' | 'keyAt' | 'keyEnd' | 'lastAt' | 'lastEnd' | 'isIntervalEnd'>

export class DuplicateFilter {
  readonly #seed: number
  /** Pairs of words. A pair is at the place that its first word names, or at the next free place; 0, 0 is a free place. */
  #table = new Uint32Array(2 * firstCapacity)
  #count = 0
  // Lanes of the key that is being hashed.
  #low = 0
  #high = 0

  /** Two keys that collide with one seed do not collide with another. */
  constructor(seed: number) {
    this.#seed = seed
  }

  /** Returns false if an element with the same key, or the same range, came before. */
  add({ bytes, keyAt, keyEnd, lastAt, lastEnd, isIntervalEnd }: ListedKey): boolean {
    this.#low = 0x811c9dc5 ^ this.#seed
    this.#high = 0x9747b28c ^ Math.imul(this.#seed, 0x9e3779b1)
    this.#extend(bytes, keyAt, keyEnd)
    this.#extend(bytes, lastAt, lastEnd)
    // In sets of ranges the end of one range and the start of the next have the same key.
    const low = mix32(this.#low ^ (isIntervalEnd ? 1 : 0)) || 1
    const high = mix32(this.#high ^ (lastEnd - lastAt))
    if (2 * ++this.#count > this.#table.length / 2) this.#grow()
    return insert(this.#table, low, high)
  }

  #extend(bytes: Uint8Array, at: number, end: number): void {
    let low = this.#low
    let high = this.#high
    for (let i = at; i < end; i++) {
      const byte = bytes[i] as number
      low = Math.imul(low ^ byte, 0x01000193)
      high = Math.imul((high << 13) | (high >>> 19), 0xcc9e2d51) ^ byte
    }
    this.#low = low
    this.#high = high
  }

  #grow(): void {
    const before = this.#table
    this.#table = new Uint32Array(2 * before.length)
    for (let i = 0; i < before.length; i += 2) {
      const low = before[i] as number
      if (low !== 0) insert(this.#table, low, before[i + 1] as number)
    }
  }
}

/** Returns false if the pair is in the table already. */
function insert(table: Uint32Array, low: number, high: number): boolean {
  const end = table.length - 1
  for (let at = (2 * low) & end; ; at = (at + 2) & end) {
    const there = table[at]
    if (there === 0) {
      table[at] = low
      table[at + 1] = high
      return true
    }
    if (there === low && table[at + 1] === high) return false
  }
}
