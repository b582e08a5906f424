// Keeps the Service default/kubernetes as it was while the objects leave it without endpoints, if our client reaches the API server by it.
//
// Without its rules the client could not connect again, and the proxy would never hear that the Service has endpoints again.

import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import type { Logger } from '../../lib/log.ts'
import { apiServerEndpoints, apiServerService } from '../../model/reserved-addresses.ts'
import type { ServiceRecord, SliceRecord } from '../../model/types.ts'

export interface KeptApiServiceOptions {
  readonly services: RecordSink<ServiceRecord>
  readonly slices: RecordSink<SliceRecord>
  /** Whether our client dials the address, or did within the last hour. */
  readonly isDialed: (ip: string) => boolean
  readonly log: Logger
}

/** The Service and its slices by key. */
interface ServiceState {
  service: ServiceRecord | undefined
  readonly slices: Map<string, SliceRecord>
}

const canServe = ({ service, slices }: ServiceState): boolean =>
  service !== undefined && apiServerEndpoints(slices.values(), ({ ready, serving }) => ready || serving).length > 0

export class KeptApiService {
  readonly #options: KeptApiServiceOptions
  /** What the API server has, and what the sinks have got. */
  readonly #current: ServiceState = { service: undefined, slices: new Map() }
  readonly #passed: ServiceState = { service: undefined, slices: new Map() }
  #isKept = false

  constructor(options: KeptApiServiceOptions) {
    this.#options = options
  }

  /** Gets all services, and passes them on. */
  get services(): RecordSink<ServiceRecord> {
    const sink = this.#options.services
    return {
      synced: () => sink.synced(),
      problem: (problem) => sink.problem(problem),
      put: (key, record) => (key === apiServerService ? this.#setService(record) : sink.put(key, record)),
      drop: (key) => (key === apiServerService ? this.#setService(undefined) : sink.drop(key)),
    }
  }

  /** Gets all slices, and passes them on. */
  get slices(): RecordSink<SliceRecord> {
    const sink = this.#options.slices
    return {
      synced: () => sink.synced(),
      problem: (problem) => sink.problem(problem),
      put: (key, record) => {
        if (record.service === apiServerService) this.#setSlice(key, record)
        else {
          this.#current.slices.delete(key)
          this.#passed.slices.delete(key)
          sink.put(key, record)
        }
      },
      drop: (key) => (this.#isOwn(key) ? this.#setSlice(key, undefined) : sink.drop(key)),
    }
  }

  #isOwn(slice: string): boolean {
    return this.#current.slices.has(slice) || this.#passed.slices.has(slice)
  }

  #setService(record: ServiceRecord | undefined): void {
    this.#current.service = record
    this.#pass()
  }

  #setSlice(key: string, record: SliceRecord | undefined): void {
    if (record === undefined) this.#current.slices.delete(key)
    else this.#current.slices.set(key, record)
    this.#pass()
  }

  #pass(): void {
    const mustKeep = this.#isUsed() && canServe(this.#passed) && !canServe(this.#current)
    if (mustKeep !== this.#isKept) this.#report(mustKeep)
    this.#isKept = mustKeep
    if (mustKeep) return
    const { services, slices } = this.#options
    const { service } = this.#current
    if (service === undefined && this.#passed.service !== undefined) services.drop(apiServerService)
    else if (service !== undefined && service !== this.#passed.service) services.put(apiServerService, service)
    this.#passed.service = service
    for (const key of this.#passed.slices.keys()) if (!this.#current.slices.has(key)) slices.drop(key)
    for (const [key, slice] of this.#current.slices) if (this.#passed.slices.get(key) !== slice) slices.put(key, slice)
    this.#passed.slices.clear()
    for (const [key, slice] of this.#current.slices) this.#passed.slices.set(key, slice)
  }

  #isUsed(): boolean {
    const { service } = this.#passed
    if (service === undefined) return false
    return [...service.clusterIps, ...service.externalIps, ...service.loadBalancerIps].some(this.#options.isDialed)
  }

  #report(isKept: boolean): void {
    const { log } = this.#options
    const service = apiServerService
    if (!isKept) log.info('The service of the API server has endpoints again', { service })
    else {
      const reason = 'this proxy reaches the API server by it'
      log.warn('The service of the API server has no endpoints; its last ones are kept', { service, reason })
    }
  }
}
