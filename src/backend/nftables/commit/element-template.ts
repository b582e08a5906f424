// Templates of set elements: one per set, filled again for every element, because tens of thousands of objects would be expensive. Pure.

import type { Family } from '../../../lib/ip.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { writeElement } from '../../../sys/netlink/nft/elements.ts'
import type { Verdict } from '../../../sys/netlink/nft/expressions.ts'
import type { Element } from '../../../sys/netlink/nft/nft-types.ts'
import type { NftSetShape } from '../entries.ts'
import { SetCodec } from './set-codec.ts'

/** Finds the shape of a set by its name. Affinity sets have one name per endpoint. */
export type FindShape = (set: string) => NftSetShape | undefined

/** The templates of one table. A template is filled and written at once: nothing may run in between that fills it again. */
export class ElementTemplates {
  readonly #family: Family
  readonly #findShape: FindShape
  readonly #templates = new Map<string, ElementTemplate>()

  constructor(family: Family, findShape: FindShape) {
    this.#family = family
    this.#findShape = findShape
  }

  find(set: string): ElementTemplate {
    const known = this.#templates.get(set)
    if (known !== undefined) return known
    const shape = this.#findShape(set)
    if (shape === undefined) throw new Error(`our table has no set ${set}`)
    const codec = new SetCodec(shape, this.#family)
    const template = codec.value === 'endpoint' ? new SlotTemplate(codec) : new MemberTemplate(codec)
    // Affinity sets come and go, so their templates are not kept.
    if (shape !== 'affinity') this.#templates.set(set, template)
    return template
  }
}

export type ElementTemplate = SlotTemplate | MemberTemplate

/** An element of an endpoint map. Five of six elements are slots, and all slots of a map have the same length: only bytes change. */
export class SlotTemplate {
  readonly #codec: SetCodec
  /** The whole element as it is written. Key and endpoint are parts of it. */
  readonly #bytes: Buffer
  readonly #key: Buffer
  readonly #endpoint: Buffer
  #keyText = ''

  constructor(codec: SetCodec) {
    const { keyLength, endpointLength } = codec
    const writer = new MessageWriter(128)
    writeElement(writer, { key: Buffer.alloc(keyLength), data: Buffer.alloc(endpointLength) }, 'add')
    this.#codec = codec
    this.#bytes = writer.toBytes()
    // Three attribute headers precede the key, and two more the data.
    this.#key = this.#bytes.subarray(12, 12 + keyLength)
    this.#endpoint = this.#bytes.subarray(20 + keyLength, 20 + keyLength + endpointLength)
  }

  /** Without `slot` the text of the key names the slot. */
  setKey(text: string, slot?: number): void {
    if (text !== this.#keyText) {
      this.#keyText = ''
      this.#codec.writeKey(text, this.#key)
      this.#keyText = text
    }
    if (slot !== undefined) this.#codec.writeSlot(slot, this.#key)
  }

  /** The value is an endpoint. The slot counts from `packets` on. */
  writeAdded(writer: MessageWriter, value: string, packets = 0): void {
    this.#codec.writeEndpoint(value, this.#endpoint)
    if (packets > 0) writeElement(writer, { key: this.#key, data: this.#endpoint, packets }, 'add')
    else writer.verbatim(this.#bytes)
  }

  writeDeleted(writer: MessageWriter): void {
    writeElement(writer, { key: this.#key }, 'delete')
  }
}

/** An element of a set or of a verdict map, perhaps with a comment. */
export class MemberTemplate {
  readonly #codec: SetCodec
  readonly #element: {
    readonly key: Buffer
    readonly keyEnd: Buffer | undefined
    data: Verdict | undefined
    comment: string | undefined
  }

  constructor(codec: SetCodec) {
    this.#codec = codec
    this.#element = {
      key: Buffer.alloc(codec.keyLength),
      keyEnd: codec.hasRange ? Buffer.alloc(codec.keyLength) : undefined,
      data: undefined,
      comment: undefined,
    }
  }

  setKey(text: string): void {
    const { key, keyEnd } = this.#element
    this.#codec.writeKey(text, key)
    if (keyEnd !== undefined) this.#codec.writeKey(text, keyEnd, 'last')
  }

  /** The value is the digest of an element entry: `value # comment`. */
  writeAdded(writer: MessageWriter, value: string): void {
    const element = this.#element
    const end = value.indexOf(commentMark)
    element.comment = end < 0 ? undefined : value.slice(end + commentMark.length)
    if (this.#codec.value === 'verdict') element.data = parseVerdict(end < 0 ? value : value.slice(0, end))
    writeElement(writer, element satisfies Element, 'add')
  }

  writeDeleted(writer: MessageWriter): void {
    writeElement(writer, this.#element, 'delete')
  }
}

const commentMark = ' # '

const parseVerdict = (text: string): Verdict =>
  text.startsWith('goto ') ? { verdict: 'goto', chain: text.slice('goto '.length) } : { verdict: 'drop' }
