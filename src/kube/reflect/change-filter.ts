// What a sink has been given of one kind, so that it is told each change once, and after a relist exactly the difference.

import type { Steps } from '../../lib/yielding.ts'
import type { Problem } from '../../model/types.ts'
import { asObject, type DecodedRecord } from './fields.ts'

export interface RecordSink<R> {
  put(key: string, record: R): void
  drop(key: string): void
  /** Once: everything that was there at the start has been put. */
  synced(): void
  problem(problem: Problem): void
}

/** A resourceVersion; as a number where possible, since there is one per object for as long as we run. */
type Version = string | number

/** Objects between two places where a walk may be interrupted. */
const stride = 100

export class ChangeFilter<R> {
  readonly #decode: (json: unknown) => DecodedRecord<R>
  readonly #sink: RecordSink<R>
  readonly #delivered = new Map<string, Version>()
  /** Objects that gave no record but problems: they are reported once per version, not once per relist. */
  readonly #refused = new Map<string, Version>()
  #seen: Set<string> | undefined

  constructor(decode: (json: unknown) => DecodedRecord<R>, sink: RecordSink<R>) {
    this.#decode = decode
    this.#sink = sink
  }

  get size(): number {
    return this.#delivered.size
  }

  /** A snapshot begins; one that was not finished is forgotten, what it delivered is not. */
  begin(): void {
    // Of the first one nothing can be gone at its end.
    this.#seen = this.#delivered.size + this.#refused.size === 0 ? undefined : new Set()
  }

  /** The snapshot is complete: what it did not show is gone. */
  *committing(): Steps<void> {
    const seen = this.#seen
    this.#seen = undefined
    if (seen === undefined) return
    for (const key of this.#refused.keys()) if (!seen.has(key)) this.#refused.delete(key)
    let compared = 0
    for (const key of this.#delivered.keys()) {
      if (++compared % stride === 0) yield
      if (!seen.has(key)) this.#drop(key)
    }
  }

  put(json: unknown): void {
    const { key, version } = identify(json)
    this.#seen?.add(key)
    if (version !== '' && (this.#delivered.get(key) === version || this.#refused.get(key) === version)) return
    const { key: own, record, problems } = this.#decode(json)
    for (const problem of problems) this.#sink.problem(problem)
    if (record !== undefined) {
      this.#refused.delete(key)
      this.#delivered.set(own, version)
      this.#sink.put(own, record)
      return
    }
    this.#drop(key)
    if (problems.length > 0) this.#refused.set(key, version)
  }

  drop(json: unknown): void {
    const { key } = identify(json)
    this.#refused.delete(key)
    this.#drop(key)
  }

  #drop(key: string): void {
    if (this.#delivered.delete(key)) this.#sink.drop(key)
  }
}

function identify(json: unknown): { key: string; version: Version } {
  const metadata = asObject(asObject(json)?.metadata) ?? {}
  const text = (name: string) => (typeof metadata[name] === 'string' ? (metadata[name] as string) : '')
  const namespace = text('namespace')
  const version = text('resourceVersion')
  return {
    key: namespace === '' ? text('name') : `${namespace}/${text('name')}`,
    version: /^[1-9]\d{0,14}$/.test(version) ? Number(version) : version,
  }
}
