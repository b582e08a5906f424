// Consistent hashing of clients: a table of slots, each with one endpoint, and which slot a client has. Pure.
//
// Every endpoint claims slots one after the other, at times that follow from its address alone, and faster if its weight is larger. A slot
// belongs to the endpoint that claims it first. Therefore the slots of an endpoint that goes are the only ones that change, an endpoint
// that comes takes slots only for itself, and every node makes the same table. This is highest-random-weight hashing with weights; in the
// order of the claims it takes about size * ln(size) steps, however many endpoints there are.

import { parseIp } from '../lib/ip.ts'
import { jhash, scaleHash } from '../lib/jhash.ts'

export interface HashedEndpoint {
  /** `ip:port`. */
  readonly address: string
  readonly share: number
}

/** The same on all nodes and in all versions: another seed moves every client. */
export const hashSeed = 0x51_01_ce

/** The size of the table by the number of endpoints: shares deviate by about sqrt(endpoints / size) of themselves. */
const sizes: readonly (readonly [endpoints: number, size: number])[] = [
  [16, 1024],
  [64, 4096],
  [1024, 16_384],
]
const largest = 32_768

export const hashTableSize = (endpoints: number): number => sizes.find(([most]) => endpoints <= most)?.[1] ?? largest

/** The slot of a client, as `jhash saddr mod size seed hashSeed` computes it in the kernel. */
export function slotOfClient(ip: string, size: number): number {
  const bytes = parseIp(ip)
  return bytes === undefined ? 0 : scaleHash(jhash(bytes, hashSeed), size)
}

/** The endpoint of each slot. `endpoints` is not empty, and its order does not matter. */
export function makeHashTable(endpoints: readonly HashedEndpoint[], size: number): readonly string[] {
  const owners = new Array<string>(size).fill('')
  const times = new Float64Array(size).fill(Number.POSITIVE_INFINITY)
  const total = endpoints.reduce((sum, { share }) => sum + share, 0)
  const claims = endpoints.map((endpoint) => new SlotClaims(endpoint, size))
  let free = size
  // After this time a slot is free with a probability of 1 / size. Most tables are full then; the others take a little longer.
  let until = Math.log(size) / total
  for (; free > 0; until += 1 / total) {
    for (const own of claims) free -= own.makeUntil(until, owners, times)
  }
  return owners
}

/** The claims of one endpoint, in the order of their times. */
class SlotClaims {
  readonly #address: string
  /** The mean time between two claims. */
  readonly #pause: number
  readonly #step: number
  #state: number
  #time = 0
  #slot = 0

  constructor({ address, share }: HashedEndpoint, size: number) {
    this.#address = address
    this.#pause = 1 / (share * size)
    this.#state = hashText(address, 0x811c_9dc5)
    // Every endpoint has a step of its own: with a common step all endpoints would walk through one cycle of numbers, and may meet.
    this.#step = hashText(address, 0x1234_5678) | 1
    this.#advance(size)
  }

  /** Returns how many slots were free before. */
  makeUntil(until: number, owners: string[], times: Float64Array): number {
    let count = 0
    while (this.#time < until) {
      const taken = times[this.#slot] as number
      if (this.#time < taken) {
        if (taken === Number.POSITIVE_INFINITY) count++
        times[this.#slot] = this.#time
        owners[this.#slot] = this.#address
      }
      this.#advance(owners.length)
    }
    return count
  }

  /** A larger weight only shortens the pauses: the same claims come earlier, so the endpoint wins slots and loses none. */
  #advance(size: number): void {
    this.#time -= Math.log((this.#next() + 1) / 0x1_0000_0000) * this.#pause
    this.#slot = scaleHash(this.#next(), size)
  }

  /** The next number of 32 bits. */
  #next(): number {
    this.#state = (this.#state + this.#step) | 0
    return mix(this.#state)
  }
}

/** The last part of the generator splitmix32. */
function mix(state: number): number {
  let word = Math.imul(state ^ (state >>> 16), 0x21f0_aaad)
  word = Math.imul(word ^ (word >>> 15), 0x735a_2d97)
  return (word ^ (word >>> 15)) >>> 0
}

/** FNV-1a, mixed, so that neighbouring addresses have unrelated claims. */
function hashText(text: string, seed: number): number {
  let hash = seed
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x0100_0193)
  return mix(hash) | 0
}
