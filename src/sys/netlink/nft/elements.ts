// Writes and reads set elements. Most of what is ever sent are elements, so each is written with one length computation and byte stores. Pure.
//
// An attribute holds at most 64 KiB, so a long list becomes several messages.

import { familyOfNumber } from '../../ip-numbers.ts'
import { type AttributeReader, align4, littleEndian, type MessageReader, NLA_F_NESTED } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { NFTA_DATA, NFTA_LIST, NFTA_SET_ELEM, NFTA_SET_ELEM_LIST } from './attributes.ts'
import { readCounter, writeCounter, writeVerdict } from './expressions.ts'
import type { Element, Elements, SetName, Verb } from './nft-types.ts'
import { readData } from './read-data.ts'
import { commentBytes, readComment, USERDATA_COMMENT } from './userdata.ts'
import { beginChange, beginDeletion } from './write-objects.ts'

const NFT_SET_ELEM_INTERVAL_END = 1
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
  const family = familyOfNumber(message.bytes[message.start] as number)
  if (family === undefined) return undefined
  message.attributes(4, reader)
  let table = ''
  let set = ''
  let setId: number | undefined
  const elements: Element[] = []
  while (reader.next()) {
    if (reader.type === NFTA_SET_ELEM_LIST.TABLE) table = reader.text()
    else if (reader.type === NFTA_SET_ELEM_LIST.SET) set = reader.text()
    else if (reader.type === NFTA_SET_ELEM_LIST.SET_ID) setId = reader.u32()
    else if (reader.type === NFTA_SET_ELEM_LIST.ELEMENTS) readList(reader, elements)
  }
  if (reader.error !== undefined) return undefined
  return setId === undefined ? { family, table, set, elements } : { family, table, set, setId, elements }
}

function readList(reader: AttributeReader, elements: Element[]): void {
  reader.enter()
  while (reader.next()) elements.push(readElement(reader))
  reader.leave()
}

function readElement(reader: AttributeReader): Element {
  const element: { -readonly [K in keyof Element]: Element[K] } = { key: noBytes }
  reader.enter()
  while (reader.next()) {
    switch (reader.type) {
      case NFTA_SET_ELEM.KEY:
        element.key = readBytes(reader)
        break
      case NFTA_SET_ELEM.KEY_END:
        element.keyEnd = readBytes(reader)
        break
      case NFTA_SET_ELEM.TIMEOUT:
        element.timeoutMs = reader.u64()
        break
      case NFTA_SET_ELEM.FLAGS:
        if ((reader.u32() & NFT_SET_ELEM_INTERVAL_END) !== 0) element.intervalEnd = true
        break
      case NFTA_SET_ELEM.DATA:
        readElementData(reader, element)
        break
      case NFTA_SET_ELEM.USERDATA:
        readElementComment(reader, element)
        break
      case NFTA_SET_ELEM.EXPR:
        readPackets(reader, element)
        break
    }
  }
  reader.leave()
  return element
}

function readElementData(reader: AttributeReader, element: { data?: Element['data'] }): void {
  const data = readData(reader)
  if (data !== undefined) element.data = data
}

function readElementComment(reader: AttributeReader, element: { comment?: Element['comment'] }): void {
  const comment = readComment(reader.raw())
  if (comment !== undefined) element.comment = comment
}

function readPackets(reader: AttributeReader, element: { packets?: number }): void {
  const packets = readCounter(reader)
  if (packets !== undefined) element.packets = packets
}

const noBytes = new Uint8Array(0)

function readBytes(reader: AttributeReader): Uint8Array {
  const data = readData(reader)
  return data instanceof Uint8Array ? data : noBytes
}
