// A list of services that wait to be planned, each at most once. Planning one service may add others while the list is drained. Pure.
//
// Namespaces take turns: a thousand changed services of one namespace do not keep those of another waiting.

import type { Steps } from '../lib/yielding.ts'

interface Queue {
  readonly items: string[]
  /** The index of the first item that still waits. */
  next: number
}

/** How much of a list is handled at once. */
export interface DrainBounds {
  readonly most?: number
  readonly isOver?: () => boolean
}

/** Items that are handled at once in any case: each drain leads to a write, which has a cost of its own. */
const few = 10

/** The queue of urgent items. No namespace has this name. */
const urgent = ' '

export class WorkList {
  /** Items in the order of arrival, by namespace. The first namespace is the next one whose turn it is. */
  #queues = new Map<string, Queue>()
  readonly #listed = new Set<string>()
  /** The item whose steps are not done. */
  #current: string | undefined

  get isEmpty(): boolean {
    return this.#listed.size === 0 && this.#current === undefined
  }

  /** True if the item waits, or is not handled completely. */
  has(item: string): boolean {
    return this.#listed.has(item) || this.#current === item
  }

  /** Adds an item at the end of its namespace, unless it waits already. */
  add(item: string): void {
    this.#add(item, item.slice(0, Math.max(0, item.indexOf('/'))))
  }

  /** Adds an item that must not wait for its namespace, nor for another drain. */
  addUrgent(item: string): void {
    this.#add(item, urgent)
  }

  /**
   * Removes and handles every item that `accepts` chooses, in the steps that `handle` returns; the other items keep their order. Looks at
   * no more than `most` that are not urgent, and after the first few of them only at urgent ones when `isOver` says so. Items that are added meanwhile follow, also an item that was handled before: it no longer waits when
   * `handle` is called. An abandoned run leaves the rest on the list.
   */
  *drain(
    accepts: (item: string) => boolean,
    handle: (item: string) => Steps<void> | void,
    { most = Number.POSITIVE_INFINITY, isOver = () => false }: DrainBounds = {},
  ): Steps<void> {
    const kept: string[] = []
    let seen = 0
    try {
      while (this.#queues.has(urgent) || (seen < most && (seen < few || !isOver()))) {
        if (!this.#queues.has(urgent)) seen++
        const item = this.#take()
        if (item === undefined) break
        if (accepts(item)) yield* this.#run(item, handle(item) ?? noSteps)
        else kept.push(item)
        yield
      }
    } finally {
      this.#restore(kept)
    }
  }

  *#run(item: string, steps: Iterable<void>): Steps<void> {
    this.#current = item
    yield* steps
    this.#current = undefined
  }

  #add(item: string, name: string): void {
    if (this.#listed.has(item)) return
    this.#listed.add(item)
    const queue = this.#queues.get(name)
    if (queue === undefined) this.#queues.set(name, { items: [item], next: 0 })
    else queue.items.push(item)
  }

  /** Removes and returns the next item; its namespace has its next turn after all others. */
  #take(): string | undefined {
    const name = this.#queues.has(urgent) ? urgent : this.#queues.keys().next().value
    if (name === undefined) return undefined
    const queue = this.#queues.get(name) as Queue
    const item = queue.items[queue.next++] as string
    const isLast = queue.next === queue.items.length
    if (isLast || this.#queues.size > 1) this.#queues.delete(name)
    if (!isLast && this.#queues.get(name) === undefined) this.#queues.set(name, queue)
    this.#listed.delete(item)
    return item
  }

  /** Puts items back that were taken and not handled, before all others. */
  #restore(kept: readonly string[]): void {
    const back = this.#current === undefined ? kept : [...kept, this.#current]
    this.#current = undefined
    if (back.length === 0) return
    const rest = [...this.#queues.values()].flatMap(({ items, next }) => items.slice(next))
    this.#queues = new Map()
    this.#listed.clear()
    for (const item of [...back, ...rest]) this.add(item)
  }
}

const noSteps: readonly never[] = []
