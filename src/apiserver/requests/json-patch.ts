// JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Pure: what is given is never changed.

import { badRequest, unprocessable } from '../schema/api-status.ts'
import { copy, equal, isObject, type MutableJson } from '../schema/json.ts'

/** As the real server allows, so that a patch cannot keep it busy. */
const maxOperations = 10_000

export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return copy(patch)
  const made: MutableJson = isObject(target) ? { ...target } : {}
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete made[key]
    else made[key] = mergePatch(made[key], value)
  }
  return made
}

/** Throws a Status: 400 if the patch is none, 422 if it does not fit the document. */
export function jsonPatch(target: unknown, patch: unknown): unknown {
  if (!Array.isArray(patch)) throw badRequest('error decoding patch: a JSON patch is a list of operations')
  if (patch.length > maxOperations) throw badRequest(`error decoding patch: at most ${maxOperations} operations`)
  const root: MutableJson = { document: copy(target) }
  for (const [i, operation] of patch.entries()) {
    if (!isObject(operation)) throw badRequest(`error decoding patch: operation ${i} is no object`)
    apply(root, operation)
  }
  return root.document
}

function apply(root: MutableJson, operation: Readonly<Record<string, unknown>>): void {
  const path = pointer(operation.path)
  switch (operation.op) {
    case 'add':
      add(root, path, copy(required(operation)))
      return
    case 'remove':
      remove(root, path)
      return
    case 'replace':
      find(root, path)
      if (path.length === 1) root.document = copy(required(operation))
      else {
        const { parent, key } = parentOf(root, path)
        if (Array.isArray(parent)) parent[index(parent, key, false)] = copy(required(operation))
        else (parent as MutableJson)[key] = copy(required(operation))
      }
      return
    case 'move': {
      const from = pointer(operation.from)
      if (path.length > from.length && from.every((part, i) => part === path[i])) {
        throw unprocessable('a value cannot be moved into itself')
      }
      add(root, path, remove(root, from))
      return
    }
    case 'copy':
      add(root, path, copy(find(root, pointer(operation.from))))
      return
    case 'test':
      if (!equal(find(root, path), operation.value ?? null)) {
        throw unprocessable(`testing value ${String(operation.path)} failed`)
      }
      return
    default:
      throw unprocessable(`Unexpected kind: ${String(operation.op)}`)
  }
}

function required(operation: Readonly<Record<string, unknown>>): unknown {
  if (!Object.hasOwn(operation, 'value')) throw unprocessable(`${String(operation.op)} operation lacks a value`)
  return operation.value
}

/** The parts below an imaginary root, so that the whole document has a parent too. */
function pointer(path: unknown): readonly string[] {
  if (typeof path !== 'string' || (path !== '' && !path.startsWith('/'))) {
    throw unprocessable(`no JSON pointer: ${JSON.stringify(path)}`)
  }
  const parts = path.split('/').slice(1)
  return ['document', ...parts.map((part) => part.replace(/~1/g, '/').replace(/~0/g, '~'))]
}

function find(root: MutableJson, path: readonly string[]): unknown {
  let at: unknown = root
  for (const part of path) {
    if (Array.isArray(at)) at = at[index(at, part, false)]
    else if (isObject(at) && Object.hasOwn(at, part)) at = at[part]
    else throw missing(path)
  }
  return at
}

function parentOf(root: MutableJson, path: readonly string[]): { parent: unknown[] | MutableJson; key: string } {
  const parent = find(root, path.slice(0, -1))
  if (!Array.isArray(parent) && !isObject(parent)) throw missing(path)
  return { parent: parent as unknown[] | MutableJson, key: path.at(-1) as string }
}

function add(root: MutableJson, path: readonly string[], value: unknown): void {
  const { parent, key } = path.length === 1 ? { parent: root, key: 'document' } : parentOf(root, path)
  if (Array.isArray(parent)) parent.splice(index(parent, key, true), 0, value)
  else if (key !== '__proto__') parent[key] = value
}

function remove(root: MutableJson, path: readonly string[]): unknown {
  if (path.length === 1) throw unprocessable('the whole document cannot be removed')
  const value = find(root, path)
  const { parent, key } = parentOf(root, path)
  if (Array.isArray(parent)) parent.splice(index(parent, key, false), 1)
  else delete parent[key]
  return value
}

function index(list: readonly unknown[], part: string, adding: boolean): number {
  if (part === '-' && adding) return list.length
  if (!/^(0|[1-9]\d*)$/.test(part)) throw unprocessable(`no index of a list: ${part}`)
  const at = Number(part)
  if (at > list.length - (adding ? 0 : 1)) throw unprocessable(`Unable to access invalid index: ${at}`)
  return at
}

const missing = (path: readonly string[]) => unprocessable(`missing path: /${path.slice(1).join('/')}`)
