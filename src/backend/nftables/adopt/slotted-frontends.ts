// Finds the frontend that a slot belongs to by the bytes of its key. There are very many slots, and a text for each, which V8 would also
// put into its table of strings, costs as much as reading the slot. Pure.

import { mix32 } from '../../../lib/set-hash.ts'
import type { SetCodec } from '../commit/set-codec.ts'

/** A frontend whose endpoints are in numbered slots. */
export interface SlottedFrontend {
  readonly set: string
  readonly key: string
  /** Endpoints by number of the slot. */
  readonly slots: Map<number, string>
}

interface IndexedFrontend extends SlottedFrontend {
  readonly bytes: Buffer
  /** Another frontend with the same hash. */
  readonly next: IndexedFrontend | undefined
}

/** A slot is the last part of a key. */
const slotLength = 4

export class SlottedFrontends {
  readonly #set: string
  readonly #codec: SetCodec
  readonly #seed: number
  readonly #byHash = new Map<number, IndexedFrontend>()

  /** With a random seed nobody can choose addresses that have the same hash. */
  constructor(set: string, codec: SetCodec, seed: number) {
    this.#set = set
    this.#codec = codec
    this.#seed = seed
  }

  /** Returns the same object for all slots of a frontend; undefined if the bytes are not a key of the set. */
  find(bytes: Buffer, at: number, end: number): SlottedFrontend | undefined {
    if (end - at !== this.#codec.keyLength) return undefined
    const hash = this.#hash(bytes, at, end - slotLength)
    const first = this.#byHash.get(hash)
    for (let one = first; one !== undefined; one = one.next) if (isAt(one.bytes, bytes, at)) return one
    const key = this.#codec.readKey(bytes.subarray(at, end))
    if (key === undefined) return undefined
    const own = Buffer.from(bytes.subarray(at, end - slotLength))
    const added = { set: this.#set, key, slots: new Map<number, string>(), bytes: own, next: first }
    this.#byHash.set(hash, added)
    return added
  }

  #hash(bytes: Buffer, at: number, end: number): number {
    let hash = this.#seed
    for (let i = at; i < end; i++) hash = Math.imul(hash ^ (bytes[i] as number), 0x01000193)
    // V8 keeps numbers below 2^30 without an object.
    return mix32(hash) >>> 2
  }
}

function isAt(expected: Buffer, bytes: Buffer, at: number): boolean {
  for (let i = 0; i < expected.length; i++) if (bytes[at + i] !== expected[i]) return false
  return true
}
