// The format of the saved state: a header, one line per object, a line that ends the snapshot, and then one line per change. No I/O.
//
// Each line begins with a checksum of all lines up to it, so that no line can be changed, left out or moved without notice. A file that
// ends before the end of its snapshot is refused, because a part of the services would look like all of them. Bytes after the snapshot that
// do not fit, such as the last line of a process that was killed, are left out: what precedes them is a state that existed.

import { crc32 } from 'node:zlib'
import { describeError } from '../../lib/errors.ts'
import type { Steps } from '../../lib/yielding.ts'
import type { NodeRecord, ServiceCidrRecord, ServiceRecord, SliceRecord } from '../../model/types.ts'

const kind = 'SluiceState'
/** To be increased whenever a record gets another meaning. */
const version = 1

/** The node and the cluster that a state belongs to. A file of others is refused. */
export interface StateOwner {
  readonly node: string
  readonly cluster: string
}

interface SavedRecords {
  readonly node: NodeRecord
  readonly service: ServiceRecord
  readonly slice: SliceRecord
  readonly cidr: ServiceCidrRecord
}

export type SavedKind = keyof SavedRecords

/** An object, or undefined if it is deleted. */
export type StateChange = {
  [K in SavedKind]: { readonly kind: K; readonly key: string; readonly record: SavedRecords[K] | undefined }
}[SavedKind]

export type SavedObjects = { readonly [K in SavedKind]: Map<string, SavedRecords[K]> }

const makeObjects = (): SavedObjects => ({ node: new Map(), service: new Map(), slice: new Map(), cidr: new Map() })

/** Writes the lines of one file, in their order. */
export class StateEncoder {
  #sum = 0

  header({ node, cluster }: StateOwner): string {
    this.#sum = 0
    return this.#line({ kind, version, node, cluster })
  }

  change({ kind: what, key, record }: StateChange): string {
    return this.#line(record === undefined ? [what, key] : [what, key, record])
  }

  endOfSnapshot(): string {
    return this.#line(['end'])
  }

  #line(value: unknown): string {
    const text = JSON.stringify(value)
    this.#sum = crc32(text, this.#sum)
    return `${this.#sum.toString(16).padStart(8, '0')} ${text}\n`
  }
}

export type Decoded = { readonly objects: SavedObjects } | { readonly refused: string }

const newline = 10
const space = 32
const sumLength = 8

/** Reads a file in steps. Never throws for its content. */
export function* decodeState(bytes: Buffer, owner: StateOwner): Steps<Decoded> {
  const objects = makeObjects()
  let sum = 0
  let isHeader = true
  let isComplete = false
  for (let start = 0; start < bytes.length; ) {
    const end = bytes.indexOf(newline, start)
    const line = end < 0 ? undefined : readLine(bytes, start, end, sum)
    if (line === undefined) break
    sum = line.sum
    if (isHeader) {
      const refused = checkHeader(line.value, owner)
      if (refused !== undefined) return { refused }
      isHeader = false
    } else if (isEnd(line.value)) isComplete = true
    else if (!addChange(objects, line.value)) return { refused: 'it has a line of an unknown form' }
    start = end + 1
    yield
  }
  if (isHeader) return { refused: 'it does not begin as a saved state, or its first line is damaged' }
  return isComplete ? { objects } : { refused: 'it is damaged or incomplete' }
}

/** Undefined if the line is damaged. */
function readLine(
  bytes: Buffer,
  start: number,
  end: number,
  before: number,
): { sum: number; value: unknown } | undefined {
  const body = bytes.subarray(start + sumLength + 1, end)
  const sum = crc32(body, before)
  const written = bytes[start + sumLength] === space ? bytes.toString('latin1', start, start + sumLength) : ''
  if (written !== sum.toString(16).padStart(sumLength, '0')) return undefined
  try {
    return { sum, value: JSON.parse(body.toString()) as unknown }
  } catch {
    return undefined
  }
}

function checkHeader(value: unknown, owner: StateOwner): string | undefined {
  if (typeof value !== 'object' || value === null || !('kind' in value) || value.kind !== kind) {
    return 'it is not a saved state'
  }
  const found = value as Readonly<Record<string, unknown>>
  if (found.version !== version)
    return `it has version ${JSON.stringify(found.version)}, and this proxy reads ${version}`
  if (found.node !== owner.node) return `it belongs to the node ${JSON.stringify(found.node)}`
  return found.cluster === owner.cluster ? undefined : 'it belongs to another cluster'
}

const isEnd = (value: unknown): boolean => Array.isArray(value) && value.length === 1 && value[0] === 'end'

/** False if the line is not a change. The checksum and the version say that our own code wrote the record, so its fields are not checked. */
function addChange(objects: SavedObjects, value: unknown): boolean {
  if (!Array.isArray(value)) return false
  const [what, key, record] = value as readonly unknown[]
  if (typeof what !== 'string' || !Object.hasOwn(objects, what) || typeof key !== 'string') return false
  const map = objects[what as SavedKind] as Map<string, unknown>
  if (record === undefined) map.delete(key)
  else if (typeof record === 'object' && record !== null) map.set(key, record)
  else return false
  return true
}

export const describeRefusal = (path: string, reason: string): string =>
  `the saved state ${path} is not used: ${reason}`

export const describeFailure = (path: string, error: unknown): string => describeRefusal(path, describeError(error))
