// A queue of ids by the time at which they are due: a binary heap. Pure.

interface Due {
  readonly id: string
  readonly at: number
}

export class DueQueue {
  readonly #heap: Due[] = []

  get size(): number {
    return this.#heap.length
  }

  /** The next id to be due. */
  get first(): Due | undefined {
    return this.#heap[0]
  }

  add(id: string, at: number): void {
    const heap = this.#heap
    let i = heap.push({ id, at }) - 1
    while (i > 0) {
      const parent = (i - 1) >> 1
      if (this.#at(parent) <= this.#at(i)) return
      this.#swap(i, parent)
      i = parent
    }
  }

  removeFirst(): void {
    const last = this.#heap.pop()
    if (last === undefined || this.#heap.length === 0) return
    this.#heap[0] = last
    let i = 0
    for (;;) {
      const left = 2 * i + 1
      const least = this.#at(left + 1) < this.#at(left) ? left + 1 : left
      if (this.#at(least) >= this.#at(i)) return
      this.#swap(i, least)
      i = least
    }
  }

  #at(i: number): number {
    return this.#heap[i]?.at ?? Number.POSITIVE_INFINITY
  }

  #swap(i: number, j: number): void {
    const heap = this.#heap
    const one = heap[i] as Due
    heap[i] = heap[j] as Due
    heap[j] = one
  }
}
