// One short text for everything that is wanted, in any order, so that nodes can be compared. Not cryptographic.

import type { Held } from '../backend/backend.ts'
import { SetHash } from '../lib/set-hash.ts'

/** 24 hexadecimal digits: how many entries services have, then their checksum. The base, which has no owner, is not in it. */
export function stateHash(winners: Iterable<{ readonly owner: string; readonly entry: Held }>): string {
  const hash = new SetHash()
  for (const { owner, entry } of winners) {
    if (owner === '') continue
    hash.extend(entry.id)
    hash.extend(entry.digest)
    hash.finish()
  }
  return hash.toString()
}
