// Takes endpoints to which connections or probes fail out of the choice, and puts them back. Reads what the kernel tracks, or what the relay
// reports, while a service wants it, and nothing otherwise.

import type { Backend, Held } from '../../backend/backend.ts'
import type { SluiceConfig } from '../../config/sluice-config.ts'
import { WaitingFlows } from '../../engine/flows/waiting-flows.ts'
import type { SyncJournal } from '../../engine/journal.ts'
import { ConnectionWatch } from '../../engine/outliers/connection-watch.ts'
import { EjectionFilter } from '../../engine/outliers/ejection-filter.ts'
import type { OutlierSettings } from '../../engine/outliers/endpoint-state.ts'
import { OutlierDetector } from '../../engine/outliers/outlier-detector.ts'
import type { Resolve } from '../../engine/planner.ts'
import type { Store } from '../../engine/store.ts'
import type { Metrics } from '../../http/metrics.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { type ConnectionSubscription, watchConnections } from '../../sys/conntrack/conntrack-events.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../sys/netlink/conntrack-codec.ts'
import { ActiveProbes } from '../probes/active-probes.ts'
import { TrialDials } from '../probes/trial-dials.ts'

const tickMs = 200
/** After a loss of events the kernel is given this pause: so the cost of a flood is bounded. */
const pauseMs = 1_000
/** When the connections cannot be watched, the next try follows after this time. */
const retryMs = 30_000
const pruneTicks = 25
/** Log lines about changes in one decision. A dead node may change hundreds of service ports. */
const maxLines = 10

export interface OutlierOptions {
  readonly settings: Pick<SluiceConfig, 'outliers' | 'probes'>
  readonly backend: Pick<Backend<Held>, 'dials' | 'untracked'>
  /** Reports why a service is planned again, and shows when that is written. */
  readonly journal: Pick<SyncJournal, 'cause' | 'subscribe'>
  /** The policy from which endpoints are left out. */
  readonly resolve: Resolve
  readonly store: () => Pick<Store, 'service' | 'touch'> | undefined
  readonly metrics: Pick<Metrics, 'outliers' | 'probes'>
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
  readonly #probes: ActiveProbes
  readonly #trials: TrialDials
  /** Undefined if the kernel translates nothing: the relay tries another endpoint for the same client. */
  readonly #waiting: WaitingFlows<TrackedFlow> | undefined
  readonly #unsubscribe: () => void
  #subscription: { close(): void } | undefined
  /** The subscription, if the kernel reports the connections; the ports of which it reports them. */
  #kernel: { readonly subscription: ConnectionSubscription; ports: ReadonlySet<number> } | undefined
  #timer: Timer | undefined
  #ticks = 0
  /** Monotonic time before which no subscription is opened. */
  #openAt = 0
  #isClosed = false

  constructor(options: OutlierOptions) {
    const { outliers, probes } = options.settings
    const { metrics, clock, log, backend } = options
    this.#options = options
    const detector = new OutlierDetector(followSettings(outliers), { asksFirst: true })
    this.#detector = detector
    const setVerdict = (group: string, endpoint: string, why: string | undefined) =>
      detector.setVerdict(group, endpoint, why)
    this.#probes = new ActiveProbes({ settings: probes, setVerdict, metrics, clock })
    this.#trials = new TrialDials({
      take: (most) => detector.takeTrials(most),
      tried: (endpoint, answers) => detector.tried(endpoint, answers, clock.monotonic()),
    })
    this.#waiting = backend.untracked ? undefined : new WaitingFlows({ table: new ConntrackTable(), clock, log })
    this.#unsubscribe = options.journal.subscribe({
      report: ({ ok, family, services }) => ok && this.#waiting?.release(family, services),
    })
    this.#watch = new ConnectionWatch({
      has: (endpoint) => detector.has(endpoint),
      used: (endpoint) => this.#noteUse(endpoint),
      answered: (endpoint, now) => detector.answered(endpoint, now),
      failed: (endpoint, failure, now) => detector.failed(endpoint, failure, now),
    })
    this.#filter = new EjectionFilter(detector, {
      isDefault: () => outliers.ejection === 'on',
      onWatched: () => this.#begin(),
      probes: this.#probes,
    })
    this.resolve = this.#filter.wrap(options.resolve)
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
    this.#subscription?.close()
    this.#probes.close()
    this.#unsubscribe()
    this.#waiting?.close()
  }

  #begin(): void {
    if (this.#isClosed || this.#timer !== undefined) return
    this.#timer = this.#options.clock.after(tickMs, () => this.#tick())
  }

  #tick(): void {
    const { clock, metrics } = this.#options
    const now = clock.monotonic()
    this.#timer = undefined
    this.#subscribe(now)
    this.#watchPorts()
    // Answers may be queued: after a pause of this process the timers run first.
    if (this.#kernel?.subscription.readQueued() !== false) this.#watch.expire(now)
    if (++this.#ticks % pruneTicks === 0) {
      this.#filter.prune((service) => this.#options.store()?.service(service))
      this.#probes.expire()
    }
    this.#report(this.#detector.decide(now))
    this.#trials.run()
    metrics.outliers.set(this.#detector.ejectedCount)
    if (this.#detector.isIdle) this.#rest()
    else this.#begin()
  }

  #rest(): void {
    this.#subscription?.close()
    this.#subscription = undefined
    this.#kernel = undefined
    this.#watch.forget()
  }

  #watchPorts(): void {
    const { ports } = this.#detector
    if (this.#kernel === undefined || this.#kernel.ports === ports) return
    this.#kernel.ports = ports
    this.#kernel.subscription.setPorts(ports)
  }

  /** A connection to an endpoint is a use of every service that has the endpoint: which one it was is not known. */
  #noteUse(endpoint: string): void {
    if (this.#probes.isIdle) return
    for (const group of this.#detector.groupsOf(endpoint)) this.#probes.use(group)
  }

  #subscribe(now: number): void {
    if (this.#subscription !== undefined || now < this.#openAt) return
    const { backend, log } = this.#options
    if (backend.dials !== undefined) {
      this.#subscription = this.#listenToRelay(backend.dials)
      return
    }
    try {
      const subscription = this.#listenToKernel()
      this.#subscription = subscription
      this.#kernel = { subscription, ports: new Set() }
    } catch (error) {
      this.#openAt = now + retryMs
      log.warn('Connections cannot be watched: no endpoint will be ejected', { error: describeError(error) })
    }
  }

  #listenToKernel(): ConnectionSubscription {
    const { clock, metrics } = this.#options
    const watch = this.#watch
    return watchConnections(
      {
        opened: (id, endpoint, isTranslated) => watch.opened(id, endpoint, isTranslated, clock.monotonic()),
        answered: (id, endpoint) => watch.answered(id, endpoint, clock.monotonic()),
        ended: (id, endpoint) => watch.ended(id, endpoint, clock.monotonic()),
        lost: () => {
          metrics.outliers.lost()
          this.#rest()
          this.#openAt = clock.monotonic() + pauseMs
        },
      },
      clock,
    )
  }

  #listenToRelay(dials: NonNullable<Backend<Held>['dials']>): { close(): void } {
    const { clock } = this.#options
    dials.listen((endpoint, result) => {
      if (!this.#detector.has(endpoint)) return false
      this.#noteUse(endpoint)
      if (result === 'answered') this.#detector.answered(endpoint, clock.monotonic())
      else this.#detector.failed(endpoint, result, clock.monotonic())
      return true
    })
    return { close: () => dials.listen(undefined) }
  }

  #report(groups: readonly string[]): void {
    const { store, journal, log, metrics } = this.#options
    for (const [i, group] of groups.entries()) {
      const service = this.#filter.serviceOf(group)
      if (service === undefined) continue
      const ejected = this.#detector.ejected(group)
      const list = [...ejected].slice(0, maxLines).map(([endpoint, { why }]) => `${endpoint} (${why})`)
      if (i < maxLines) {
        log.warn('The ejected endpoints of a service port changed', {
          port: group.slice(2),
          ejected: list.join('; ') || 'none',
        })
      }
      const family = Number(group[0]) as Family
      journal.cause(family, 'ejection', service, list.join('; ') || 'none')
      if (ejected.size > 0) metrics.outliers.ejected()
      this.#waiting?.note(family, service, ejected.keys())
      store()?.touch(service, family)
    }
    if (groups.length > maxLines) {
      log.warn('The ejected endpoints of more service ports changed', { ports: groups.length - maxLines })
    }
  }
}

/** The settings may change while the proxy runs. */
const followSettings = (outliers: SluiceConfig['outliers']): OutlierSettings => ({
  get failures() {
    return outliers.failures
  },
  get maxShare() {
    return Math.min(100, outliers.maxPercent) / 100
  },
  get intervalMs() {
    return outliers.interval
  },
  get maxIntervalMs() {
    return outliers.maxInterval
  },
})
