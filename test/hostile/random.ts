// Random numbers that depend on a seed alone, so that a run can be repeated.

export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed
  }

  /** At least 0, less than 1 (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }

  /** An integer; at least `from`, less than `to`. */
  between(from: number, to: number): number {
    return Math.floor(from + this.next() * (to - from))
  }

  choose<T>(list: readonly T[]): T {
    return list[this.between(0, list.length)] as T
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }
}
