// Whether one of very many short byte strings has come before, told by 64 bits of each: no text is made, nothing else is kept. Pure.

const firstCapacity = 1 << 12

export class DuplicateFilter {
  readonly #seed: number
  /** Pairs of words, at the place that the first one says or after it; 0, 0 is free. */
  #table = new Uint32Array(2 * firstCapacity)
  #count = 0

  /** Two that are taken for one with one seed are not with another. */
  constructor(seed: number) {
    this.#seed = seed
  }

  /** False if it came before. */
  add(bytes: Uint8Array, more?: Uint8Array, mark = 0): boolean {
    let low = 0x811c9dc5 ^ this.#seed
    let high = 0x9747b28c ^ Math.imul(this.#seed, 0x9e3779b1)
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes[i] as number
      low = Math.imul(low ^ byte, 0x01000193)
      high = Math.imul((high << 13) | (high >>> 19), 0xcc9e2d51) ^ byte
    }
    const rest = more?.length ?? 0
    for (let i = 0; i < rest; i++) {
      const byte = (more as Uint8Array)[i] as number
      low = Math.imul(low ^ byte, 0x01000193)
      high = Math.imul((high << 13) | (high >>> 19), 0xcc9e2d51) ^ byte
    }
    low = mixed(low ^ mark) || 1
    high = mixed(high ^ rest)
    if (2 * ++this.#count > this.#table.length / 2) this.#grow()
    return put(this.#table, low, high)
  }

  #grow(): void {
    const before = this.#table
    this.#table = new Uint32Array(2 * before.length)
    for (let i = 0; i < before.length; i += 2) {
      const low = before[i] as number
      if (low !== 0) put(this.#table, low, before[i + 1] as number)
    }
  }
}

/** Every bit of the word has a say in every bit of the outcome. */
function mixed(word: number): number {
  let mix = Math.imul(word ^ (word >>> 16), 0x85ebca6b)
  mix = Math.imul(mix ^ (mix >>> 13), 0xc2b2ae35)
  return (mix ^ (mix >>> 16)) >>> 0
}

function put(table: Uint32Array, low: number, high: number): boolean {
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
