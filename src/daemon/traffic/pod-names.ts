// Names the pods of flows when someone looks at them. Asks the API server once for each service and each client, never for each flow.

import type { Clock } from '../../lib/time.ts'

/** A name is asked for again after this time: addresses move to other pods. */
const keptMs = 60_000
/** The most services, and the most clients, whose names are kept. */
const maxKept = 2_000
/** The most questions to the API server for one answer; the names of the rest come with the next one. */
const maxQuestions = 20

export interface PodNameSource {
  /** `namespace/name` by address for the endpoints of a service. */
  readonly readEndpointPods: (service: string) => Promise<ReadonlyMap<string, string>>
  /** `namespace/name` of the pod at an address; '' if there is none. */
  readonly readPodAt: (ip: string) => Promise<string>
}

/** What is needed to name both ends of a flow. */
export interface NamedEnds {
  readonly service: string
  readonly client: string
}

interface Kept<T> {
  readonly value: T
  readonly until: number
}

export class PodNames {
  readonly #source: PodNameSource
  readonly #clock: Clock
  readonly #services = new Map<string, Kept<ReadonlyMap<string, string>>>()
  readonly #clients = new Map<string, Kept<string>>()
  /** Why pods cannot be read: then they are not asked for again. In a cluster the role of a proxy does not include pods. */
  #problem = ''

  constructor(source: PodNameSource, clock: Clock) {
    this.#source = source
    this.#clock = clock
  }

  /** A sentence about names that are missing; '' if none are. */
  get problem(): string {
    return this.#problem
  }

  /** Asks for the names that are not known. Never rejects. */
  async prepare(ends: Iterable<NamedEnds>): Promise<void> {
    const now = this.#clock.now()
    const services = new Set<string>()
    const clients = new Set<string>()
    for (const { service, client } of ends) {
      if (!isFresh(this.#services.get(service), now)) services.add(service)
      if (!isFresh(this.#clients.get(client), now)) clients.add(client)
    }
    for (const service of [...services].slice(0, maxQuestions)) await this.#askService(service, now)
    // The endpoints of services are often clients of others: then their names are known.
    const known = new Map([...this.#services.values()].flatMap(({ value }) => [...value]))
    const asked = [...clients].filter((ip) => !this.#keep(this.#clients, ip, known.get(ip), now))
    if (this.#problem === '') for (const ip of asked.slice(0, maxQuestions)) await this.#askClient(ip, now)
  }

  endpointPod(service: string, ip: string): string {
    return this.#services.get(service)?.value.get(ip) ?? ''
  }

  clientPod(ip: string): string {
    return this.#clients.get(ip)?.value ?? ''
  }

  async #askService(service: string, now: number): Promise<void> {
    const found = await this.#source.readEndpointPods(service).catch(() => new Map<string, string>())
    this.#keep(this.#services, service, found, now)
  }

  async #askClient(ip: string, now: number): Promise<void> {
    try {
      this.#keep(this.#clients, ip, await this.#source.readPodAt(ip), now)
    } catch {
      this.#problem = 'The proxy may not list pods, so clients are named only if they are endpoints of a service.'
    }
  }

  /** Returns false if there is nothing to keep. */
  #keep<T>(map: Map<string, Kept<T>>, key: string, value: T | undefined, now: number): boolean {
    if (value === undefined) return false
    if (map.size >= maxKept) map.clear()
    map.set(key, { value, until: now + keptMs })
    return true
  }
}

const isFresh = (kept: Kept<unknown> | undefined, now: number): boolean => kept !== undefined && kept.until > now
