// A whole proxy on an ObjectFeed and a kernel in memory: real reflectors, node views and engine, with the real plan of one mode.

import type { Backend, Held } from '../../src/backend/backend.ts'
import { findMode } from '../../src/backend/modes.ts'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { NodeViews, ServiceCidrs } from '../../src/daemon/node/node-views.ts'
import { Engine } from '../../src/engine/engine.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { Reflector } from '../../src/kube/reflect/reflector.ts'
import {
  describeOwnNode,
  endpointSlices,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../../src/kube/reflect/watched-resources.ts'
import type { Family } from '../../src/lib/ip.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { NodeFacts } from '../../src/model/node.ts'
import type { NodeRecord } from '../../src/model/types.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { MemoryKernel, memoryBackend } from '../support/memory-backend.ts'
import type { ObjectFeed } from './object-feed.ts'

export const families: readonly Family[] = [4, 6]

const settings = {
  syncPeriodMs: 30_000,
  masqueradeBit: 14,
  localhostNodePorts: false,
  counters: true,
  ipvs: { scheduler: '', excludeCidrs: [], strictArp: false, tcpTimeoutMs: 0, tcpFinTimeoutMs: 0, udpTimeoutMs: 0 },
  userspace: { portRange: undefined, udpTimeoutMs: 250, bindAddress: '0.0.0.0' },
}

/** `memory` plans entries that are easy to read; every other mode plans what it writes to a real kernel. */
export type PlannedMode = 'memory' | 'nftables' | 'iptables' | 'ipvs'

export class MemoryProxy {
  readonly clock = new FakeClock()
  readonly kernels: ReadonlyMap<Family, MemoryKernel>
  readonly engine: Engine
  /** Whatever a reflector threw. There must be nothing. */
  readonly thrown: unknown[] = []
  readonly #controller = new AbortController()
  readonly #running: Promise<unknown>[] = []

  constructor(feed: ObjectFeed, facts: NodeFacts, mode: PlannedMode, kernels = emptyKernels()) {
    this.kernels = kernels
    const journal = new SyncJournal({ log: silentLogger })
    const views = new NodeViews(facts, families)
    this.engine = new Engine({
      backend: backendOf(mode, kernels),
      families,
      views: (family) => views.get(family),
      settings: { minSyncMs: 1000, syncMs: 30_000, maxSyncMs: 3_600_000 },
      limits: defaultSluiceConfig().limits,
      clock: this.clock,
      log: silentLogger,
      journal,
    })
    views.watch((family, view) => this.engine.setView(family, view))
    const problem = () => {}
    const cidrs = new ServiceCidrs((list) => views.update({ serviceCidrs: list }), problem)
    const zone = {
      put: (_: string, record: NodeRecord) => views.update({ zone: record.zone }),
      drop: problem,
      synced: problem,
      problem,
    }
    this.#reflect(feed, 'services', services, this.engine.store.services)
    this.#reflect(feed, 'endpointslices', endpointSlices, this.engine.store.slices)
    this.#reflect(feed, 'servicecidrs', serviceCidrs, cidrs)
    this.#reflect(feed, 'nodes', describeOwnNode('here'), zone)
  }

  async start(): Promise<this> {
    await this.engine.start()
    await this.settle()
    return this
  }

  /** Lets enough time pass for every retry of reflectors and engine. */
  async settle(): Promise<void> {
    for (let i = 0; i < 4; i++) {
      // Reflectors and big plans yield to the event loop, which no fake clock can hasten.
      for (let turn = 0; turn < 4; turn++) await new Promise((resolve) => setImmediate(resolve))
      await this.clock.advance(31_000)
    }
  }

  contents(): readonly Record<string, string>[] {
    return families.map((family) => (this.kernels.get(family) as MemoryKernel).content())
  }

  /** Lists the given entries that the kernel does not hold exactly like that. */
  missing(family: Family, entries: Readonly<Record<string, string>>): readonly string[] {
    const held = this.kernels.get(family)?.held
    return Object.keys(entries).filter((id) => held?.get(id)?.digest !== entries[id])
  }

  async stop(): Promise<void> {
    this.#controller.abort(new Error('the test is over'))
    await Promise.all(this.#running)
    await this.engine.stop()
  }

  #reflect<R>(
    feed: ObjectFeed,
    name: string,
    resource: WatchedResource<R>,
    sink: ConstructorParameters<typeof Reflector<R>>[0]['sink'],
  ): void {
    const reflector = new Reflector({
      ...resource,
      client: feed.client(name),
      sink,
      clock: this.clock,
      log: silentLogger,
      random: () => 0.5,
    })
    this.#running.push(reflector.run(this.#controller.signal).catch((error) => this.thrown.push(error)))
  }
}

const emptyKernels = (): ReadonlyMap<Family, MemoryKernel> =>
  new Map(families.map((family) => [family, new MemoryKernel()]))

function backendOf(mode: PlannedMode, kernels: ReadonlyMap<Family, MemoryKernel>): Backend<Held> {
  const memory = memoryBackend(kernels)
  if (mode === 'memory') return memory
  const real = findMode(mode).makeBackend(settings)
  return { ...memory, base: (node) => real.base(node), plan: (port, node) => real.plan(port, node) }
}
