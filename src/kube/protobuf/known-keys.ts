// Finds out which of a few known keys an entry of a protobuf map has, without making a text of every key.

import { type WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'

/** The tags of the two fields of a map's entry. */
const keyTag = (1 << 3) | wireTypes.delimited
const valueTag = (2 << 3) | wireTypes.delimited

interface KnownKey {
  readonly key: string
  readonly bytes: Buffer
}

export class KnownKeys {
  /** By their length, which few keys share. */
  readonly #byLength: (KnownKey[] | undefined)[] = []

  constructor(keys: readonly string[]) {
    for (const key of keys) {
      const bytes = Buffer.from(key)
      while (this.#byLength.length <= bytes.length) this.#byLength.push(undefined)
      const known = this.#byLength[bytes.length] ?? []
      known.push({ key, bytes })
      this.#byLength[bytes.length] = known
    }
  }

  /** Reads the key of an entry that ends at `stop`. If it is known, the cursor is at the value then; otherwise at the end of the entry. */
  readKey(cursor: WireCursor, stop: number): string | undefined {
    if (cursor.readVarint(stop) !== keyTag) throw new SyntaxError('an entry of a protobuf map has no key')
    const keyEnd = cursor.readFieldEnd(stop)
    const known = this.#find(cursor, keyEnd)
    cursor.at = known === undefined ? stop : keyEnd
    return known
  }

  #find(cursor: WireCursor, keyEnd: number): string | undefined {
    const candidates = this.#byLength[keyEnd - cursor.at]
    if (candidates === undefined) return undefined
    for (const { key, bytes } of candidates) if (cursor.matches(bytes, keyEnd)) return key
    return undefined
  }
}

/** True if an entry that ends at `stop` has a value; the cursor is at it then. */
export const enterValue = (cursor: WireCursor, stop: number): boolean =>
  cursor.at < stop && cursor.readVarint(stop) === valueTag
