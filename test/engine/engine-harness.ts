// Records by default, and an engine over a memory kernel with a clock of its own.

import type { EngineOptions } from '../../src/engine/engine.ts'
import { Engine } from '../../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import type { Family } from '../../src/lib/ip.ts'
import { type Logger, silentLogger } from '../../src/lib/log.ts'
import type { EndpointRecord, NodeView, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { type MemoryBackendOptions, MemoryKernel, memoryBackend } from '../support/memory-backend.ts'

export const service = (key: string, patch: Partial<ServiceRecord> = {}): ServiceRecord => ({
  key,
  uid: `uid-${key}`,
  created: 1000,
  type: 'ClusterIP',
  clusterIps: ['10.96.0.10', 'fd00::10'],
  ports: [{ name: 'http', protocol: 'tcp', port: 80, nodePort: 0 }],
  externalIps: [],
  loadBalancerIps: [],
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
  ...patch,
})

export const endpoint = (ip: string, patch: Partial<EndpointRecord> = {}): EndpointRecord => ({
  ip,
  node: 'here',
  ready: true,
  serving: true,
  terminating: false,
  zoneHints: [],
  nodeHints: [],
  ...patch,
})

export const slice = (of: string, ips: readonly string[], patch: Partial<SliceRecord> = {}): SliceRecord => ({
  key: `${of}-1`,
  service: of,
  family: 4,
  ports: [{ name: 'http', protocol: 'tcp', port: 8080 }],
  endpoints: ips.map((ip) => endpoint(ip)),
  triggered: 0,
  ...patch,
})

export const view = (family: Family, patch: Partial<NodeView> = {}): NodeView => ({
  name: 'here',
  family,
  zone: '',
  ip: family === 4 ? '192.0.2.1' : '2001:db8::1',
  nodePorts: { all: true, addresses: [], loopback: true, loopbackNamed: false },
  local: undefined,
  masqueradeAll: false,
  masqueradeMark: 0x4000,
  serviceCidrs: [],
  externalIps: true,
  ...patch,
})

export interface HarnessOptions extends MemoryBackendOptions {
  readonly families?: readonly Family[]
  readonly kernels?: ReadonlyMap<Family, MemoryKernel>
  readonly clock?: FakeClock
  readonly minSyncMs?: number
  readonly maxSyncMs?: number
  readonly resolve?: EngineOptions['resolve']
  readonly breathe?: () => Promise<void>
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
      ...(options.breathe === undefined ? {} : { breathe: options.breathe }),
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

  /** Both kinds delivered completely, and the first sync done. */
  async synced(...records: (ServiceRecord | SliceRecord)[]): Promise<this> {
    this.put(...records)
    this.services.synced()
    this.slices.synced()
    await this.engine.start()
    await this.clock.advance(0)
    return this
  }

  /** Long enough for a requested sync, too short for a retry. */
  tick(): Promise<void> {
    return this.clock.advance(1000)
  }

  last(): SyncReport {
    return this.reports.at(-1) as SyncReport
  }
}
