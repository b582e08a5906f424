// Watches the capacity of all nodes while weights follow from it: while a service wants that by its annotation, or the settings do for all.
// Otherwise there is no request, no record and no timer.

import type { SluiceConfig } from '../../config/sluice-config.ts'
import { NodeCapacities } from '../../engine/balancing/node-capacities.ts'
import type { SyncJournal } from '../../engine/journal.ts'
import type { Store } from '../../engine/store.ts'
import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import { nodeCapacities, type WatchedResource } from '../../kube/reflect/watched-resources.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { runSliced, type Steps, stride, TimeSlice } from '../../lib/yielding.ts'
import type { CapacityWeights, NodeCapacityRecord, ServiceRecord, SliceRecord } from '../../model/types.ts'
import { weighByCapacity } from '../../model/weights.ts'

/** Changes of nodes within this time are looked up together: one pass over the services costs the same for one node and for all. */
const collectMs = 100
/** So many nodes are named as the cause of a sync. */
const namedNodes = 5

export interface NodeCapacityOptions {
  readonly settings: Pick<SluiceConfig['balancing'], 'weights'>
  /** Feeds the sink from the API server until the signal aborts. */
  readonly reflect: (
    resource: WatchedResource<NodeCapacityRecord>,
    sink: RecordSink<NodeCapacityRecord>,
    until: AbortSignal,
  ) => void
  readonly journal: Pick<SyncJournal, 'cause' | 'problem'>
  readonly clock: Clock
  readonly log: Logger
}

interface Services {
  readonly store: Pick<Store, 'records' | 'service' | 'slicesOf' | 'touch'>
  readonly families: readonly Family[]
}

interface Watch {
  readonly capacities: NodeCapacities
  readonly stop: AbortController
}

export class NodeCapacity {
  readonly #options: NodeCapacityOptions
  /** Services whose annotation wants weights by node capacity. */
  readonly #wanting = new Set<string>()
  #services: Services | undefined
  #watch: Watch | undefined
  #timer: Timer | undefined
  #isClosed = false

  constructor(options: NodeCapacityOptions) {
    this.#options = options
  }

  /** From now on services are planned again when a node changes that they depend on. */
  follow(services: Services): void {
    this.#services = services
    this.update()
  }

  /** Returns a sink that passes everything on, and notes which services want weights by node capacity. */
  readServices(sink: RecordSink<ServiceRecord>): RecordSink<ServiceRecord> {
    const note = (key: string, wants: boolean) => {
      if (wants === this.#wanting.has(key)) return
      if (wants) this.#wanting.add(key)
      else this.#wanting.delete(key)
      this.update()
    }
    return {
      put: (key, record) => {
        sink.put(key, record)
        note(key, record.nodeCapacity === true)
      },
      drop: (key) => {
        sink.drop(key)
        note(key, false)
      },
      synced: () => sink.synced(),
      problem: (problem) => sink.problem(problem),
    }
  }

  /** Starts or stops the watch, after a service or the settings have changed. */
  update(): void {
    const isWanted = !this.#isClosed && (this.#wanting.size > 0 || this.#isForAll)
    if (isWanted === (this.#watch !== undefined)) return
    if (isWanted) this.#start()
    else this.#stop()
  }

  close(): void {
    this.#isClosed = true
    this.update()
  }

  /** Undefined if the service does not want such weights, or if no node of its endpoints is known. */
  weigh(service: ServiceRecord, slices: readonly SliceRecord[], family: Family): CapacityWeights | undefined {
    const capacities = this.#watch?.capacities
    if (capacities === undefined) return undefined
    const own = slices.filter((slice) => slice.family === family)
    return this.#wants(service, own) ? weighByCapacity(own, (node) => capacities.weightOf(node)) : undefined
  }

  get #isForAll(): boolean {
    return this.#options.settings.weights === 'node-capacity'
  }

  /** A service with weights of its own means them beside a weight of 1, so the settings do not apply to it. */
  #wants(service: ServiceRecord, slices: readonly SliceRecord[]): boolean {
    if (service.nodeCapacity === true) return true
    return this.#isForAll && service.weights === undefined && slices.every(({ weight }) => weight === undefined)
  }

  #start(): void {
    const { reflect, journal, log } = this.#options
    const capacities: NodeCapacities = new NodeCapacities(() => {
      // A watch that was stopped may still deliver what it had read.
      if (this.#watch?.capacities === capacities) this.#arm()
    })
    const stop = new AbortController()
    this.#watch = { capacities, stop }
    log.info('Watching the capacity of all nodes, since weights follow from it')
    const sink: RecordSink<NodeCapacityRecord> = {
      put: (key, record) => capacities.put(key, record),
      drop: (key) => capacities.drop(key),
      synced: () => capacities.complete(),
      problem: (problem) => journal.problem(problem),
    }
    reflect(nodeCapacities, sink, stop.signal)
  }

  /** The services that no longer want such weights are planned again because of their own change, or of that of the settings. */
  #stop(): void {
    this.#watch?.stop.abort()
    this.#watch = undefined
    this.#timer?.cancel()
    this.#timer = undefined
    if (!this.#isClosed) this.#options.log.info('No longer watching the capacity of nodes')
  }

  #arm(): void {
    this.#timer ??= this.#options.clock.after(collectMs, () => {
      this.#timer = undefined
      const changed = this.#watch?.capacities.takeChanged()
      if (changed !== undefined) void runSliced(this.#touchUsers(changed), new TimeSlice(this.#options.clock))
    })
  }

  /** Has those services planned again that want such weights and have endpoints on one of the nodes. */
  *#touchUsers(nodes: ReadonlySet<string>): Steps<void> {
    if (this.#services === undefined) return
    const { store, families } = this.#services
    const touched = new Set<Family>()
    let seen = 0
    for (const service of this.#listCandidates(store)) {
      if (++seen % stride === 0) yield
      for (const family of families) {
        const slices = store.slicesOf(service.key, family)
        if (!hasEndpointOn(slices, nodes) || !this.#wants(service, slices)) continue
        if (!touched.has(family)) this.#options.journal.cause(family, 'capacity', '', describeNodes(nodes))
        touched.add(family)
        store.touch(service.key, family)
      }
    }
  }

  #listCandidates(store: Services['store']): Iterable<ServiceRecord> {
    if (this.#isForAll) return store.records()
    return [...this.#wanting].flatMap((key) => store.service(key) ?? [])
  }
}

const hasEndpointOn = (slices: readonly SliceRecord[], nodes: ReadonlySet<string>): boolean =>
  slices.some(({ endpoints }) => [...endpoints].some(({ node }) => nodes.has(node)))

function describeNodes(nodes: ReadonlySet<string>): string {
  const names = [...nodes]
  const more = names.length > namedNodes ? ` and ${names.length - namedNodes} more` : ''
  return `${names.slice(0, namedNodes).join(', ')}${more}`
}
