// Removes pods when their grace period is over.

import type { Clock, Timer } from '../../lib/time.ts'
import { getString, type Json } from '../schema/json.ts'
import { finalizersOf, isTerminating, metadataOf } from '../schema/object-metadata.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'

export class PodTerminator {
  readonly #registry: Registry
  readonly #clock: Clock
  /** The end of the grace period by `namespace/name`. */
  readonly #timers = new Map<string, Timer>()
  #closed = false

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
  }

  close(): void {
    this.#closed = true
    for (const timer of this.#timers.values()) timer.cancel()
    this.#timers.clear()
  }

  observe({ resource, namespace, name, next }: Change): void {
    if (resource !== 'pods' || this.#closed) return
    const key = `${namespace}/${name}`
    this.#timers.get(key)?.cancel()
    this.#timers.delete(key)
    if (next === undefined || !isTerminating(next.object)) return
    const left = Math.max(0, deletionTimeOf(next.object) - this.#clock.now())
    // The write that removes the last finalizer removes the pod.
    if (left === 0 && finalizersOf(next.object).length > 0) return
    const timer = this.#clock.after(left, () => {
      this.#timers.delete(key)
      this.#terminate(namespace, name)
    })
    this.#timers.set(key, timer)
  }

  #terminate(namespace: string, name: string): void {
    const pod = this.#registry.find('pods', namespace, name)?.object
    if (pod === undefined || !isTerminating(pod)) return
    if (finalizersOf(pod).length === 0) this.#registry.remove('pods', namespace, name)
    else this.#registry.put('pods', { ...pod, metadata: { ...metadataOf(pod), deletionGracePeriodSeconds: 0 } })
  }
}

const deletionTimeOf = (pod: Json): number => Date.parse(getString(metadataOf(pod), 'deletionTimestamp'))
