// Applies JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386); strategic merge patches are in strategic.ts. The documents that are given
// never change. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { badRequest, tooManyOperations, unprocessable } from '../schema/api-status.ts'
import { deepCopy, isObject, type Json, type MutableJson } from '../schema/json.ts'

/** The real server has the same two limits, so that one patch cannot keep it busy or fill its memory. */
const maxOperations = 10_000
const maxCopiedBytes = 3 << 20
/** Adding to or removing from the middle of a list shifts all elements behind. Ten million of them take about ten milliseconds. */
const maxShifted = 10_000_000

export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return deepCopy(patch)
  const merged: MutableJson = isObject(target) ? { ...target } : {}
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key]
    else merged[key] = mergePatch(merged[key], value)
  }
  return merged
}

/** Throws a Status: 400 if the body is not a JSON patch, 422 if it does not fit the document. */
export function jsonPatch(target: unknown, patch: unknown): unknown {
  if (!Array.isArray(patch)) throw badRequest('error decoding patch: a JSON patch is a list of operations')
  if (patch.length > maxOperations) throw tooManyOperations(maxOperations, patch.length)
  const root: PatchRoot = { document: deepCopy(target), copiedBytes: 0, shifted: 0 }
  for (const [i, operation] of patch.entries()) {
    if (!isObject(operation)) throw badRequest(`error decoding patch: operation ${i} is not an object`)
    const apply = operations.get(operation.op)
    const path = parsePointer(operation.path)
    if (apply === undefined) throw unprocessable(`Unexpected kind: ${String(operation.op)}`)
    apply(root, path, operation)
  }
  return root.document
}

/** An imaginary parent of the document, so that every value has a parent; and what the patch has cost so far. */
interface PatchRoot {
  document: unknown
  copiedBytes: number
  shifted: number
}

type Path = readonly string[]
type Operation = (root: PatchRoot, path: Path, operation: Json) => void

const operations: ReadonlyMap<unknown, Operation> = new Map<unknown, Operation>([
  ['add', (root, path, operation) => addValue(root, path, deepCopy(readValue(operation)))],
  ['remove', (root, path) => removeValue(root, path)],
  ['replace', (root, path, operation) => replaceValue(root, path, deepCopy(readValue(operation)))],
  ['move', (root, path, operation) => moveValue(root, parsePointer(operation.from), path)],
  ['copy', (root, path, operation) => copyValue(root, parsePointer(operation.from), path)],
  ['test', testValue],
])

function readValue(operation: Json): unknown {
  if (!Object.hasOwn(operation, 'value')) throw unprocessable(`${String(operation.op)} operation lacks a value`)
  return operation.value
}

/** The parts of a JSON pointer, below the imaginary root. */
function parsePointer(pointer: unknown): Path {
  if (typeof pointer !== 'string' || (pointer !== '' && !pointer.startsWith('/'))) {
    throw unprocessable(`${JSON.stringify(pointer)} is not a valid JSON pointer`)
  }
  const parts = pointer.split('/').slice(1)
  return ['document', ...parts.map((part) => part.replace(/~1/g, '/').replace(/~0/g, '~'))]
}

function findValue(root: PatchRoot, path: Path): unknown {
  let value: unknown = root
  for (const part of path) {
    if (Array.isArray(value)) value = value[parseIndex(part, value.length - 1)]
    else if (isObject(value) && Object.hasOwn(value, part)) value = value[part]
    else throw missingPath(path)
  }
  return value
}

interface Slot {
  readonly parent: unknown[] | MutableJson
  readonly key: string
}

function findSlot(root: PatchRoot, path: Path): Slot {
  const parent = findValue(root, path.slice(0, -1))
  const key = path.at(-1) ?? ''
  if (Array.isArray(parent)) return { parent, key }
  if (!isObject(parent)) throw missingPath(path)
  // `jsonPatch` made a copy of the whole document.
  return { parent: parent as MutableJson, key }
}

function addValue(root: PatchRoot, path: Path, value: unknown): void {
  const { parent, key } = findSlot(root, path)
  if (Array.isArray(parent)) {
    const index = key === '-' ? parent.length : parseIndex(key, parent.length)
    countShift(root, parent.length - index)
    parent.splice(index, 0, value)
  } else if (key !== '__proto__') parent[key] = value
}

function removeValue(root: PatchRoot, path: Path): unknown {
  if (path.length === 1) throw unprocessable('the whole document cannot be removed')
  const value = findValue(root, path)
  const { parent, key } = findSlot(root, path)
  if (Array.isArray(parent)) {
    const index = parseIndex(key, parent.length - 1)
    countShift(root, parent.length - index)
    parent.splice(index, 1)
  } else delete parent[key]
  return value
}

function replaceValue(root: PatchRoot, path: Path, value: unknown): void {
  findValue(root, path)
  const { parent, key } = findSlot(root, path)
  if (Array.isArray(parent)) parent[parseIndex(key, parent.length - 1)] = value
  else parent[key] = value
}

function copyValue(root: PatchRoot, from: Path, to: Path): void {
  const value = findValue(root, from)
  root.copiedBytes += jsonSize(value, maxCopiedBytes - root.copiedBytes)
  if (root.copiedBytes > maxCopiedBytes) {
    throw unprocessable(
      `Unable to complete the copy, the accumulated size increase of copy is ${root.copiedBytes}, exceeding the limit ${maxCopiedBytes}`,
    )
  }
  addValue(root, to, deepCopy(value))
}

/** The length of the value's JSON, or, if that is more than `limit`, some number above it. */
function jsonSize(value: unknown, limit: number): number {
  if (typeof value === 'string') return value.length + 2
  if (typeof value !== 'object' || value === null) return String(value).length
  let size = 2
  for (const [key, member] of Object.entries(value)) {
    size += (Array.isArray(value) ? 1 : key.length + 4) + jsonSize(member, limit - size)
    if (size > limit) break
  }
  return size
}

function countShift(root: PatchRoot, elements: number): void {
  root.shifted += elements
  if (root.shifted > maxShifted) throw unprocessable(`the patch shifts more than ${maxShifted} list elements`)
}

function moveValue(root: PatchRoot, from: Path, to: Path): void {
  if (to.length > from.length && from.every((part, i) => part === to[i])) {
    throw unprocessable('a value cannot be moved into itself')
  }
  addValue(root, to, removeValue(root, from))
}

function testValue(root: PatchRoot, path: Path, operation: Json): void {
  if (!deepEqual(findValue(root, path), operation.value ?? null)) {
    throw unprocessable(`testing value ${String(operation.path)} failed`)
  }
}

function parseIndex(part: string, max: number): number {
  if (!/^(0|[1-9]\d*)$/.test(part)) throw unprocessable(`${JSON.stringify(part)} is not a valid index of a list`)
  const index = Number(part)
  if (index > max) throw unprocessable(`Unable to access invalid index: ${index}`)
  return index
}

const missingPath = (path: Path) => unprocessable(`missing path: /${path.slice(1).join('/')}`)
