// Adds to service ports how their endpoints are chosen where the service does not say it, and the steps of new endpoints.

import type { Family } from '../../lib/ip.ts'
import type {
  Algorithm,
  CapacityWeights,
  Endpoint,
  ServicePort,
  ServiceRecord,
  SliceRecord,
} from '../../model/types.ts'
import type { Resolve } from '../planner.ts'
import type { SlowStart } from './slow-start.ts'

export interface BalancingDefaults {
  readonly algorithm?: Algorithm
  /** 0: new endpoints get their share at once. */
  readonly slowStartMs: number
}

export type WeighByCapacity = (
  service: ServiceRecord,
  slices: readonly SliceRecord[],
  family: Family,
) => CapacityWeights | undefined

interface FilterOptions {
  /** For services that say nothing. The settings may change while the proxy runs. */
  readonly defaults: () => BalancingDefaults
  /** The weights by node capacity of a service in one family; undefined if neither the service nor the settings want them. */
  readonly weighByCapacity: WeighByCapacity
  readonly now: () => number
  /** Called when endpoints start. */
  readonly onStarting: () => void
  /** The service as it is now; undefined if it is gone. */
  readonly find: (service: string) => ServiceRecord | undefined
}

/** After this many plans of services with a slow start, services that are gone are forgotten. */
const pruneEvery = 200

export class BalancingFilter {
  readonly #slowStart: SlowStart
  readonly #options: FilterOptions
  #plans = 0

  constructor(slowStart: SlowStart, options: FilterOptions) {
    this.#slowStart = slowStart
    this.#options = options
  }

  wrap(resolve: Resolve): Resolve {
    return (service, slices, node) => {
      const completed = this.#complete(service, slices, node.family)
      const steps = this.findSteps(service, slices, node.family)
      const ports = resolve(completed, slices, node)
      return steps === undefined ? ports : addStepsToAll(ports, steps)
    }
  }

  /** The steps of the new endpoints by address; undefined if the service does not want a slow start. */
  findSteps(
    service: ServiceRecord,
    slices: readonly SliceRecord[],
    family: Family,
  ): ReadonlyMap<string, number> | undefined {
    const ms = this.#durationOf(service)
    if (ms === 0 && this.#slowStart.size === 0) return undefined
    const id = `${family} ${service.key}`
    if (ms === 0) {
      this.#slowStart.drop(id)
      return undefined
    }
    if (++this.#plans % pruneEvery === 0) this.#prune()
    const ready = new Set<string>()
    for (const slice of slices) {
      if (slice.family !== family) continue
      for (const endpoint of slice.endpoints) if (endpoint.ready) ready.add(endpoint.ip)
    }
    const steps = this.#slowStart.note(id, ready, ms, this.#options.now())
    if (steps.size > 0) this.#options.onStarting()
    return steps
  }

  #complete(service: ServiceRecord, slices: readonly SliceRecord[], family: Family): ServiceRecord {
    const { defaults, weighByCapacity } = this.#options
    const { algorithm } = defaults()
    const completed = algorithm === undefined || service.algorithm !== undefined ? service : { ...service, algorithm }
    const capacityWeights = weighByCapacity(service, slices, family)
    return capacityWeights === undefined ? completed : { ...completed, capacityWeights }
  }

  #durationOf(service: ServiceRecord): number {
    return service.slowStartMs ?? this.#options.defaults().slowStartMs
  }

  #prune(): void {
    this.#slowStart.prune((id) => {
      const service = this.#options.find(id.slice(id.indexOf(' ') + 1))
      return service !== undefined && this.#durationOf(service) > 0
    })
  }
}

function* addStepsToAll(ports: Iterable<ServicePort>, steps: ReadonlyMap<string, number>): Iterable<ServicePort> {
  for (const port of ports) yield addSteps(port, steps)
}

function addSteps(port: ServicePort, steps: ReadonlyMap<string, number>): ServicePort {
  if (steps.size === 0) return { ...port, slowStart: true }
  // An endpoint that is in both lists stays one object: others compare them by identity.
  const changed = new Map<Endpoint, Endpoint>()
  const add = (endpoint: Endpoint): Endpoint => {
    const startStep = steps.get(endpoint.ip)
    if (startStep === undefined) return endpoint
    const known = changed.get(endpoint) ?? { ...endpoint, startStep }
    changed.set(endpoint, known)
    return known
  }
  return { ...port, slowStart: true, cluster: port.cluster.map(add), local: port.local.map(add) }
}
