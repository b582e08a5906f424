// Generates object names and identities: random suffixes for `generateName`, uids and creation times.

import { randomBytes, randomUUID } from 'node:crypto'
import { type Clock, formatTime } from '../../lib/time.ts'
import type { MutableJson } from '../schema/json.ts'

/** The real server's alphabet: without vowels and look-alikes, so that no suffix is a word. */
const alphabet = 'bcdfghjklmnpqrstvwxz2456789'
const suffixLength = 5
const maxNameLength = 63

/** `prefix` with a random suffix, cut to the length of a label. */
export function generateName(prefix: string): string {
  const suffix = [...randomBytes(suffixLength)].map((byte) => alphabet[byte % alphabet.length]).join('')
  return `${prefix.slice(0, maxNameLength - suffixLength)}${suffix}`
}

/** The time in whole seconds, as Kubernetes prints times in metadata. */
export const formatNow = (clock: Clock): string => formatTime(Math.floor(clock.now() / 1000) * 1000)

/** The metadata that a new object gets from the server. */
export const createIdentity = (clock: Clock): MutableJson => ({
  uid: randomUUID(),
  creationTimestamp: formatNow(clock),
})
