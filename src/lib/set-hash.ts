// Tells whether two sets of texts are the same, without keeping either: how many there are, and sums of what their letters say. Pure.
//
// 10,000 services have 60,000 chains and 160,000 rules. To look each of them up took longer than to write all of them. That two different
// sets have equal sums is possible, about once in 2^64 times; then a change of others is seen at the next one, or at the next full sync.

export class SetHash {
  #count = 0
  #first = 0
  #second = 0

  /** What is between `start` and `end`, and between the others, if any; taken out again with -1. */
  add(text: string, start: number, end: number, sign: 1 | -1 = 1, otherStart = 0, otherEnd = 0): void {
    let first = 0x811c9dc5
    let second = 0x9e3779b9
    for (let at = start; at < end; at++) {
      const letter = text.charCodeAt(at)
      first = Math.imul(first ^ letter, 0x01000193)
      second = (Math.imul(second, 31) + letter) | 0
    }
    for (let at = otherStart; at < otherEnd; at++) {
      const letter = text.charCodeAt(at)
      first = Math.imul(first ^ letter, 0x01000193)
      second = (Math.imul(second, 31) + letter) | 0
    }
    this.#count += sign
    this.#first = (this.#first + sign * first) | 0
    this.#second = (this.#second + sign * Math.imul(second, 0x85ebca6b)) | 0
  }

  /** The rule `-A CHAIN … -j TARGET` between `start` and `end`: which chain it is in, and where it leads. */
  addRule(text: string, start: number, end: number, sign: 1 | -1 = 1): void {
    const chain = start + 3
    const jump = text.lastIndexOf(' -j ', end)
    const target = jump <= start ? end : jump + 4
    const space = text.indexOf(' ', target)
    this.add(text, chain, text.indexOf(' ', chain), sign, target, space < 0 || space > end ? end : space)
  }

  equals(other: SetHash): boolean {
    return this.#count === other.#count && this.#first === other.#first && this.#second === other.#second
  }
}
