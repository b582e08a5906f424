// A list of services that wait to be planned, each at most once. Planning one service may add others while the list is drained. Pure.

import type { Steps } from '../lib/yielding.ts'

export class WorkList {
  #items: string[] = []
  readonly #listed = new Set<string>()

  /** Adds an item at the end, unless it waits already. */
  add(item: string): void {
    if (this.#listed.has(item)) return
    this.#listed.add(item)
    this.#items.push(item)
  }

  /**
   * Removes and handles every item that `accepts` chooses; the other items keep their order. Items that are added meanwhile follow, also
   * an item that was handled before: it no longer waits when `handle` is called. An abandoned run leaves the rest on the list.
   */
  *drain(accepts: (item: string) => boolean, handle: (item: string) => void): Steps<void> {
    const kept: string[] = []
    let next = 0
    try {
      while (next < this.#items.length) {
        const item = this.#items[next++] as string
        if (accepts(item)) {
          this.#listed.delete(item)
          handle(item)
        } else kept.push(item)
        yield
      }
    } finally {
      this.#items = [...kept, ...this.#items.slice(next)]
    }
  }
}
