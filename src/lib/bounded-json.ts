// Parses and prints JSON of unknown origin within bounds: neither a deep nesting nor a huge value costs more than it may. Pure.

import type { Steps } from './yielding.ts'

/** The API server's own decoder allows as many levels. */
const maxDepth = 10_000
/** A shorter text cannot hold enough levels to cost memory that matters, so it is not searched for them. */
const searchedLength = 512 << 10
/** Levels that an excerpt shows. `JSON.stringify` calls itself for each level, and overflows the stack at some thousand. */
const shownDepth = 20

/** Parses JSON. Throws a SyntaxError if the text is not valid or nests too deeply: the parser needs 80 bytes of memory per level. */
export function parseBounded(text: string): unknown {
  checkDepth(text)
  return JSON.parse(text)
}

/** As `parseBounded`, with a pause between the two parts. Node's parser itself cannot pause. */
export function* parseBoundedInSteps(text: string): Steps<unknown> {
  checkDepth(text)
  yield
  return JSON.parse(text)
}

function checkDepth(text: string): void {
  if (text.length > searchedLength && nestsDeeperThan(text, maxDepth)) {
    throw new SyntaxError(`the JSON nests deeper than ${maxDepth} levels`)
  }
}

const quote = 0x22
const backslash = 0x5c

function nestsDeeperThan(text: string, limit: number): boolean {
  let depth = 0
  for (let i = 0; i < text.length; i++) {
    // '{' and '[' differ in one bit, as '}' and ']' do.
    const code = text.charCodeAt(i)
    if (code === quote) i = findQuote(text, i + 1)
    else if ((code & ~0x20) === 0x5b) depth++
    else if ((code & ~0x20) === 0x5d) depth--
    if (depth > limit) return true
  }
  return false
}

/** Returns the index of the quote that ends a string. */
function findQuote(text: string, start: number): number {
  for (let i = start; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === quote) return i
    if (code === backslash) i++
  }
  return text.length
}

/** Prints a value as JSON of at most `maxLength` characters; the end of a longer text becomes `...`. */
export function excerptJson(value: unknown, maxLength: number): string {
  return cutText(print(value, maxLength + 1, shownDepth), maxLength)
}

export const cutText = (text: string, maxLength: number): string =>
  text.length <= maxLength ? text : `${text.slice(0, maxLength - 3)}...`

/** Prints at least the first `room` characters of the JSON, and not much more. */
function print(value: unknown, room: number, depth: number): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, room))
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? String(value)
  if (depth === 0) return Array.isArray(value) ? '[...]' : '{...}'
  return Array.isArray(value) ? printList(value, room, depth) : printObject(value, room, depth)
}

function printList(list: readonly unknown[], room: number, depth: number): string {
  let text = '['
  for (const [i, element] of list.entries()) {
    if (text.length >= room) return text
    text += `${i === 0 ? '' : ','}${print(element, room - text.length, depth - 1)}`
  }
  return `${text}]`
}

function printObject(object: object, room: number, depth: number): string {
  let text = '{'
  for (const [name, value] of Object.entries(object)) {
    if (text.length >= room) return text
    const label = print(name, room, 1)
    text += `${text === '{' ? '' : ','}${label}:${print(value, Math.max(0, room - text.length), depth - 1)}`
  }
  return `${text}}`
}
