// Decides how much of its share a new endpoint gets: more with every step, until it has all of it. No I/O, and no clock: the caller passes
// the time in milliseconds.
//
// 1. An endpoint is new if it was not ready when its service was planned before. What is there at the first plan is not new, and if all
//    endpoints of a service are new, none is: they must take all connections at once.
// 2. All endpoints of a service step at the same moments, so a service is planned again at most ten times in the time of its slow start,
//    however many endpoints start.

import { startSteps } from '../../model/weights.ts'

interface Group {
  /** The time between two steps. */
  readonly stepMs: number
  /** The ready endpoints at the last plan. */
  known: ReadonlySet<string>
  /** The number of the step at which each new endpoint began. */
  readonly starts: Map<string, number>
}

const none: ReadonlyMap<string, number> = new Map()

export class SlowStart {
  readonly #groups = new Map<string, Group>()
  /** The groups with new endpoints, and when their next step is. */
  readonly #nextSteps = new Map<string, number>()

  get size(): number {
    return this.#groups.size
  }

  /** Notes the ready endpoints of a group. Returns the step of each new one, from 1 to `startSteps - 1`. */
  note(id: string, ready: ReadonlySet<string>, durationMs: number, now: number): ReadonlyMap<string, number> {
    const stepMs = durationMs / startSteps
    let group = this.#groups.get(id)
    if (group === undefined || group.stepMs !== stepMs) {
      group = { stepMs, known: ready, starts: new Map() }
      this.#groups.set(id, group)
    }
    const step = Math.floor(now / stepMs)
    beginNew(group, ready, step)
    group.known = ready
    for (const [endpoint, start] of group.starts) {
      if (step - start >= startSteps || !ready.has(endpoint)) group.starts.delete(endpoint)
    }
    if (group.starts.size === 0) {
      this.#nextSteps.delete(id)
      return none
    }
    this.#nextSteps.set(id, (step + 1) * stepMs)
    return new Map([...group.starts].map(([endpoint, start]) => [endpoint, Math.max(1, step - start)]))
  }

  drop(id: string): void {
    this.#groups.delete(id)
    this.#nextSteps.delete(id)
  }

  /** Drops the groups for which `keeps` is false. */
  prune(keeps: (id: string) => boolean): void {
    for (const id of this.#groups.keys()) if (!keeps(id)) this.drop(id)
  }

  /** The time of the next step of any group; undefined if nothing starts. */
  nextStepAt(): number | undefined {
    let next: number | undefined
    for (const at of this.#nextSteps.values()) if (next === undefined || at < next) next = at
    return next
  }

  /** Returns the groups whose step is due. They must be planned again, which notes them again. */
  takeDue(now: number): readonly string[] {
    const due = [...this.#nextSteps].filter(([, at]) => at <= now).map(([id]) => id)
    for (const id of due) this.#nextSteps.delete(id)
    return due
  }
}

function beginNew({ known, starts }: Group, ready: ReadonlySet<string>, step: number): void {
  const added = [...ready].filter((endpoint) => !known.has(endpoint))
  if (added.length === 0) return
  if (added.length === ready.size) starts.clear()
  else for (const endpoint of added) starts.set(endpoint, step)
}
