// Ends objects that no request deletes: pods after their grace period, namespaces with their content, dependents of objects that are gone,
// unused address ranges, old events. Each has a controller of its own; this file runs them.

import type { Clock } from '../../lib/time.ts'
import type { Allocations } from '../requests/allocations.ts'
import type { ObjectWriter } from '../requests/writes.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { EventExpiry } from './event-expiry.ts'
import { GarbageCollector } from './garbage-collector.ts'
import { NamespaceController } from './namespace-controller.ts'
import { PodTerminator } from './pod-terminator.ts'
import { ServiceCidrController } from './service-cidr-controller.ts'
import { type DeferredController, WorkScheduler } from './work-scheduler.ts'

export interface LifecycleOptions {
  readonly registry: Registry
  readonly writer: ObjectWriter
  readonly allocations: Allocations
  readonly clock: Clock
}

export class Lifecycle {
  readonly #controllers: readonly DeferredController[]
  readonly #pods: PodTerminator
  readonly #events: EventExpiry
  readonly #scheduler: WorkScheduler

  constructor({ registry, writer, allocations, clock }: LifecycleOptions) {
    this.#controllers = [
      new GarbageCollector(registry, writer),
      new NamespaceController(registry, writer),
      new ServiceCidrController(registry, allocations, clock),
    ]
    this.#pods = new PodTerminator(registry, clock)
    this.#events = new EventExpiry(registry, clock)
    this.#scheduler = new WorkScheduler(registry, clock, () => {
      for (const controller of this.#controllers) controller.run()
    })
    registry.index((change) => this.#observe(change))
  }

  close(): void {
    this.#scheduler.close()
    this.#pods.close()
    this.#events.close()
  }

  #observe(change: Change): void {
    for (const controller of this.#controllers) controller.observe(change)
    this.#pods.observe(change)
    if (this.#controllers.some((controller) => controller.hasWork)) this.#scheduler.request()
  }
}
