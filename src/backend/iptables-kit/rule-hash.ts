// A checksum of a set of rules: for each rule the chain that it is in and the target that it leads to. Pure.

import { SetHash } from '../../lib/set-hash.ts'
import { findTarget, findWordEnd } from './restore-text.ts'

export class RuleSetHash {
  readonly #hash = new SetHash()

  /** Adds the rule `-A CHAIN … -j TARGET …` between `start` and `end`, or removes it with sign -1. */
  add(text: string, start: number, end: number, sign: 1 | -1 = 1): void {
    const chain = start + 3
    const target = findTarget(text, start, end)
    this.#hash.extend(text, chain, text.indexOf(' ', chain))
    this.#hash.extend(text, target, findWordEnd(text, target, end))
    this.#hash.finish(sign)
  }

  equals(other: RuleSetHash): boolean {
    return this.#hash.equals(other.#hash)
  }
}
