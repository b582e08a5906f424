// Takes endpoints to which connections fail out of the choice, and puts them back on trial. Reads what the kernel tracks while a service
// wants it, and nothing otherwise.

import type { SluiceConfig } from '../../config/sluice-config.ts'
import { ConnectionWatch } from '../../engine/outliers/connection-watch.ts'
import { EjectionFilter } from '../../engine/outliers/ejection-filter.ts'
import { OutlierDetector } from '../../engine/outliers/outlier-detector.ts'
import type { Resolve } from '../../engine/planner.ts'
import type { Store } from '../../engine/store.ts'
import type { Metrics } from '../../http/metrics.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { resolvePorts } from '../../model/resolve.ts'
import { watchConnections } from '../../sys/conntrack-events.ts'

const tickMs = 200
/** After a loss of events the kernel is given this pause: so the cost of a flood is bounded. */
const pauseMs = 1_000
/** When the connections cannot be watched, the next try follows after this time. */
const retryMs = 30_000
const pruneTicks = 25

export interface OutlierOptions {
  readonly settings: SluiceConfig['outliers']
  /** True if the kernel translates nothing, so that nothing can be seen. */
  readonly untracked: boolean
  readonly store: () => Pick<Store, 'service' | 'touch'> | undefined
  readonly metrics: Pick<Metrics, 'outliers'>
  readonly clock: Clock
  readonly log: Logger
}

export class OutlierEjection {
  /** The policy of the model, without ejected endpoints. */
  readonly resolve: Resolve
  readonly #options: OutlierOptions
  readonly #detector: OutlierDetector
  readonly #filter: EjectionFilter
  readonly #watch: ConnectionWatch
  #subscription: { close(): void } | undefined
  #timer: Timer | undefined
  #ticks = 0
  /** Monotonic time before which no subscription is opened. */
  #openAt = 0
  #isClosed = false

  constructor(options: OutlierOptions) {
    const { settings } = options
    this.#options = options
    this.#detector = new OutlierDetector({
      failures: settings.failures,
      maxShare: Math.min(100, settings.maxPercent) / 100,
      intervalMs: settings.interval,
      maxIntervalMs: settings.maxInterval,
    })
    this.#watch = new ConnectionWatch(this.#detector)
    this.#filter = new EjectionFilter(this.#detector, {
      isDefault: settings.ejection === 'on',
      onWatched: () => this.#begin(),
    })
    this.resolve = options.untracked ? resolvePorts : this.#filter.wrap(resolvePorts)
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
    this.#subscription?.close()
  }

  #begin(): void {
    if (this.#isClosed || this.#timer !== undefined) return
    this.#timer = this.#options.clock.after(tickMs, () => this.#tick())
  }

  #tick(): void {
    const { clock } = this.#options
    const now = clock.monotonic()
    this.#timer = undefined
    this.#subscribe(now)
    this.#watch.expire(now)
    if (++this.#ticks % pruneTicks === 0) this.#filter.prune((service) => this.#options.store()?.service(service))
    for (const group of this.#detector.decide(now)) this.#report(group)
    this.#options.metrics.outliers.set(this.#detector.countEjected())
    if (this.#detector.isIdle) this.#rest()
    else this.#begin()
  }

  #rest(): void {
    this.#subscription?.close()
    this.#subscription = undefined
    this.#watch.forget()
  }

  #subscribe(now: number): void {
    if (this.#subscription !== undefined || now < this.#openAt) return
    const { clock, log, metrics } = this.#options
    try {
      this.#subscription = watchConnections(
        {
          event: (event) => this.#watch.note(event, clock.monotonic()),
          lost: () => {
            metrics.outliers.lost()
            this.#rest()
            this.#openAt = clock.monotonic() + pauseMs
          },
        },
        clock,
      )
    } catch (error) {
      this.#openAt = now + retryMs
      log.warn('Connections cannot be watched: no endpoint will be ejected', { error: describeError(error) })
    }
  }

  #report(group: string): void {
    const { store, log, metrics } = this.#options
    const service = this.#filter.serviceOf(group)
    if (service === undefined) return
    const ejected = this.#detector.ejected(group)
    const list = [...ejected].map(([endpoint, { why }]) => `${endpoint} (${why})`)
    log.warn('The ejected endpoints of a service port changed', {
      port: group.slice(2),
      ejected: list.join('; ') || 'none',
    })
    if (ejected.size > 0) metrics.outliers.ejected()
    store()?.touch(service, Number(group[0]) as Family)
  }
}
