// Makes the report that a proxy publishes about itself: a snapshot of the objects that it has programmed, and its state in short.

import type { Engine } from '../../engine/engine.ts'
import type { SyncJournal, SyncReport } from '../../engine/journal.ts'
import { digestFormat, ServiceDigests } from '../../engine/service-digests.ts'
import type { ProxyIdentity } from '../../http/admin.ts'
import type { FamilyReport, NodeReport, ObjectsSnapshot } from '../../inspect/node-report.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { SetHash } from '../../lib/set-hash.ts'
import { SetSketch } from '../../lib/set-sketch.ts'
import { type Clock, formatTime, sleep } from '../../lib/time.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'

export interface NodeReporterOptions {
  readonly engine: Engine
  readonly journal: SyncJournal
  readonly families: readonly Family[]
  readonly identity: ProxyIdentity
  readonly intervalMs: number
  readonly clock: Clock
  readonly invalidManifests: () => number
  readonly apiServerSilentMs: () => number
}

/** A change that a sync programs now is not a difference between nodes. */
const settleMs = 1_000
const settleSteps = 10
const attempts = 3
const maxError = 200

type Digest = Omit<ObjectsSnapshot, 'at'>

/** A value that holds as long as the counters of the journal are the same: until an object changes or a sync ends. */
interface Computed<T> {
  readonly counters: string
  readonly value: T
}

export class NodeReporter {
  readonly #options: NodeReporterOptions
  readonly #digests = new ServiceDigests()
  readonly #last = new Map<Family, SyncReport>()
  /** An idle proxy with many services would visit them all for each report. */
  #snapshot: Computed<Digest> | undefined
  readonly #stateHashes = new Map<Family, Computed<string>>()

  /** Listens to the journal from now on. */
  constructor(options: NodeReporterOptions) {
    this.#options = options
    options.journal.subscribe({
      report: (report) => {
        if (!report.idle) this.#last.set(report.family, report)
        // The counters are the same as before, but the change does not wait any more.
        else this.#snapshot = undefined
      },
    })
  }

  /** Returns undefined before every family has synced once. */
  async takeSnapshot(): Promise<Digest | undefined> {
    const { families } = this.#options
    if (families.some((family) => !this.#last.has(family))) return undefined
    await this.#waitUntilSettled()
    for (let attempt = 1; ; attempt++) {
      const counters = this.#counters()
      if (this.#snapshot?.counters === counters) return this.#snapshot.value
      const value = await this.#digest()
      if (counters === this.#counters()) this.#snapshot = { counters, value }
      // Changes in a pause give a mixture of two states. With changes all the time the last mixture has to do.
      else if (attempt === attempts) return value
    }
  }

  async describe(snapshots: readonly ObjectsSnapshot[]): Promise<NodeReport> {
    const { engine, journal, families, identity, intervalMs, clock } = this.#options
    const { failures } = journal.counters()
    const reports: FamilyReport[] = []
    for (const family of families) reports.push(await this.#describeFamily(family))
    return {
      apiVersion: 'sluice/v1',
      kind: 'NodeReport',
      node: identity.node,
      version: identity.version,
      mode: identity.mode,
      startedAt: identity.startedAt,
      reportedAt: formatTime(clock.now()),
      intervalSeconds: Math.round(intervalMs / 1000),
      families: reports,
      services: engine.store.size,
      failedSyncs: failures,
      quarantined: engine.quarantined().length,
      conflicts: engine.conflicts().length,
      drifts: journal.counters().drifts,
      invalidManifests: this.#options.invalidManifests(),
      apiServerSilentSeconds: Math.round(this.#options.apiServerSilentMs() / 1000),
      digestFormat,
      snapshots,
    }
  }

  async #describeFamily(family: Family): Promise<FamilyReport> {
    const last = this.#last.get(family)
    return {
      family,
      stateHash: await this.#hashState(family),
      lastSync: last === undefined ? '' : formatTime(last.startedAt + last.durationMs),
      error: last?.error === undefined ? '' : describeError(last.error).slice(0, maxError),
    }
  }

  async #hashState(family: Family): Promise<string> {
    const { engine, clock } = this.#options
    const counters = this.#counters()
    const known = this.#stateHashes.get(family)
    if (known?.counters === counters) return known.value
    const value = await runSliced(engine.hashState(family), new TimeSlice(clock))
    if (counters === this.#counters()) this.#stateHashes.set(family, { counters, value })
    return value
  }

  #counters(): string {
    return JSON.stringify(this.#options.journal.counters())
  }

  /** Waits a short time until no change waits for a sync. */
  async #waitUntilSettled(): Promise<void> {
    const { engine, families, clock } = this.#options
    const none = { has: () => false }
    for (let step = 0; step < settleSteps; step++) {
      if (!families.some((family) => engine.store.hasPendingBesides(family, none))) return
      await sleep(clock, settleMs / settleSteps)
    }
  }

  async #digest(): Promise<Digest> {
    const { engine, families, clock } = this.#options
    const failed = this.#unapplied()
    const isApplied = (service: string) =>
      !failed.has(service) && !families.some((family) => engine.store.isPending(service, family))
    const hash = new SetHash()
    const sketch = new SetSketch()
    const visit = (element: { readonly key: number; readonly content: number }) => {
      sketch.add(element)
      hash.extend(`${element.key} ${element.content}`)
      hash.finish()
    }
    await runSliced(this.#digests.list(engine.store, families, { visit, isApplied }), new TimeSlice(clock))
    return { hash: hash.toString(), sketch: sketch.toString() }
  }

  /** The services of failed syncs and those in quarantine: the data plane does not have what the API has. */
  #unapplied(): ReadonlySet<string> {
    const failed = [...this.#last.values()].flatMap(({ ok, services }) => (ok ? [] : services))
    return new Set([...failed, ...this.#options.engine.quarantined().map(({ service }) => service)])
  }
}
