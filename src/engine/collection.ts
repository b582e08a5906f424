// A few records of one kind, handed out as a whole whenever they change: nodes, service CIDRs.

import { deepEqual } from '../lib/equal.ts'
import type { Problem } from '../model/types.ts'
import type { StoreSink } from './store.ts'

export interface CollectionOptions<R> {
  /** Everything there is now, sorted by key. Called first when the first set is complete. */
  readonly onChange: (records: readonly R[]) => void
  readonly onProblem: (problem: Problem) => void
}

export class Collection<R> implements StoreSink<R> {
  readonly #options: CollectionOptions<R>
  readonly #records = new Map<string, R>()
  #synced = false

  constructor(options: CollectionOptions<R>) {
    this.#options = options
  }

  put(key: string, record: R): void {
    if (deepEqual(this.#records.get(key), record)) return
    this.#records.set(key, record)
    this.#tell()
  }

  drop(key: string): void {
    if (this.#records.delete(key)) this.#tell()
  }

  synced(): void {
    if (this.#synced) return
    this.#synced = true
    this.#tell()
  }

  problem(problem: Problem): void {
    this.#options.onProblem(problem)
  }

  records(): readonly R[] {
    return [...this.#records].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, record]) => record)
  }

  #tell(): void {
    if (this.#synced) this.#options.onChange(this.records())
  }
}
