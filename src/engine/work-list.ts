// A list of services that wait to be planned, each at most once. Planning one service may add others while the list is drained. Pure.

import type { Steps } from '../lib/yielding.ts'

export class WorkList {
  #items: string[] = []
  readonly #listed = new Set<string>()

  get isEmpty(): boolean {
    return this.#items.length === 0
  }

  /** Adds an item at the end, unless it waits already. */
  add(item: string): void {
    if (this.#listed.has(item)) return
    this.#listed.add(item)
    this.#items.push(item)
  }

  /**
   * Removes and handles every item that `accepts` chooses, in the steps that `handle` returns; the other items keep their order. Items that are added meanwhile follow, also
   * an item that was handled before: it no longer waits when `handle` is called. An abandoned run leaves the rest on the list.
   */
  *drain(accepts: (item: string) => boolean, handle: (item: string) => Steps<void> | void): Steps<void> {
    const kept: string[] = []
    let next = 0
    try {
      while (next < this.#items.length) {
        const item = this.#items[next++] as string
        if (accepts(item)) {
          this.#listed.delete(item)
          const steps = handle(item) ?? noSteps
          // An item whose steps are abandoned stays on the list.
          next--
          yield* steps
          next++
        } else kept.push(item)
        yield
      }
    } finally {
      const rest = new Set(this.#items.slice(next))
      for (const item of rest) this.#listed.add(item)
      this.#items = [...kept, ...rest]
    }
  }
}

const noSteps: readonly never[] = []
