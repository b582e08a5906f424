// Set elements: most of what is ever sent, so written with one length computation and plain byte stores each; and read back.
//
// An attribute ends at 64 KiB, so a long list becomes several messages.

import { type AttributeReader, align4, littleEndian, type MessageReader, NLA_F_NESTED } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { readData, writeVerdict } from './expressions.ts'
import { type Element, type Elements, familyOfNumber, type Verb } from './nft-types.ts'
import { commentBytes, readComment } from './userdata.ts'
import { beginChange } from './write-objects.ts'

const LIST = { table: 1, set: 2, elements: 3, setId: 4 } as const
const ELEMENT = { key: 1, data: 2, flags: 3, timeout: 4, userdata: 6, keyEnd: 10 } as const
const INTERVAL_END = 1
/** Leaves room in an attribute for one more element of any size we write. */
const listBytes = 60_000

/** Adds or deletes elements; deletion looks at keys alone. Returns the sequence numbers of first and last message. */
export function writeElements(
  writer: MessageWriter,
  list: Omit<Elements, 'kind'>,
  verb: Verb = 'add',
): { readonly first: number; readonly last: number } {
  const first = writer.sequence
  const keysOnly = verb === 'delete' || verb === 'destroy'
  const { elements } = list
  let last = first
  for (let next = 0; next < elements.length; ) {
    last = writer.sequence
    const at = beginElements(writer, list, verb)
    while (next < elements.length && hasRoom(writer, at)) writeElement(writer, elements[next++] as Element, keysOnly)
    endElements(writer, at)
  }
  return { first, last }
}

/** Starts a message to be filled by `writeElement`; give what it returns to `endElements`. */
export function beginElements(writer: MessageWriter, list: Omit<Elements, 'kind' | 'elements'>, verb: Verb): number {
  beginChange(writer, 'elements', verb, list.family)
  writeNames(writer, list)
  return writer.open(LIST.elements)
}

/** There is room for one more element of any size we write. */
export const hasRoom = (writer: MessageWriter, at: number): boolean => writer.length - at < listBytes

export function endElements(writer: MessageWriter, at: number): void {
  writer.close(at)
  writer.end()
}

/** Deletes all elements of a set. */
export function flushSet(writer: MessageWriter, set: Pick<Elements, 'family' | 'table' | 'set'>): number {
  const sequence = beginChange(writer, 'elements', 'delete', set.family)
  writeNames(writer, set)
  writer.end()
  return sequence
}

function writeNames(writer: MessageWriter, { table, set, setId }: Pick<Elements, 'table' | 'set' | 'setId'>): void {
  writer.text(LIST.table, table)
  writer.text(LIST.set, set)
  if (setId !== undefined) writer.u32(LIST.setId, setId)
}

export function writeElement(writer: MessageWriter, element: Element, keysOnly: boolean): void {
  const at = writer.open(1)
  if (element.intervalEnd === true) writer.u32(ELEMENT.flags, INTERVAL_END)
  if (!keysOnly && element.timeoutMs !== undefined) writer.u64(ELEMENT.timeout, element.timeoutMs)
  writeBytes(writer, ELEMENT.key, element.key)
  if (element.keyEnd !== undefined) writeBytes(writer, ELEMENT.keyEnd, element.keyEnd)
  if (!keysOnly) {
    const { data } = element
    if (data instanceof Uint8Array) writeBytes(writer, ELEMENT.data, data)
    else if (data !== undefined) writeVerdict(writer, ELEMENT.data, data)
    if (element.comment !== undefined) writeComment(writer, element.comment, 0)
  }
  writer.close(at)
}

/** An element in its parts; its comment is `text` from `comment` on, none if that is -1. */
export function writeMember(
  writer: MessageWriter,
  key: Uint8Array,
  keyEnd: Uint8Array | undefined,
  data: Element['data'],
  text: string,
  comment: number,
): void {
  const at = writer.open(1)
  writeBytes(writer, ELEMENT.key, key)
  if (keyEnd !== undefined) writeBytes(writer, ELEMENT.keyEnd, keyEnd)
  if (data instanceof Uint8Array) writeBytes(writer, ELEMENT.data, data)
  else if (data !== undefined) writeVerdict(writer, ELEMENT.data, data)
  if (comment >= 0) writeComment(writer, text, comment)
  writer.close(at)
}

/** `commentBytes` without bytes of its own, for what is nearly every comment. */
function writeComment(writer: MessageWriter, text: string, from: number): void {
  const comment = from === 0 ? text : text.slice(from)
  const { length } = comment
  const whole = 4 + align4(length + 3)
  if (length <= 128) {
    writer.reserve(whole + 2 * length)
    const { bytes, length: at } = writer
    // As many bytes as letters: plain ASCII.
    if (bytes.write(comment, at + 6) === length) {
      store16(bytes, at, 4 + length + 3)
      store16(bytes, at + 2, ELEMENT.userdata)
      bytes[at + 4] = 0
      bytes[at + 5] = length + 1
      for (let i = at + 6 + length; i < at + whole; i++) bytes[i] = 0
      writer.length = at + whole
      return
    }
  }
  writer.raw(ELEMENT.userdata, commentBytes(comment))
}

/** Data attribute with raw bytes: `writer.open; writer.raw; writer.close` in one. */
function writeBytes(writer: MessageWriter, type: number, value: Uint8Array): void {
  const { length } = value
  const padded = align4(length)
  writer.reserve(8 + padded)
  const { bytes, length: at } = writer
  store16(bytes, at, 8 + padded)
  store16(bytes, at + 2, type | NLA_F_NESTED)
  store16(bytes, at + 4, 4 + length)
  store16(bytes, at + 6, 1)
  const start = at + 8
  for (let i = 0; i < length; i++) bytes[start + i] = value[i] as number
  for (let i = length; i < padded; i++) bytes[start + i] = 0
  writer.length = start + padded
}

function store16(bytes: Buffer, at: number, value: number): void {
  bytes[at] = littleEndian ? value : value >> 8
  bytes[at + 1] = littleEndian ? value >> 8 : value
}

/** A message of a dump of elements, or of a notification; undefined if it is of another family, or `reader.error` is set. */
export function decodeElements(message: MessageReader, reader: AttributeReader): Elements | undefined {
  const family = familyOfNumber(message.bytes[message.start] as number)
  if (family === undefined) return undefined
  message.attributes(4, reader)
  let table = ''
  let set = ''
  let setId: number | undefined
  const elements: Element[] = []
  while (reader.next()) {
    if (reader.type === LIST.table) table = reader.text()
    else if (reader.type === LIST.set) set = reader.text()
    else if (reader.type === LIST.setId) setId = reader.u32()
    else if (reader.type === LIST.elements) {
      reader.enter()
      while (reader.next()) elements.push(readElement(reader))
      reader.leave()
    }
  }
  if (reader.error !== undefined) return undefined
  return { kind: 'elements', family, table, set, ...(setId === undefined ? {} : { setId }), elements }
}

function readElement(reader: AttributeReader): Element {
  const element: { -readonly [K in keyof Element]: Element[K] } = { key: noBytes }
  reader.enter()
  while (reader.next()) {
    if (reader.type === ELEMENT.key) element.key = readBytes(reader)
    else if (reader.type === ELEMENT.keyEnd) element.keyEnd = readBytes(reader)
    else if (reader.type === ELEMENT.timeout) element.timeoutMs = reader.u64()
    else if (reader.type === ELEMENT.flags) {
      if ((reader.u32() & INTERVAL_END) !== 0) element.intervalEnd = true
    } else if (reader.type === ELEMENT.data) {
      const data = readData(reader)
      if (data !== undefined) element.data = data
    } else if (reader.type === ELEMENT.userdata) {
      const comment = readComment(reader.raw())
      if (comment !== undefined) element.comment = comment
    }
  }
  reader.leave()
  return element
}

const noBytes = new Uint8Array(0)

function readBytes(reader: AttributeReader): Uint8Array {
  const data = readData(reader)
  return data instanceof Uint8Array ? data : noBytes
}

/** Which element of a message the kernel complains about, from the offset in its answer; -1 if about none. */
export function elementAt(message: MessageReader, offset: number): number {
  const target = message.start - 16 + offset
  const reader = message.attributes(4)
  while (reader.next()) {
    if (reader.type !== LIST.elements) continue
    reader.enter()
    for (let index = 0; reader.next(); index++) if (target >= reader.start - 4 && target < reader.end) return index
    reader.leave()
  }
  return -1
}
