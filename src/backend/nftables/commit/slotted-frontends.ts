// Finds the frontend that a slot belongs to by the bytes of its key. There are very many slots, and a text for each, which V8 would also
// put into its table of strings, costs as much as reading the slot. Pure.

import { mix32 } from '../../../lib/set-hash.ts'
import type { SetCodec } from './set-codec.ts'

interface IndexedFrontend<F> {
  readonly frontend: F
  readonly bytes: Buffer
  /** Another frontend with the same hash. */
  readonly next: IndexedFrontend<F> | undefined
}

/** A slot is the last part of a key. */
const slotLength = 4

export class SlottedFrontends<F> {
  readonly #codec: SetCodec
  readonly #seed: number
  readonly #make: (key: string) => F
  readonly #byHash = new Map<number, IndexedFrontend<F>>()

  /** With a random seed nobody can choose addresses that have the same hash. `make` is called once for each frontend. */
  constructor(codec: SetCodec, seed: number, make: (key: string) => F) {
    this.#codec = codec
    this.#seed = seed
    this.#make = make
  }

  /** Returns the same value for all slots of a frontend; undefined if the bytes are not a key of the set. */
  find(bytes: Buffer, at: number, end: number): F | undefined {
    if (end - at !== this.#codec.keyLength) return undefined
    const hash = this.#hash(bytes, at, end - slotLength)
    const first = this.#byHash.get(hash)
    for (let one = first; one !== undefined; one = one.next) if (isAt(one.bytes, bytes, at)) return one.frontend
    const key = this.#codec.readKey(bytes.subarray(at, end))
    if (key === undefined) return undefined
    const frontend = this.#make(key)
    this.#byHash.set(hash, { frontend, bytes: Buffer.from(bytes.subarray(at, end - slotLength)), next: first })
    return frontend
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
