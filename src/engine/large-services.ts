// Large services are planned and written after all others, in parts if other services wait: which of them wait to be planned, and which of
// their entries are not written yet. No I/O.

import { beginChanges, type Changes, type Held } from '../backend/backend.ts'
import { runUntilPaused, type Steps, stride, type TimeSlice } from '../lib/yielding.ts'
import { WorkList } from './work-list.ts'

/** Large services that wait to be planned. */
export class LargePlans {
  readonly #plan: (service: string) => Steps<void>
  readonly #waiting = new WorkList()
  /** The work that paused. */
  #paused: Steps<void> | undefined

  constructor(plan: (service: string) => Steps<void>) {
    this.#plan = plan
  }

  get isEmpty(): boolean {
    return this.#waiting.isEmpty
  }

  /** True if the service waits, or its planning has not ended. */
  has(service: string): boolean {
    return this.#waiting.has(service)
  }

  add(service: string): void {
    this.#waiting.add(service)
  }

  /** Plans for at least one time slice. Returns true if no service is left. */
  async run(slice: TimeSlice, shouldPause: () => boolean = () => false): Promise<boolean> {
    const steps = this.#paused ?? this.#waiting.drain(() => true, this.#plan)
    this.#paused = undefined
    let isDone: boolean | undefined
    try {
      isDone = await runUntilPaused(steps, slice, shouldPause)
    } finally {
      if (isDone === undefined) steps.return()
      else if (!isDone) this.#paused = steps
    }
    return isDone
  }
}

export interface SplitChanges {
  /** Changes of all other services. */
  readonly first: Changes<Held>
  /** Changes of large services. */
  readonly deferred: Changes<Held>
}

/** The entries of large services that are not written yet. */
export class DeferredEntries {
  readonly #ids = new Set<string>()
  readonly #services = new Set<string>()
  /** Large services that have entries. */
  readonly #large = new Set<string>()

  get isEmpty(): boolean {
    return this.#ids.size === 0
  }

  /** True if changes of this service are deferred. */
  has(service: string): boolean {
    return this.#services.has(service)
  }

  /** True if changes of this entry are deferred. */
  hasEntry(id: string): boolean {
    return this.#ids.has(id)
  }

  /** True if the service was large when it was last planned. */
  wasLarge(service: string): boolean {
    return this.#large.has(service)
  }

  /**
   * Notes what a service had and what it wants. If it is or was large, all of that is deferred. An entry that a small service wants is not
   * deferred, whichever large service had it.
   */
  *note(service: string, isLarge: boolean, [had, wanted]: readonly [readonly Held[], readonly Held[]]): Steps<void> {
    const wasLarge = this.#large.delete(service)
    if (isLarge) this.#large.add(service)
    if (isLarge || wasLarge) {
      this.#services.add(service)
      yield* this.#add(had)
      yield* this.#add(wanted)
    } else if (this.#ids.size > 0) for (const { id } of wanted) this.#ids.delete(id)
  }

  /** Called when everything is written. */
  clear(): void {
    this.#ids.clear()
    this.#services.clear()
  }

  *#add(entries: readonly Held[]): Steps<void> {
    let seen = 0
    for (const { id } of entries) {
      if (++seen % stride === 0) yield
      this.#ids.add(id)
    }
  }

  *split({ put, drop }: Changes<Held>): Steps<SplitChanges> {
    const first = beginChanges<Held>()
    const deferred = beginChanges<Held>()
    let seen = 0
    for (const entry of put) {
      if (++seen % stride === 0) yield
      ;(this.#ids.has(entry.id) ? deferred : first).put.push(entry)
    }
    for (const held of drop) {
      if (++seen % stride === 0) yield
      ;(this.#ids.has(held.id) ? deferred : first).drop.push(held)
    }
    return { first, deferred }
  }
}
