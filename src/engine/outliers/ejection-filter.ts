// Leaves ejected endpoints out of service ports, for services that want it, and tells the detector and the probes which endpoints serve which
// port.

import { hostPort } from '../../lib/ip.ts'
import type {
  EjectedEndpoint,
  Endpoint,
  ProbeRecord,
  ServicePort,
  ServiceRecord,
  SliceRecord,
} from '../../model/types.ts'
import type { Resolve } from '../planner.ts'
import type { OutlierDetector, WatchedEndpoint } from './outlier-detector.ts'

/** Where the filter says which endpoints are to be probed. */
export interface ProbedGroups {
  set(group: string, probe: ProbeRecord, endpoints: readonly string[]): void
  drop(group: string): void
}

export interface EjectionFilterOptions {
  /** Services without an annotation want ejection by their connections. */
  readonly isDefault: () => boolean
  /** Called when there is something to watch. */
  readonly onWatched: () => void
  readonly probes?: ProbedGroups
}

export class EjectionFilter {
  readonly #detector: OutlierDetector
  readonly #options: EjectionFilterOptions
  /** The service of each group. */
  readonly #services = new Map<string, string>()

  constructor(detector: OutlierDetector, options: EjectionFilterOptions) {
    this.#detector = detector
    this.#options = options
  }

  /** Wraps the policy of the model: what it returns lacks the endpoints that are ejected now. */
  wrap(resolve: Resolve): Resolve {
    return (service, slices, node) => {
      const ports = resolve(service, slices, node)
      return this.wants(service) ? this.#applyAll(ports, service, slices) : ports
    }
  }

  *#applyAll(
    ports: Iterable<ServicePort>,
    service: ServiceRecord,
    slices: readonly SliceRecord[],
  ): Iterable<ServicePort> {
    let nodes: ReadonlyMap<string, string> | undefined
    for (const port of ports) {
      yield this.#apply(port, service, () => {
        nodes ??= nodesOf(slices)
        return nodes
      })
    }
  }

  wants(service: ServiceRecord): boolean {
    return this.#isPassive(service) || service.probe !== undefined
  }

  /** Forgets the ports of services that are gone or no longer want it. */
  prune(find: (service: string) => ServiceRecord | undefined): void {
    for (const [id, service] of this.#services) {
      const record = find(service)
      if (record === undefined || !this.wants(record)) this.#forget(id)
    }
  }

  serviceOf(group: string): string | undefined {
    return this.#services.get(group)
  }

  #isPassive(service: ServiceRecord): boolean {
    return service.outlierEjection ?? this.#options.isDefault()
  }

  #apply(port: ServicePort, service: ServiceRecord, nodes: () => ReadonlyMap<string, string>): ServicePort {
    if (port.protocol !== 'tcp') return port
    const id = `${port.family} ${port.id}`
    const { probe } = service
    const probed = probe?.port === undefined || probe.port === port.portName ? probe : undefined
    const all = [...new Map([...port.cluster, ...port.local].map((one) => [keyOf(one), one])).keys()]
    if (all.length < 2 || (probed === undefined && !this.#isPassive(service))) {
      this.#forget(id)
      return port
    }
    const watched = all.map(
      (key): WatchedEndpoint => ({ key, node: nodes().get(key.slice(0, key.lastIndexOf(':'))) ?? '' }),
    )
    this.#detector.setGroup(id, watched, this.#isPassive(service))
    if (probed === undefined) this.#options.probes?.drop(id)
    else this.#options.probes?.set(id, probed, all)
    this.#services.set(id, port.service)
    this.#options.onWatched()
    return this.#leaveOut(port, id, all)
  }

  #leaveOut(port: ServicePort, id: string, all: readonly string[]): ServicePort {
    const ejected = this.#detector.ejected(id)
    if (ejected.size === 0) return port
    const list: EjectedEndpoint[] = all.flatMap((key) => {
      const found = ejected.get(key)
      return found === undefined ? [] : [{ address: key, why: found.why }]
    })
    if (list.length === 0) return port
    const keep = (endpoints: readonly Endpoint[]) => leaveOut(endpoints, ejected)
    return { ...port, cluster: keep(port.cluster), local: keep(port.local), ejected: list }
  }

  #forget(id: string): void {
    if (!this.#services.delete(id)) return
    this.#options.probes?.drop(id)
    this.#detector.dropGroup(id)
  }
}

const keyOf = ({ ip, port }: Endpoint): string => hostPort(ip, port)

/** Never leaves none: a policy may have chosen only endpoints that are ejected from the whole. */
function leaveOut(endpoints: readonly Endpoint[], ejected: ReadonlyMap<string, unknown>): readonly Endpoint[] {
  const left = endpoints.filter((endpoint) => !ejected.has(keyOf(endpoint)))
  return left.length === 0 ? endpoints : left
}

function nodesOf(slices: readonly SliceRecord[]): ReadonlyMap<string, string> {
  const nodes = new Map<string, string>()
  for (const { endpoints, family } of slices) {
    for (const { ip, node } of endpoints) nodes.set(family === 6 ? `[${ip}]` : ip, node)
  }
  return nodes
}
