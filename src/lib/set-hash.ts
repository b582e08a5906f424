// An order-independent checksum of a set of texts, 64 bits wide: it shows whether two sets are equal without keeping either. Pure.
//
// 10,000 services have 60,000 chains and 160,000 rules; looking each of them up took longer than writing all of them.
//
// Each element is hashed into two 32-bit lanes, the lanes are mixed as at the end of MurmurHash3, and the mixed lanes are summed. Elements
// may be added and removed in any order. The mix is not linear, so two elements that exchange parts change both sums as random numbers
// would. Two different sets that were not chosen for this purpose have the same checksum about once in 2^64. It is not cryptographic: an
// attacker can compute a collision.

export class SetHash {
  #count = 0
  #lowSum = 0
  #highSum = 0
  // Lanes of the element that is being hashed.
  #low = lowSeed
  #high = highSeed

  /** Hashes the part of an element that lies between `start` and `end` in `text`. `ab`, `c` and `a`, `bc` are different elements. */
  extend(text: string, start = 0, end = text.length): void {
    let low = this.#low
    let high = this.#high
    for (let at = start; at < end; at++) {
      const unit = text.charCodeAt(at)
      low = Math.imul(low ^ unit, lowFactor)
      high = Math.imul((high << 13) | (high >>> 19), highFactor) ^ unit
    }
    this.#low = Math.imul(low ^ partEnd, lowFactor)
    this.#high = Math.imul((high << 13) | (high >>> 19), highFactor) ^ partEnd
  }

  /** Adds the element whose parts were given to `extend` since the last call, or removes it with sign -1. */
  finish(sign: 1 | -1 = 1): void {
    const low = mix32(this.#low + this.#high)
    const high = mix32(this.#high + low)
    this.#count += sign
    this.#lowSum = (this.#lowSum + sign * (low + high)) | 0
    this.#highSum = (this.#highSum + sign * high) | 0
    this.#low = lowSeed
    this.#high = highSeed
  }

  /** Adds or removes the element between `start` and `end` in `text`. */
  add(text: string, start: number, end: number, sign: 1 | -1 = 1): void {
    this.extend(text, start, end)
    this.finish(sign)
  }

  equals(other: SetHash): boolean {
    return this.#count === other.#count && this.#lowSum === other.#lowSum && this.#highSum === other.#highSum
  }

  /** 24 hexadecimal digits: how many elements there are, then the checksum. */
  toString(): string {
    const words = [this.#count, this.#highSum >>> 0, this.#lowSum >>> 0]
    return words.map((word) => word.toString(16).padStart(8, '0')).join('')
  }
}

/** The end of MurmurHash3 for 32 bits: every bit of the word changes every bit of the result with a probability of one half. */
export function mix32(word: number): number {
  let mixed = Math.imul(word ^ (word >>> 16), 0x85ebca6b)
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35)
  return (mixed ^ (mixed >>> 16)) >>> 0
}

const lowSeed = 0x811c9dc5 | 0
const highSeed = 0x9747b28c | 0
const lowFactor = 0x01000193
const highFactor = 0xcc9e2d51
/** Not a character of any text. */
const partEnd = 0x10000
