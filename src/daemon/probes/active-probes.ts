// Probes the endpoints of services that want it, when the schedule says so, and passes on which endpoints fail. Has a timer only while there is
// something to probe.

import type { SluiceConfig } from '../../config/sluice-config.ts'
import type { ProbedGroups } from '../../engine/outliers/ejection-filter.ts'
import { ProbeGroups, type ProbeSettings, type ProbeTask, type SetVerdict } from '../../engine/probes/probe-groups.ts'
import type { Metrics } from '../../http/metrics.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import type { ProbeRecord } from '../../model/types.ts'
import { type ProbeResult, probeEndpoint } from './probe-client.ts'

export interface ActiveProbesOptions {
  readonly settings: SluiceConfig['probes']
  readonly setVerdict: SetVerdict
  readonly metrics: Pick<Metrics, 'probes'>
  readonly clock: Clock
}

export class ActiveProbes implements ProbedGroups {
  readonly #options: ActiveProbesOptions
  readonly #groups: ProbeGroups
  #timer: Timer | undefined
  #delayed = 0
  #isClosed = false

  constructor(options: ActiveProbesOptions) {
    this.#options = options
    this.#groups = new ProbeGroups(followSettings(options.settings), options.setVerdict)
  }

  /** True if a new connection to the endpoints of a group is of interest. */
  get isIdle(): boolean {
    return this.#groups.isIdle
  }

  set(group: string, probe: ProbeRecord, endpoints: readonly string[]): void {
    this.#groups.set(group, probe, endpoints, this.#options.clock.monotonic())
    this.#schedule()
  }

  drop(group: string): void {
    this.#groups.drop(group)
  }

  /** Called when this node has a new connection to a service port. */
  use(group: string): void {
    const before = this.#groups.size
    this.#groups.use(group, this.#options.clock.monotonic())
    if (this.#groups.size !== before) this.#schedule()
  }

  /** Called every few seconds: stops to probe what is no longer in use. */
  expire(): void {
    if (this.#groups.isIdle && this.#timer === undefined) return
    this.#groups.expire(this.#options.clock.monotonic())
    this.#schedule()
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }

  #schedule(): void {
    this.#timer?.cancel()
    const { clock, metrics } = this.#options
    metrics.probes.set(this.#groups.size)
    const waitMs = this.#isClosed ? undefined : this.#groups.waitMs(clock.monotonic())
    this.#timer = waitMs === undefined ? undefined : clock.after(Math.max(1, waitMs), () => this.#start())
  }

  #start(): void {
    const { clock, metrics } = this.#options
    for (const task of this.#groups.start(clock.monotonic())) void this.#run(task)
    if (this.#groups.delayed > this.#delayed) metrics.probes.delayed(this.#groups.delayed - this.#delayed)
    this.#delayed = this.#groups.delayed
    this.#schedule()
  }

  async #run({ id, endpoint, plan }: ProbeTask): Promise<void> {
    const result = await probeEndpoint(endpoint, plan)
    const { clock, metrics } = this.#options
    metrics.probes.ended(plan.kind, nameResult(result))
    this.#groups.end(id, result, clock.monotonic())
    this.#schedule()
  }
}

function nameResult(result: ProbeResult): 'success' | 'failure' | 'unknown' {
  if (result === 'unknown') return result
  return result.failure === undefined ? 'success' : 'failure'
}

/** The settings may change while the proxy runs. */
const followSettings = (probes: SluiceConfig['probes']): ProbeSettings => ({
  get always() {
    return probes.nodes === 'all'
  },
  get intervalMs() {
    return probes.interval
  },
  get timeoutMs() {
    return probes.timeout
  },
  get failures() {
    return probes.failures
  },
  get successes() {
    return probes.successes
  },
  get perSecond() {
    return Math.max(1, probes.perSecond)
  },
  get atOnce() {
    return Math.max(1, probes.atOnce)
  },
  random: Math.random,
})
