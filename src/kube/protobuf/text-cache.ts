// Finds the string for bytes that were read before, without decoding them again: names of nodes, ports and namespaces repeat in
// thousands of objects. Holds the only module-level state of this folder.

import type { WireCursor } from '../../lib/protobuf-wire.ts'

/** Longer texts seldom repeat. */
const maxLength = 48
/** A power of two. A text that falls on a used place replaces the one that was there. */
const places = 4096
const lastAscii = 0x7f

/** A cache never changes what is read, only what it costs. */
const texts: string[] = new Array<string>(places).fill('')

/** Reads a text that is likely to repeat. */
export function readCachedText(cursor: WireCursor, end: number): string {
  const start = cursor.at
  const stop = cursor.readFieldEnd(end)
  const length = stop - cursor.at
  const place = length > maxLength ? -1 : hashAscii(cursor.bytes, cursor.at, stop)
  const known = place < 0 ? undefined : texts[place]
  if (known !== undefined && known.length === length && isEqual(known, cursor.bytes, cursor.at)) {
    cursor.at = stop
    return known
  }
  cursor.at = start
  const text = cursor.readText(end)
  if (place >= 0) texts[place] = text
  return text
}

/** Returns a place, or -1 if a byte is not ASCII. */
function hashAscii(bytes: Buffer, start: number, stop: number): number {
  let hash = 0
  let all = 0
  for (let i = start; i < stop; i++) {
    const byte = bytes[i] ?? 0
    all |= byte
    hash = ((hash << 5) | (hash >>> 27)) ^ byte
  }
  return all > lastAscii ? -1 : (hash ^ (hash >>> 9) ^ (hash >>> 18)) & (places - 1)
}

function isEqual(text: string, bytes: Buffer, start: number): boolean {
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) !== bytes[start + i]) return false
  return true
}
