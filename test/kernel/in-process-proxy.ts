// The real engine and nftables backend in the test process and its namespace; the test delivers manifests.

import type { Backend, Held } from '../../src/backend/backend.ts'
import { nftables } from '../../src/backend/nftables/backend.ts'
import { Engine } from '../../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import type { Family } from '../../src/lib/ip.ts'
import { type Logger, silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { NodeView } from '../../src/model/types.ts'
import { timeLimit } from '../lab/vm.ts'
import type { Manifest, NodeSettings, Scenario } from '../scenarios/format.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { nodeView } from '../scenarios/node-facts.ts'

export interface Drift {
  readonly family: Family
  readonly culprit: string
  readonly at: number
}

/** A family that no change concerns asks for no sync. */
const idleMs = 500

export class InProcessProxy {
  readonly engine: Engine
  readonly drifts: Drift[] = []
  readonly reports: SyncReport[] = []
  readonly backend: Backend<Held>
  readonly #families: readonly Family[]
  /** Unix ms of the last sync request, and of the start of the last successful sync. */
  readonly #asked = new Map<Family, number>()
  readonly #done = new Map<Family, number>()
  #heard = () => {}

  private constructor(
    families: readonly Family[],
    views: (family: Family) => NodeView,
    { log = silentLogger, backend = nftables() as unknown as Backend<Held> }: InProcessOptions,
  ) {
    this.backend = backend
    this.#families = families
    const journal = new SyncJournal({ log })
    this.engine = new Engine({
      backend,
      families,
      views,
      settings: { minSyncMs: 0, syncMs: 500 },
      clock: systemClock,
      log,
      journal,
    })
    journal.subscribe({
      queued: (family, at) => void this.#asked.set(family, at),
      drift: ({ family, culprit }) => void this.drifts.push({ family, culprit, at: performance.now() }),
      report: (report) => {
        this.reports.push(report)
        if (report.ok) this.#done.set(report.family, report.startedAt)
        this.#heard()
      },
    })
  }

  /** `features` is a value for SLUICE_NFT_FEATURES; default: all features of the kernel. */
  static async start(settings: NodeSettings, options: InProcessOptions = {}): Promise<InProcessProxy> {
    const { families = [4, 6], features } = options
    const before = process.env.SLUICE_NFT_FEATURES
    if (features !== undefined) process.env.SLUICE_NFT_FEATURES = features
    try {
      const proxy = new InProcessProxy(families, (family) => nodeView(settings, family), options)
      await proxy.engine.start()
      return proxy
    } finally {
      if (before === undefined) delete process.env.SLUICE_NFT_FEATURES
      else process.env.SLUICE_NFT_FEATURES = before
    }
  }

  put(...manifests: readonly Manifest[]): void {
    for (const manifest of manifests) {
      if (manifest.kind === 'Service') {
        const { key, record } = decodeService(manifest)
        if (record !== undefined) this.engine.store.services.put(key, record)
      } else {
        const { key, record } = decodeEndpointSlice(manifest)
        if (record !== undefined) this.engine.store.slices.put(key, record)
      }
    }
  }

  /** Reports that all initial objects are delivered, so that the first sync begins. */
  synced(): void {
    this.engine.store.services.synced()
    this.engine.store.slices.synced()
  }

  /** Waits until a family has been synced once more, and the others, too, or nothing has asked for their sync for a while. */
  async settled(since = this.reports.length): Promise<void> {
    const began = performance.now()
    const end = began + timeLimit(20_000)
    const done = (family: Family) => this.reports.slice(since).some((report) => report.family === family && report.ok)
    const idle = (family: Family) =>
      performance.now() > began + idleMs && (this.#asked.get(family) ?? 0) <= (this.#done.get(family) ?? 0)
    while (!(this.#families.some(done) && this.#families.every((family) => done(family) || idle(family)))) {
      if (performance.now() > end) throw new Error(`not settled: ${this.reports.at(-1)?.error?.message ?? 'no sync'}`)
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 100)
        this.#heard = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
  }

  stop(): Promise<void> {
    return this.engine.stop()
  }
}

interface InProcessOptions {
  readonly families?: readonly Family[]
  readonly features?: string
  readonly log?: Logger
  readonly backend?: Backend<Held>
}

export function scenario(name: string): Scenario {
  const found = loadScenarios().find((one) => one.name === name)
  if (found === undefined) throw new Error(`no scenario ${name}`)
  return found
}

/** Returns every object that the scenario puts. */
export const objectsOf = (one: Scenario): readonly Manifest[] => one.steps.flatMap(({ put }) => put)
