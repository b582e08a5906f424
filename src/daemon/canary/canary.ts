// Checks the data path of this node: changes the endpoint of a service of its own as the API server would, and measures when the first
// packet arrives there by the service's address. Exists only if it is configured.

import type { SluiceConfig } from '../../config/sluice-config.ts'
import type { SyncJournal } from '../../engine/journal.ts'
import type { Store } from '../../engine/store.ts'
import type { Metrics } from '../../http/metrics.ts'
import { describeError } from '../../lib/errors.ts'
import { type Family, familyName, familyOf, hostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import { canaryPort, canaryService, makeCanaryService, makeCanarySlice } from '../../model/canary-records.ts'
import { askCanary, type CanaryListener, listenCanary } from './canary-sockets.ts'
import { CanaryVerdict } from './canary-verdict.ts'

export interface CanaryOptions {
  readonly settings: SluiceConfig['canary']
  readonly families: readonly Family[]
  readonly node: string
  readonly store: Pick<Store, 'services' | 'slices'>
  readonly journal: SyncJournal
  readonly metrics: Pick<Metrics, 'canary'>
  readonly clock: Clock
  readonly log: Logger
}

/** A change that is not in the kernel after this time is not waited for: the health of syncs covers that. */
const programLimitMs = 10_000
/** When nothing answers for this long, the data path does not work. */
const answerLimitMs = 3_000
/** The first wait between two questions; later ones grow with the time, so that a slow change is not asked for too often. */
const firstWaitMs = 2

export class Canary {
  readonly #options: CanaryOptions
  readonly #addresses: readonly string[]
  readonly #verdicts = new Map<Family, CanaryVerdict>()
  readonly #stop = new AbortController()

  constructor(options: CanaryOptions) {
    this.#options = options
    this.#addresses = options.settings.addresses.filter((ip) => options.families.includes(familyOf(ip) as Family))
  }

  /** Puts the service into the store, and checks it from the first sync on. */
  open(): void {
    const { store, journal, settings, log } = this.#options
    store.services.put(canaryService, makeCanaryService(this.#addresses))
    for (const address of this.#addresses) {
      const family = familyOf(address) as Family
      this.#verdicts.set(family, new CanaryVerdict(() => settings.failures))
      const unsubscribe = journal.subscribe({
        report: (report) => {
          if (report.family !== family || !report.ok) return
          unsubscribe()
          this.#check(address, family).catch((error: unknown) => {
            if (!this.#stop.signal.aborted) log.error('The canary has stopped', { error: describeError(error) })
          })
        },
      })
    }
  }

  close(): void {
    this.#stop.abort()
  }

  /** Why the data path of a family is broken, for those of which it is. */
  broken(): ReadonlyMap<Family, string> {
    const found = [...this.#verdicts].flatMap(([family, { reason }]) =>
      reason === undefined ? [] : [[family, reason] as const],
    )
    return new Map(found)
  }

  async #check(address: string, family: Family): Promise<void> {
    const { settings, clock } = this.#options
    const { signal } = this.#stop
    const loopback = family === 4 ? '127.0.0.1' : '::1'
    const listeners = await Promise.all(['canary 0', 'canary 1'].map((name) => listenCanary(loopback, name)))
    const closeAll = () => {
      for (const listener of listeners) listener.close()
    }
    signal.addEventListener('abort', closeAll, { once: true })
    for (let round = 0; !signal.aborted; round++) {
      const index = round % 2
      const failure = await this.#runRound(address, listeners[index] as CanaryListener, `canary ${index}`)
      this.#note(family, address, failure)
      await sleep(clock, Math.max(1_000, settings.interval), signal)
    }
  }

  /** Changes the endpoint, and asks until the new one answers. Returns why the data path does not work. */
  async #runRound(address: string, listener: CanaryListener, name: string): Promise<string | undefined> {
    const { store, node, metrics, clock } = this.#options
    const family = familyOf(address) as Family
    const monotonic = () => clock.monotonic()
    const slice = makeCanarySlice(node, listener)
    const began = monotonic()
    store.slices.put(slice.key, slice)
    for (;;) {
      const answer = await askCanary(address, canaryPort, monotonic)
      const tookMs = monotonic() - began
      const isLate = tookMs > ('failure' in answer ? answerLimitMs : programLimitMs) || this.#stop.signal.aborted
      if ('name' in answer && answer.name === name) {
        metrics.canary.answered(family, tookMs, answer.connectMs)
        return undefined
      }
      if ('failure' in answer && isLate) return this.#explain(answer.failure, listener)
      // The old endpoint answers: the data path works, and the change is not there yet.
      if (isLate) return 'name' in answer && answer.name.startsWith('canary ') ? undefined : 'another program answers'
      await sleep(clock, Math.max(firstWaitMs, tookMs / 8), this.#stop.signal)
    }
  }

  /** If this machine cannot even reach the listener itself, nothing is known about the data path. */
  async #explain(failure: string, listener: CanaryListener): Promise<string | undefined> {
    const direct = await askCanary(listener.ip, listener.port, () => this.#options.clock.monotonic())
    return 'failure' in direct ? undefined : failure
  }

  #note(family: Family, address: string, failure: string | undefined): void {
    const { metrics, log } = this.#options
    const verdict = this.#verdicts.get(family) as CanaryVerdict
    if (failure !== undefined) metrics.canary.failed(family)
    const hasChanged = verdict.note(failure)
    metrics.canary.broken(family, verdict.reason !== undefined)
    if (!hasChanged) return
    const fields = { family: familyName(family), address: hostPort(address, canaryPort) }
    if (verdict.reason === undefined) log.info('The data path of this node works again', fields)
    else log.error('The data path of this node is broken', { ...fields, error: verdict.reason })
  }
}
