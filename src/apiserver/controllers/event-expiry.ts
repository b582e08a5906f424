// Removes events that were last seen more than an hour ago.

import type { Clock, Timer } from '../../lib/time.ts'
import { getObject, getString, type Json } from '../schema/json.ts'
import { metadataOf, nameOf, namespaceOf } from '../schema/object-metadata.ts'
import type { Registry } from '../store/registry.ts'

const lifetimeMs = 60 * 60_000
const intervalMs = 60_000

export class EventExpiry {
  readonly #registry: Registry
  readonly #clock: Clock
  #timer: Timer

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
    this.#timer = this.#schedule()
  }

  close(): void {
    this.#timer.cancel()
  }

  #schedule(): Timer {
    return this.#clock.after(intervalMs, () => {
      this.#removeExpired()
      this.#timer = this.#schedule()
    })
  }

  #removeExpired(): void {
    const oldest = this.#clock.now() - lifetimeMs
    for (const { object } of [...this.#registry.list('events')]) {
      if (lastSeen(object) < oldest) this.#registry.remove('events', namespaceOf(object), nameOf(object))
    }
  }
}

function lastSeen(event: Json): number {
  const times = [
    getString(getObject(event, 'series'), 'lastObservedTime'),
    getString(event, 'lastTimestamp'),
    getString(event, 'eventTime'),
    getString(metadataOf(event), 'creationTimestamp'),
  ]
  return Math.max(...times.map((time) => Date.parse(time) || 0))
}
