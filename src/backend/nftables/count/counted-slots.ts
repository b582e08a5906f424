// Converts the elements of the endpoint maps, as the kernel reports them, to what each slot counted. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { ListedElement } from '../../../sys/netlink/nft/elements.ts'
import type { Element } from '../../../sys/netlink/nft/nft-types.ts'
import { SetCodec } from '../commit/set-codec.ts'
import { SlottedFrontends } from '../commit/slotted-frontends.ts'

export interface CountedSlot {
  /** The frontend: `10.96.0.1 tcp 443`. */
  readonly key: string
  readonly slot: number
  readonly endpoint: string
  readonly connections: number
}

/** The maps whose elements count. */
export const countedSets = ['endpoints', 'nodeport-endpoints'] as const
type CountedSet = (typeof countedSets)[number]

const shapes = {
  endpoints: 'address . protocol . port . slot : address . port',
  'nodeport-endpoints': 'protocol . port . slot : address . port',
} as const

export class SlotDecoder {
  readonly #codecs: Readonly<Record<CountedSet, SetCodec>>

  constructor(family: Family) {
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

  #codecOf(set: string): SetCodec | undefined {
    return set === 'endpoints' || set === 'nodeport-endpoints' ? this.#codecs[set] : undefined
  }
}

/**
 * Returns what reads the elements of one map where they lie in the message. All slots of a frontend get the same text as their key, which
 * is read once. The function returns undefined for an element that we would never write.
 */
export function slotReader(
  set: CountedSet,
  family: Family,
  seed: number,
): (element: ListedElement) => CountedSlot | undefined {
  const codec = new SetCodec(shapes[set], family)
  const keys = new SlottedFrontends(codec, seed, (key) => key)
  return (element) => {
    const { bytes, keyAt, keyEnd, dataAt, dataEnd } = element
    const key = keys.find(bytes, keyAt, keyEnd)
    const endpoint = codec.readEndpoint(bytes, dataAt, dataEnd)
    if (key === undefined || endpoint === undefined) return undefined
    return { key, slot: codec.readSlot(bytes, keyAt), endpoint, connections: element.packets ?? 0 }
  }
}

const asBuffer = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
