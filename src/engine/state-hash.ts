// One short text for everything wanted, whatever the order: for comparing nodes. Not cryptographic.

import type { Held } from '../backend/backend.ts'

/** Sums of two independent hashes per entry, so order plays no part and nothing has to be sorted. */
export function stateHash(winners: Iterable<{ readonly owner: string; readonly entry: Held }>): string {
  let [high, low, count] = [0, 0, 0]
  for (const { owner, entry } of winners) {
    if (owner === '') continue
    const text = `${entry.id}\n${entry.digest}`
    high = (high + mix(text, 0x9e3779b1)) >>> 0
    low = (low + mix(text, 0x85ebca6b)) >>> 0
    count++
  }
  return [count, high, low].map((n) => n.toString(16).padStart(8, '0')).join('')
}

/** FNV-1a from a seed, with MurmurHash3's finish so that sums do not cancel out. */
function mix(text: string, seed: number): number {
  let hash = seed
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}
