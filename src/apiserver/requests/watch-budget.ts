// Limits the memory that all watches use together for what their clients have not read yet. Slow watches end first.

/** A watch as the budget sees it. */
export interface BudgetedWatch {
  /** Characters or bytes that the client has not read yet. */
  readonly buffered: number
  /** Ends the watch. Its memory is free when it is removed from the budget. */
  endAsTooSlow(): void
}

const defaultMaxBytes = 128 << 20

/**
 * The budget sums up all buffers only when enough was written to exceed it, since there may be thousands of watches. A change goes to
 * all of them within one turn of the event loop, and memory of ended watches is free after the turn, so twice the budget is the limit
 * within a turn.
 */
export class WatchBudget {
  readonly #maxBytes: number
  readonly #running = new Set<BudgetedWatch>()
  /** The buffers of watches that were ended and still take memory. */
  readonly #ending = new Map<BudgetedWatch, number>()
  #endingSize = 0
  /** The most that all running watches can have buffered: the last sum, and what was written since. */
  #estimate = 0

  constructor(maxBytes = defaultMaxBytes) {
    this.#maxBytes = maxBytes
  }

  /** Returns a function that removes the watch. */
  add(watch: BudgetedWatch): () => void {
    this.#running.add(watch)
    return () => {
      this.#running.delete(watch)
      this.#endingSize -= this.#ending.get(watch) ?? 0
      this.#ending.delete(watch)
    }
  }

  /** Called before each write. Ends the slowest watches if necessary; returns false if the writer may not write even so. */
  hasRoomFor(bytes: number): boolean {
    this.#estimate += bytes
    if (this.#estimate > this.#maxBytes) {
      this.#estimate = bytes + sumBuffers(this.#running)
      if (this.#estimate > this.#maxBytes) this.#endSlowest()
    }
    return this.#estimate + this.#endingSize <= 2 * this.#maxBytes
  }

  /** Makes a quarter of the budget free, so that the next sum is not needed at the next write. */
  #endSlowest(): void {
    const slowestFirst = [...this.#running].sort((a, b) => b.buffered - a.buffered)
    for (const watch of slowestFirst) {
      if (this.#estimate <= 0.75 * this.#maxBytes) return
      const { buffered } = watch
      this.#estimate -= buffered
      this.#endingSize += buffered
      this.#running.delete(watch)
      this.#ending.set(watch, buffered)
      watch.endAsTooSlow()
    }
  }
}

function sumBuffers(watches: Iterable<BudgetedWatch>): number {
  let sum = 0
  for (const { buffered } of watches) sum += buffered
  return sum
}
