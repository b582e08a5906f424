// Writes and reads set elements. Most of what is ever sent are elements, so each is written with one length computation and byte stores. Pure.
//
// An attribute holds at most 64 KiB, so a long list becomes several messages.

import { familyOfNumber } from '../../ip-numbers.ts'
import { AttributeReader, align4, littleEndian, type MessageReader, NLA_F_NESTED } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { NFTA_DATA, NFTA_LIST, NFTA_SET_ELEM, NFTA_SET_ELEM_LIST } from './attributes.ts'
import { readCounter, type Verdict, writeCounter, writeVerdict } from './expressions.ts'
import type { Element, Elements, SetName, Verb } from './nft-types.ts'
import { readVerdict } from './read-verdict.ts'
import { commentBytes, readComment, USERDATA_COMMENT } from './userdata.ts'
import { beginChange, beginDeletion } from './write-objects.ts'

const NFT_SET_ELEM_INTERVAL_END = 1
/** The length of the header of an attribute. */
const attributeHeader = 4
/** A list of this size leaves room in its attribute for one more element of any size that we write. */
const listBytes = 60_000

/** Adds or deletes elements. A deletion needs only the keys. */
export function writeElements(writer: MessageWriter, list: Elements, verb: Verb = 'add'): void {
  const { elements } = list
  for (let next = 0; next < elements.length; ) {
    const at = beginElements(writer, list, verb)
    while (next < elements.length && hasRoom(writer, at)) writeElement(writer, elements[next++] as Element, verb)
    endElements(writer, at)
  }
}

/** Starts a message that `writeElement` fills. `endElements` needs the returned position. */
export function beginElements(writer: MessageWriter, name: SetName, verb: Verb, echo = false): number {
  const { family, table, set, setId } = name
  if (verb === 'delete') beginDeletion(writer, family, echo)
  else beginChange(writer, 'elements', verb, family)
  writer.text(NFTA_SET_ELEM_LIST.TABLE, table)
  writer.text(NFTA_SET_ELEM_LIST.SET, set)
  if (setId !== undefined) writer.u32(NFTA_SET_ELEM_LIST.SET_ID, setId)
  return writer.open(NFTA_SET_ELEM_LIST.ELEMENTS)
}

/** True if the message has room for one more element of any size that we write. */
export const hasRoom = (writer: MessageWriter, at: number): boolean => writer.length - at < listBytes

export function endElements(writer: MessageWriter, at: number): void {
  writer.close(at)
  writer.end()
}

export function writeElement(writer: MessageWriter, element: Element, verb: Verb): void {
  const { key, keyEnd, data, comment, timeoutMs, packets } = element
  const adds = verb === 'add'
  const at = writer.open(NFTA_LIST.ELEM)
  if (element.intervalEnd === true) writer.u32(NFTA_SET_ELEM.FLAGS, NFT_SET_ELEM_INTERVAL_END)
  if (adds && timeoutMs !== undefined) writer.u64(NFTA_SET_ELEM.TIMEOUT, timeoutMs)
  writeBytes(writer, NFTA_SET_ELEM.KEY, key)
  if (keyEnd !== undefined) writeBytes(writer, NFTA_SET_ELEM.KEY_END, keyEnd)
  if (adds) {
    if (data instanceof Uint8Array) writeBytes(writer, NFTA_SET_ELEM.DATA, data)
    else if (data !== undefined) writeVerdict(writer, NFTA_SET_ELEM.DATA, data)
    if (comment !== undefined) writeComment(writer, comment)
    if (packets !== undefined) writeCounter(writer, NFTA_SET_ELEM.EXPR, packets)
  }
  writer.close(at)
}

/** Writes what `commentBytes` makes straight into the message, which is possible for nearly every comment. */
function writeComment(writer: MessageWriter, comment: string): void {
  const { length } = comment
  const whole = 4 + align4(length + 3)
  if (length <= 128) {
    writer.reserve(whole + 2 * length)
    const { bytes, length: at } = writer
    // A text with as many bytes as characters is ASCII.
    if (bytes.write(comment, at + 6) === length) {
      store16(bytes, at, 4 + length + 3)
      store16(bytes, at + 2, NFTA_SET_ELEM.USERDATA)
      bytes[at + 4] = USERDATA_COMMENT
      bytes[at + 5] = length + 1
      for (let i = at + 6 + length; i < at + whole; i++) bytes[i] = 0
      writer.length = at + whole
      return
    }
  }
  writer.raw(NFTA_SET_ELEM.USERDATA, commentBytes(comment))
}

/** Writes a data attribute with raw bytes: `writer.open; writer.raw; writer.close` in one. */
function writeBytes(writer: MessageWriter, type: number, value: Uint8Array): void {
  const { length } = value
  const padded = align4(length)
  writer.reserve(8 + padded)
  const { bytes, length: at } = writer
  store16(bytes, at, 8 + padded)
  store16(bytes, at + 2, type | NLA_F_NESTED)
  store16(bytes, at + 4, 4 + length)
  store16(bytes, at + 6, NFTA_DATA.VALUE)
  const start = at + 8
  for (let i = 0; i < length; i++) bytes[start + i] = value[i] as number
  for (let i = length; i < padded; i++) bytes[start + i] = 0
  writer.length = start + padded
}

function store16(bytes: Buffer, at: number, value: number): void {
  bytes[at] = littleEndian ? value : value >> 8
  bytes[at + 1] = littleEndian ? value >> 8 : value
}

/** Reads a message of an element dump. Undefined if it belongs to another family, or if `reader.error` is set. */
export function decodeElements(message: MessageReader, reader: AttributeReader): Elements | undefined {
  const elements: Element[] = []
  const name = visitElements(message, reader, (element) => elements.push(element.copy()))
  return name === undefined ? undefined : { ...name, elements }
}

/** As `decodeElements`, without a list: `visit` gets the same object for every element. */
export function visitElements(
  message: MessageReader,
  reader: AttributeReader,
  visit: (element: ListedElement) => void,
): SetName | undefined {
  const family = familyOfNumber(message.bytes[message.start] as number)
  if (family === undefined) return undefined
  message.attributes(4, reader)
  let table = ''
  let set = ''
  let setId: number | undefined
  while (reader.next()) {
    if (reader.type === NFTA_SET_ELEM_LIST.TABLE) table = reader.text()
    else if (reader.type === NFTA_SET_ELEM_LIST.SET) set = reader.text()
    else if (reader.type === NFTA_SET_ELEM_LIST.SET_ID) setId = reader.u32()
    else if (reader.type === NFTA_SET_ELEM_LIST.ELEMENTS) visitList(reader, visit)
  }
  if (reader.error !== undefined) return undefined
  return setId === undefined ? { family, table, set } : { family, table, set, setId }
}

function visitList(reader: AttributeReader, visit: (element: ListedElement) => void): void {
  const element = new ListedElement()
  reader.enter()
  while (reader.next()) {
    element.read(reader)
    if (reader.error !== undefined) break
    visit(element)
  }
  reader.leave()
}

/**
 * An element where it lies in a message, valid until the next one is read. A set may have a hundred thousand, and objects for the parts of
 * each would cost more than reading them.
 */
export class ListedElement {
  bytes: Buffer = Buffer.alloc(0)
  /** Where the key begins and ends. */
  keyAt = 0
  keyEnd = 0
  /** Where the last key of a range is; both are 0 if there is none. */
  lastAt = 0
  lastEnd = 0
  /** Where the data is; both are 0 if there is none, or a verdict. */
  dataAt = 0
  dataEnd = 0
  verdict: Verdict | undefined
  isIntervalEnd = false
  #timeoutMs: number | undefined
  #userdataAt = 0
  #userdataEnd = 0
  #counterAt = 0
  #counterEnd = 0
  readonly #counterReader = new AttributeReader()

  /** Reads the element that the reader is at. */
  read(reader: AttributeReader): void {
    this.#clear(reader.bytes)
    reader.enter()
    while (reader.next()) {
      switch (reader.type) {
        case NFTA_SET_ELEM.KEY:
          if (enterValue(reader)) {
            this.keyAt = reader.start
            this.keyEnd = reader.end
          }
          reader.leave()
          break
        case NFTA_SET_ELEM.KEY_END:
          if (enterValue(reader)) {
            this.lastAt = reader.start
            this.lastEnd = reader.end
          }
          reader.leave()
          break
        case NFTA_SET_ELEM.DATA:
          this.#readData(reader)
          break
        case NFTA_SET_ELEM.TIMEOUT:
          this.#timeoutMs = reader.u64()
          break
        case NFTA_SET_ELEM.FLAGS:
          this.isIntervalEnd = (reader.u32() & NFT_SET_ELEM_INTERVAL_END) !== 0
          break
        case NFTA_SET_ELEM.USERDATA:
          this.#userdataAt = reader.start
          this.#userdataEnd = reader.end
          break
        case NFTA_SET_ELEM.EXPR:
          this.#counterAt = reader.start - attributeHeader
          this.#counterEnd = reader.end
          break
      }
    }
    reader.leave()
  }

  get comment(): string | undefined {
    if (this.#userdataEnd === 0) return undefined
    return readComment(this.bytes.subarray(this.#userdataAt, this.#userdataEnd))
  }

  /** Packets that found the element; undefined if it does not count. */
  get packets(): number | undefined {
    if (this.#counterEnd === 0) return undefined
    const reader = this.#counterReader.reset(this.bytes, this.#counterAt, this.#counterEnd)
    return reader.next() ? readCounter(reader) : undefined
  }

  /** The element in an object of its own. */
  copy(): Element {
    const { bytes, verdict, comment, packets } = this
    const element: { -readonly [K in keyof Element]: Element[K] } = { key: copyBytes(bytes, this.keyAt, this.keyEnd) }
    if (this.lastEnd !== 0) element.keyEnd = copyBytes(bytes, this.lastAt, this.lastEnd)
    if (this.dataEnd !== 0) element.data = copyBytes(bytes, this.dataAt, this.dataEnd)
    else if (verdict !== undefined) element.data = verdict
    if (this.isIntervalEnd) element.intervalEnd = true
    if (this.#timeoutMs !== undefined) element.timeoutMs = this.#timeoutMs
    if (comment !== undefined) element.comment = comment
    if (packets !== undefined) element.packets = packets
    return element
  }

  #readData(reader: AttributeReader): void {
    reader.enter()
    while (reader.next()) {
      if (reader.type === NFTA_DATA.VALUE) {
        this.dataAt = reader.start
        this.dataEnd = reader.end
      } else if (reader.type === NFTA_DATA.VERDICT) this.verdict = readVerdict(reader)
    }
    reader.leave()
  }

  #clear(bytes: Buffer): void {
    this.bytes = bytes
    this.keyAt = this.keyEnd = this.lastAt = this.lastEnd = this.dataAt = this.dataEnd = 0
    this.verdict = undefined
    this.isIntervalEnd = false
    this.#timeoutMs = undefined
    this.#userdataAt = this.#userdataEnd = this.#counterAt = this.#counterEnd = 0
  }
}

/** Enters the data attribute that the reader is at, and goes to its bytes. Returns false if it has none. */
function enterValue(reader: AttributeReader): boolean {
  reader.enter()
  while (reader.next()) if (reader.type === NFTA_DATA.VALUE) return true
  return false
}

/** A subarray, which is an object of its own and keeps the whole message, costs more than copying a few bytes. */
function copyBytes(bytes: Buffer, at: number, end: number): Buffer {
  const copy = Buffer.allocUnsafe(end - at)
  for (let i = at; i < end; i++) copy[i - at] = bytes[i] as number
  return copy
}
