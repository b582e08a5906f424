// Writes what the programs accept and finds out what they refuse: by the line that they complain about, else by halves. No I/O of its own.
//
// 1. All items are written at once. They are divided only if that fails.
// 2. If the error names a line, all items but those that the line may belong to are written at once, then the suspects one by one. A
//    line makes an item a suspect only: it is refused if it fails alone.
// 3. If no line is named (the legacy flavour fails at COMMIT), each half is tried. Every success is final, so this ends.
// 4. An item is refused only after a write without any new item has succeeded. If that fails, the cause is something else: isolate throws.
// 5. Each table is written by itself, so one table may hold what another refused. The last write is always one that succeeds.

import type { ProxyError } from '../../lib/errors.ts'

/** Why a write was refused. */
export interface IsolationFailure {
  readonly error: ProxyError
  /** The lines that the error may be about; empty if it names none. */
  readonly lines: readonly string[]
}

export interface Isolation<E> {
  /** Writes all items that were accepted so far and `items`, all or none. Items that are not refused are accepted. */
  readonly attempt: (items: readonly E[]) => Promise<IsolationFailure | undefined>
  /** True if the line may belong to the item. */
  readonly mentions: (item: E, line: string) => boolean
}

export interface Refusal<E> {
  readonly item: E
  readonly error: ProxyError
}

/** Returns the items that are refused; all others are written. Throws if something else is the cause. */
export async function isolate<E>(items: readonly E[], isolation: Isolation<E>): Promise<readonly Refusal<E>[]> {
  return await new Isolator(isolation).run(items)
}

class Isolator<E> {
  readonly #isolation: Isolation<E>
  readonly #refusals: Refusal<E>[] = []
  /** True after a write without any new item succeeded. */
  #worksWithout = false
  /** The failure of the last write. */
  #failure: IsolationFailure | undefined

  constructor(isolation: Isolation<E>) {
    this.#isolation = isolation
  }

  async run(items: readonly E[]): Promise<readonly Refusal<E>[]> {
    const failure = await this.#attempt(items)
    if (failure === undefined) return []
    if (items.length === 0) throw failure.error
    await this.#divide(items, failure)
    if (this.#failure !== undefined) await this.#writeWithout()
    return this.#refusals
  }

  async #divide(items: readonly E[], failure: IsolationFailure): Promise<void> {
    const [only] = items
    if (only !== undefined && items.length === 1) {
      if (!this.#worksWithout) await this.#writeWithout()
      this.#refusals.push({ item: only, error: failure.error })
      return
    }
    const suspects = new Set(items.filter((item) => failure.lines.some((line) => this.#isolation.mentions(item, line))))
    const isNarrowed = suspects.size > 0 && suspects.size < items.length
    if (!isNarrowed && !this.#worksWithout) await this.#writeWithout()
    for (const part of isNarrowed ? setApart(items, suspects) : halve(items)) {
      const partFailure = await this.#attempt(part)
      if (partFailure !== undefined) await this.#divide(part, partFailure)
    }
  }

  async #attempt(items: readonly E[]): Promise<IsolationFailure | undefined> {
    this.#failure = await this.#isolation.attempt(items)
    return this.#failure
  }

  async #writeWithout(): Promise<void> {
    const failure = await this.#attempt([])
    if (failure !== undefined) throw failure.error
    this.#worksWithout = true
  }
}

const setApart = <E>(items: readonly E[], suspects: ReadonlySet<E>): readonly (readonly E[])[] => [
  items.filter((item) => !suspects.has(item)),
  ...[...suspects].map((suspect) => [suspect]),
]

const halve = <E>(items: readonly E[]): readonly (readonly E[])[] => {
  const middle = items.length >> 1
  return [items.slice(0, middle), items.slice(middle)]
}
