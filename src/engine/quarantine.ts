// Services that could not be programmed for their own sake: why, and when to try again. All others go on.

import type { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'

export interface Quarantined {
  /** '' for leftovers that no service claims. */
  readonly service: string
  /** The refused entries; empty if the service could not even be planned. */
  readonly ids: readonly string[]
  readonly error: ProxyError
  /** Unix ms. */
  readonly since: number
  readonly attempts: number
  /** Unix ms. */
  readonly retryAt: number
}

interface Case {
  ids: Set<string>
  error: ProxyError
  since: number
  attempts: number
  /** Monotonic. */
  dueAt: number
}

const firstMs = 1000
const longestMs = 5 * 60_000

export class Quarantine {
  readonly #clock: Clock
  readonly #cases = new Map<string, Case>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  has(service: string): boolean {
    return this.#cases.has(service)
  }

  /** What to offer again; whatever is refused again comes back with a strike. */
  takeIds(service: string): Iterable<string> {
    const known = this.#cases.get(service)
    if (known === undefined) return []
    const { ids } = known
    known.ids = new Set()
    return ids
  }

  /** One more failed attempt, with the ids that were refused in it. */
  strike(service: string, ids: Iterable<string>, error: ProxyError): void {
    const now = this.#clock.monotonic()
    const known = this.#cases.get(service)
    const attempts = (known?.attempts ?? 0) + 1
    this.#cases.set(service, {
      ids: new Set([...(known?.ids ?? []), ...ids]),
      error,
      since: known?.since ?? this.#clock.now(),
      attempts,
      dueAt: now + Math.min(longestMs, firstMs * 2 ** Math.min(30, attempts - 1)),
    })
  }

  clear(service: string): void {
    this.#cases.delete(service)
  }

  /** The service has changed: whatever was wrong may be over, so the waiting starts anew. */
  forgive(service: string): void {
    const known = this.#cases.get(service)
    if (known !== undefined) known.attempts = 0
  }

  /** Whose waiting time is over. */
  due(): readonly string[] {
    const now = this.#clock.monotonic()
    return [...this.#cases].filter(([, one]) => one.dueAt <= now).map(([service]) => service)
  }

  /** Until the next one is due; undefined if there is none. */
  nextMs(): number | undefined {
    let at = Number.POSITIVE_INFINITY
    for (const one of this.#cases.values()) at = Math.min(at, one.dueAt)
    return at === Number.POSITIVE_INFINITY ? undefined : Math.max(0, at - this.#clock.monotonic())
  }

  one(service: string): Quarantined | undefined {
    const known = this.#cases.get(service)
    if (known === undefined) return undefined
    const { ids, error, since, attempts, dueAt } = known
    const retryAt = this.#clock.now() + dueAt - this.#clock.monotonic()
    return { service, ids: [...ids], error, since, attempts, retryAt }
  }

  list(): readonly Quarantined[] {
    return [...this.#cases.keys()].sort().map((service) => this.one(service) as Quarantined)
  }
}
