// One short text for everything that is wanted, in any order, so that nodes can be compared. Not cryptographic.

import type { Held } from '../backend/backend.ts'
import { SetHash } from '../lib/set-hash.ts'
import { type Steps, stride } from '../lib/yielding.ts'

/** The winning entries of the ledger with their owners. */
type Winners = Iterable<{ readonly owner: string; readonly entry: Held }>

/** 24 hexadecimal digits: how many entries services have, then their checksum. The base, which has no owner, is not in it. */
export function stateHash(winners: Winners): string {
  const steps = hashInSteps(winners)
  for (;;) {
    const { done, value } = steps.next()
    if (done === true) return value
  }
}

/** As `stateHash`, for a caller that must not hold the event loop. */
export function* hashInSteps(winners: Winners): Steps<string> {
  const hash = new SetHash()
  let seen = 0
  for (const { owner, entry } of winners) {
    if (++seen % stride === 0) yield
    if (owner === '') continue
    hash.extend(entry.id)
    hash.extend(entry.digest)
    hash.finish()
  }
  return hash.toString()
}
