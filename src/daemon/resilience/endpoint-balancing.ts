// Has services planned again while new endpoints of theirs get their share step by step. There is no timer while nothing starts.

import type { SluiceConfig } from '../../config/sluice-config.ts'
import {
  type BalancingDefaults,
  BalancingFilter,
  type WeighByCapacity,
} from '../../engine/balancing/balancing-filter.ts'
import { SlowStart } from '../../engine/balancing/slow-start.ts'
import type { Resolve } from '../../engine/planner.ts'
import type { Store } from '../../engine/store.ts'
import type { Family } from '../../lib/ip.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { resolvePorts } from '../../model/resolve.ts'
import type { Algorithm } from '../../model/types.ts'

/** Steps of many services that are due within this time are made together. */
const shortestWaitMs = 100

export interface BalancingOptions {
  readonly settings: SluiceConfig['balancing']
  readonly store: () => Pick<Store, 'service' | 'touch'> | undefined
  readonly weighByCapacity: WeighByCapacity
  readonly clock: Clock
}

export class EndpointBalancing {
  /** The policy of the model, with the algorithm that is configured, weights by node capacity, and the steps of new endpoints. */
  readonly resolve: Resolve
  readonly #options: BalancingOptions
  readonly #slowStart = new SlowStart()
  #timer: Timer | undefined
  /** When the timer is due, unless that is too soon. */
  #stepAt = Number.POSITIVE_INFINITY
  #isClosed = false

  constructor(options: BalancingOptions) {
    const { settings, store, weighByCapacity, clock } = options
    this.#options = options
    const filter = new BalancingFilter(this.#slowStart, {
      defaults: () => readDefaults(settings),
      weighByCapacity,
      now: () => clock.monotonic(),
      onStarting: () => this.#arm(),
      find: (service) => store()?.service(service),
    })
    this.resolve = filter.wrap(resolvePorts)
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }

  #arm(): void {
    const next = this.#slowStart.nextStepAt()
    if (this.#isClosed || next === undefined || next >= this.#stepAt) return
    const { clock } = this.#options
    this.#timer?.cancel()
    this.#stepAt = next
    this.#timer = clock.after(Math.max(shortestWaitMs, next - clock.monotonic()), () => this.#step())
  }

  #step(): void {
    this.#timer = undefined
    this.#stepAt = Number.POSITIVE_INFINITY
    for (const id of this.#slowStart.takeDue(this.#options.clock.monotonic())) {
      this.#options.store()?.touch(id.slice(2), Number(id[0]) as Family)
    }
    this.#arm()
  }
}

function readDefaults({ algorithm, slowStart }: SluiceConfig['balancing']): BalancingDefaults {
  if (algorithm === 'mode') return { slowStartMs: slowStart }
  return { algorithm: algorithm as Algorithm, slowStartMs: slowStart }
}
