// The entries of large services that are not written yet: they are written after all others, and in parts if other services wait. No I/O.

import type { Changes, Held } from '../backend/backend.ts'
import { type Steps, stride } from '../lib/yielding.ts'

export interface SplitChanges {
  /** Changes of all other services. */
  readonly first: Changes<Held>
  /** Changes of large services. */
  readonly deferred: Changes<Held>
}

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
    const first = { put: [] as Held[], drop: [] as Held[] }
    const deferred = { put: [] as Held[], drop: [] as Held[] }
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

/** The changes without those that the target has not written yet. */
export function* omitUnwritten(changes: Changes<Held>, unwritten: ReadonlySet<string>): Steps<Changes<Held>> {
  const written = { put: [] as Held[], drop: [] as Held[] }
  let seen = 0
  for (const entry of changes.put) {
    if (++seen % stride === 0) yield
    if (!unwritten.has(entry.id)) written.put.push(entry)
  }
  for (const held of changes.drop) {
    if (++seen % stride === 0) yield
    if (!unwritten.has(held.id)) written.drop.push(held)
  }
  return written
}
