// Filters what a reflector reads, so that the sink gets each change once, and after a new snapshot exactly the difference.

import { cutText } from '../../lib/bounded-json.ts'
import { describeError } from '../../lib/errors.ts'
import type { Steps } from '../../lib/yielding.ts'
import type { Problem } from '../../model/types.ts'
import {
  asObject,
  type DecodedRecord,
  isUnreadable,
  maxKeyLength,
  readString,
  readUid,
  throwIfUnreadable,
} from '../decode/fields.ts'
import { OrdinaryObject } from '../decode/ordinary-object.ts'
import { readVersion } from './watch-messages.ts'
import type { WatchedResource } from './watched-resources.ts'

export interface RecordSink<R> {
  /** `json` is the object as it came; it is only valid during the call, and absent if the record does not come from an event. */
  put(key: string, record: R, json?: unknown): void
  drop(key: string, json?: unknown): void
  /** Called once, when every object of the first snapshot has been put. */
  synced(): void
  problem(problem: Problem): void
}

/** A resourceVersion. It is a number where possible, since memory holds one per object for as long as the process runs. */
type Version = string | number

/** Objects between two points where the comparison may be interrupted. */
const objectsPerStep = 100

export class ChangeFilter<R> {
  readonly #kind: string
  readonly #decode: (json: unknown) => DecodedRecord<R>
  readonly #sink: RecordSink<R>
  readonly #delivered = new Map<string, Version>()
  /** Objects that gave no record but problems. They are reported once per version, not once per snapshot. */
  readonly #refused = new Map<string, Version>()
  /** Objects that are of no use. Each is reported once, whatever its versions are. */
  readonly #unused = new Set<string>()
  readonly #onUnused: (key: string, reason: string) => void
  #seen: Set<string> | undefined
  readonly #decodeInSteps: ((json: unknown) => Steps<DecodedRecord<R>>) | undefined
  /** The last object that was decoded in steps. */
  #prepared: { readonly json: unknown; readonly decoded: DecodedRecord<R> } | undefined

  constructor(
    { kind, decode, decodeInSteps }: Pick<WatchedResource<R>, 'kind' | 'decode' | 'decodeInSteps'>,
    sink: RecordSink<R>,
    onUnused: (key: string, reason: string) => void = () => {},
  ) {
    this.#onUnused = onUnused
    this.#kind = kind
    this.#decode = decode
    this.#decodeInSteps = decodeInSteps
    this.#sink = sink
  }

  get size(): number {
    return this.#delivered.size
  }

  /** Begins a snapshot. Objects that an unfinished snapshot delivered stay. */
  beginSnapshot(): void {
    // The first snapshot cannot reveal deletions.
    const known = this.#delivered.size + this.#refused.size + this.#unused.size
    this.#seen = known === 0 ? undefined : new Set()
  }

  /** Completes the snapshot: drops every object that it did not contain. */
  *commitSnapshot(): Steps<void> {
    const seen = this.#seen
    this.#seen = undefined
    if (seen === undefined) return
    for (const key of this.#refused.keys()) if (!seen.has(key)) this.#refused.delete(key)
    for (const key of this.#unused) if (!seen.has(key)) this.#unused.delete(key)
    let compared = 0
    for (const key of this.#delivered.keys()) {
      if (++compared % objectsPerStep === 0) yield
      if (!seen.has(key)) this.#drop(key)
    }
  }

  /** Decodes a large object in steps, so that the `put` of the same object that follows takes little time. */
  *prepare(json: unknown): Steps<void> {
    if (this.#decodeInSteps === undefined || isUnreadable(json)) return
    try {
      this.#prepared = { json, decoded: yield* this.#decodeInSteps(json) }
    } catch {
      // `put` decodes the object again, and reports why that fails.
    }
  }

  /** Whatever is thrown here is a problem of this object. What it had before stays in use, since nothing better is known. */
  put(json: unknown): void {
    const { key, version } = identify(json)
    this.#seen?.add(key)
    if (version !== '' && (this.#delivered.get(key) === version || this.#isRefused(key, version))) return
    try {
      this.#deliver(json, key, version)
    } catch (error) {
      this.#refused.set(key, version)
      const uid = readUid(asObject(asObject(json)?.metadata))
      const message = `the object cannot be read: ${cutText(describeError(error), 200)}`
      this.#sink.problem({ kind: this.#kind, object: key, uid, field: '', message })
    }
  }

  drop(json: unknown): void {
    const { key } = identify(json)
    this.#refused.delete(key)
    this.#unused.delete(key)
    this.#drop(key, json)
  }

  #deliver(json: unknown, key: string, version: Version): void {
    throwIfUnreadable(json)
    const decoded = this.#decodeOnce(json)
    const { key: own, record, problems, unused } = decoded
    for (const problem of problems) this.#sink.problem(problem)
    if (unused !== undefined) this.#reportUnused(key, unused)
    else if (this.#unused.size > 0) this.#unused.delete(key)
    if (record !== undefined) {
      if (this.#refused.size > 0) this.#refused.delete(key)
      this.#delivered.set(own, version)
      this.#sink.put(own, record, json)
      return
    }
    this.#drop(key)
    if (problems.length > 0) this.#refused.set(key, version)
  }

  #isRefused(key: string, version: Version): boolean {
    return this.#refused.size > 0 && this.#refused.get(key) === version
  }

  /** The record may have been made already, in steps. */
  #decodeOnce(json: unknown): DecodedRecord<R> {
    const prepared = this.#prepared
    this.#prepared = undefined
    return prepared !== undefined && prepared.json === json ? prepared.decoded : this.#decode(json)
  }

  #reportUnused(key: string, reason: string): void {
    if (this.#unused.has(key)) return
    this.#unused.add(key)
    this.#onUnused(key, reason)
  }

  #drop(key: string, json?: unknown): void {
    if (this.#delivered.delete(key)) this.#sink.drop(key, json)
  }
}

function identify(json: unknown): { key: string; version: Version } {
  if (json instanceof OrdinaryObject) return { key: json.decoded.key, version: parseVersion(readVersion(json)) }
  const object = asObject(json)
  const metadata = asObject(object?.metadata)
  const name = readString(metadata, 'name')
  const namespace = readString(metadata, 'namespace')
  return {
    key: cutText(namespace === '' ? name : `${namespace}/${name}`, maxKeyLength),
    version: parseVersion(readVersion(object)),
  }
}

const parseVersion = (version: string): Version => (/^[1-9]\d{0,14}$/.test(version) ? Number(version) : version)
