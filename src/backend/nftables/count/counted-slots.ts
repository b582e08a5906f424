// Converts the elements of the endpoint maps, as the kernel reports them, to what each slot counted. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Element, Elements } from '../../../sys/netlink/nft/nft-types.ts'
import { tableName } from '../base.ts'
import { SetCodec } from '../commit/set-codec.ts'

export interface CountedSlot {
  /** The frontend: `10.96.0.1 tcp 443`. */
  readonly key: string
  readonly slot: number
  readonly endpoint: string
  readonly connections: number
}

/** The place of a slot in the table. */
export interface SlotPosition {
  readonly set: string
  readonly key: string
  readonly slot: number
}

/** The maps whose elements count. */
export const countedSets = ['endpoints', 'nodeport-endpoints'] as const

const shapes = {
  endpoints: 'address . protocol . port . slot : address . port',
  'nodeport-endpoints': 'protocol . port . slot : address . port',
} as const

export class SlotDecoder {
  readonly #family: Family
  readonly #codecs: Readonly<Record<(typeof countedSets)[number], SetCodec>>

  constructor(family: Family) {
    this.#family = family
    this.#codecs = {
      endpoints: new SetCodec(shapes.endpoints, family),
      'nodeport-endpoints': new SetCodec(shapes['nodeport-endpoints'], family),
    }
  }

  /** Returns undefined for elements of other sets, and for those that we would never write. */
  decode(set: string, { key, data, packets }: Element): CountedSlot | undefined {
    const codec = this.#codecOf(set)
    if (codec === undefined || !(data instanceof Uint8Array)) return undefined
    const bytes = asBuffer(key)
    const text = codec.readKey(bytes)
    const endpoint = codec.readEndpoint(asBuffer(data))
    if (text === undefined || endpoint === undefined) return undefined
    return { key: text, slot: codec.readSlot(bytes), endpoint, connections: packets ?? 0 }
  }

  /** The elements of one set by their keys alone, to read them. */
  encode(set: string, positions: readonly SlotPosition[]): Elements | undefined {
    const codec = this.#codecOf(set)
    if (codec === undefined) return undefined
    const elements = positions.map(({ key, slot }) => {
      const bytes = Buffer.alloc(codec.keyLength)
      codec.writeKey(key, bytes)
      codec.writeSlot(slot, bytes)
      return { key: bytes }
    })
    return { family: this.#family, table: tableName, set, elements }
  }

  #codecOf(set: string): SetCodec | undefined {
    return set === 'endpoints' || set === 'nodeport-endpoints' ? this.#codecs[set] : undefined
  }
}

const asBuffer = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
