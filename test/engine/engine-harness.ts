// An engine with a kernel in memory and a fake clock, and builders of records with suitable defaults.

import type { EngineOptions } from '../../src/engine/engine.ts'
import { Engine } from '../../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import type { Family } from '../../src/lib/ip.ts'
import { type Logger, silentLogger } from '../../src/lib/log.ts'
import type { EndpointRecord, NodeView, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import * as builders from '../support/builders.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { type MemoryBackendOptions, MemoryKernel, memoryBackend } from '../support/memory-backend.ts'

/** A dual-stack service. */
export const service = (key: string, given: Partial<ServiceRecord> = {}): ServiceRecord =>
  builders.service({
    key,
    uid: `uid-${key}`,
    created: 1000,
    clusterIps: ['10.96.0.10', 'fd00::10'],
    ports: [builders.tcp(80, 'http')],
    ...given,
  })

/** A ready endpoint on this node. */
export const endpoint = (ip: string, given: Partial<EndpointRecord> = {}): EndpointRecord =>
  builders.endpoint(ip, 'here', 'ready', given)

export const slice = (owner: string, ips: readonly string[], given: Partial<SliceRecord> = {}): SliceRecord =>
  builders.slice(
    ips.map((ip) => endpoint(ip)),
    { key: `${owner}-1`, service: owner, family: 4, name: 'http', port: 8080, ...given },
  )

/** A node that accepts node ports on all its addresses. */
export const view = (family: Family, given: Partial<NodeView> = {}): NodeView =>
  builders.view({
    family,
    ip: family === 4 ? '192.0.2.1' : '2001:db8::1',
    nodePorts: builders.everyAddress,
    local: undefined,
    serviceCidrs: [],
    ...given,
  })

export interface HarnessOptions extends MemoryBackendOptions {
  readonly families?: readonly Family[]
  readonly kernels?: ReadonlyMap<Family, MemoryKernel>
  readonly clock?: FakeClock
  readonly minSyncMs?: number
  readonly maxSyncMs?: number
  readonly resolve?: EngineOptions['resolve']
  readonly limits?: EngineOptions['limits']
  readonly precedence?: EngineOptions['precedence']
  readonly waitForTurn?: () => Promise<void>
  readonly log?: Logger
}

export class EngineHarness {
  readonly clock: FakeClock
  readonly kernels: ReadonlyMap<Family, MemoryKernel>
  readonly journal: SyncJournal
  readonly engine: Engine
  readonly reports: SyncReport[] = []

  constructor(options: HarnessOptions = {}) {
    const families = options.families ?? [4]
    this.clock = options.clock ?? new FakeClock()
    this.kernels = options.kernels ?? new Map(families.map((family) => [family, new MemoryKernel()]))
    const log = options.log ?? silentLogger
    this.journal = new SyncJournal({ log })
    this.journal.subscribe({ report: (report) => this.reports.push(report) })
    this.engine = new Engine({
      backend: memoryBackend(this.kernels, options),
      families,
      views: (family) => view(family),
      settings: { minSyncMs: options.minSyncMs ?? 1000, syncMs: 30_000, maxSyncMs: options.maxSyncMs ?? 3_600_000 },
      clock: this.clock,
      log,
      journal: this.journal,
      ...(options.resolve === undefined ? {} : { resolve: options.resolve }),
      ...(options.limits === undefined ? {} : { limits: options.limits }),
      ...(options.precedence === undefined ? {} : { precedence: options.precedence }),
      ...(options.waitForTurn === undefined ? {} : { waitForTurn: options.waitForTurn }),
    })
  }

  get kernel(): MemoryKernel {
    return this.kernels.get(4) as MemoryKernel
  }

  get services() {
    return this.engine.store.services
  }

  get slices() {
    return this.engine.store.slices
  }

  put(...records: (ServiceRecord | SliceRecord)[]): void {
    for (const record of records) {
      if ('service' in record) this.slices.put(record.key, record)
      else this.services.put(record.key, record)
    }
  }

  /** Delivers both kinds of records completely and runs the first sync. */
  async synced(...records: (ServiceRecord | SliceRecord)[]): Promise<this> {
    this.put(...records)
    this.services.synced()
    this.slices.synced()
    await this.engine.start()
    await this.clock.advance(0)
    return this
  }

  /** Advances the clock far enough for a requested sync, and not far enough for a retry. */
  tick(): Promise<void> {
    return this.clock.advance(1000)
  }

  last(): SyncReport {
    return this.reports.at(-1) as SyncReport
  }
}
