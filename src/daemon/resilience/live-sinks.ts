// Lets objects of the saved state serve until the API server has sent the live ones: the change from one to the other is a difference.

import type { RecordSink } from '../../kube/reflect/change-filter.ts'

/** A sink for live objects of one kind, before which saved objects may be fed. */
export class LiveSink<R> implements RecordSink<R> {
  readonly #sink: RecordSink<R>
  readonly #onChange: (key: string, record: R | undefined) => void
  readonly #onLive: () => void
  /** Keys that came from the API server; undefined when the first list is complete. */
  #live: Set<string> | undefined = new Set()
  /** Saved objects that the API server has not sent yet. */
  readonly #saved = new Set<string>()

  /** `onChange` is called for every live change, and `onLive` when the first list is complete. */
  constructor(
    sink: RecordSink<R>,
    { onChange, onLive }: { onChange: (key: string, record: R | undefined) => void; onLive: () => void },
  ) {
    this.#sink = sink
    this.#onChange = onChange
    this.#onLive = onLive
  }

  get isLive(): boolean {
    return this.#live === undefined
  }

  /** Delivers saved objects, except those of which the live one is known. */
  feed(saved: Iterable<readonly [string, R]>): void {
    if (this.#live === undefined) return
    for (const [key, record] of saved) {
      if (this.#live.has(key)) continue
      this.#saved.add(key)
      this.#sink.put(key, record)
    }
    this.#sink.synced()
  }

  put(key: string, record: R): void {
    this.#live?.add(key)
    this.#saved.delete(key)
    this.#sink.put(key, record)
    this.#onChange(key, record)
  }

  drop(key: string): void {
    this.#live?.add(key)
    this.#saved.delete(key)
    this.#sink.drop(key)
    this.#onChange(key, undefined)
  }

  /** The list is complete: what it lacks no longer exists. */
  synced(): void {
    this.#live = undefined
    for (const key of this.#saved) this.#sink.drop(key)
    this.#saved.clear()
    this.#sink.synced()
    this.#onLive()
  }

  problem(problem: Parameters<RecordSink<R>['problem']>[0]): void {
    this.#sink.problem(problem)
  }
}
