// Drains destinations: an endpoint that is removed keeps its connections, gets no new ones, and is deleted when the last one has ended.
//
// A draining destination has weight 0. After a restart, destinations of weight 0 count as draining. UDP has no connections to
// wait for, so its destinations never get here.

import type { Clock } from '../../../lib/time.ts'
import { type Destination, ipvsCommand, type VirtualServerKey } from '../../../sys/netlink/ipvs.ts'
import type { Wait } from '../../../sys/netlink/socket.ts'
import { destinationKey, serverKey } from '../entries.ts'
import type { IpvsNetlink } from './ipvs-netlink.ts'

interface DrainingServer {
  readonly server: VirtualServerKey
  /** The monotonic time at which the drain began, by destination key. */
  readonly since: Map<string, { readonly destination: Destination; readonly ms: number }>
}

export interface DrainOptions {
  readonly kernel: Pick<IpvsNetlink, 'listDestinations' | 'openRequests'>
  readonly clock: Clock
  /** A destination that still has connections is deleted after this time, and its connections end. */
  readonly drainLimitMs: number
}

export class DrainingDestinations {
  readonly #options: DrainOptions
  /** Servers by key, in the order in which `sweep` visits them. */
  readonly #servers = new Map<string, DrainingServer>()

  constructor(options: DrainOptions) {
    this.#options = options
  }

  get isEmpty(): boolean {
    return this.#servers.size === 0
  }

  has(key: string, destination: string): boolean {
    return this.#servers.get(key)?.since.has(destination) === true
  }

  /** `beganMs`: for a drain that was already known; now if absent. */
  add(server: VirtualServerKey, destination: Destination, beganMs?: number): void {
    const key = serverKey(server)
    const draining: DrainingServer = this.#servers.get(key) ?? { server, since: new Map() }
    const ms = beganMs ?? this.#options.clock.monotonic()
    draining.since.set(destinationKey(destination), { destination, ms })
    this.#servers.set(key, draining)
  }

  /** Called when the endpoint returns. Returns true if it was draining. */
  cancel(key: string, destination: string): boolean {
    const draining = this.#servers.get(key)
    if (draining === undefined || !draining.since.delete(destination)) return false
    if (draining.since.size === 0) this.#servers.delete(key)
    return true
  }

  /** Forgets the destinations of a server. Returns when each drain began, by destination key. */
  forgetServer(key: string): ReadonlyMap<string, number> {
    const draining = this.#servers.get(key)
    this.#servers.delete(key)
    return new Map([...(draining?.since ?? [])].map(([name, { ms }]) => [name, ms]))
  }

  /** Deletes drained destinations, and returns how many. Stops when `isOver`; the next call continues with the other servers. */
  async sweep(wait: Wait, isOver: () => boolean = () => false): Promise<number> {
    let deleted = 0
    for (const [key, draining] of [...this.#servers]) {
      deleted += await this.#sweepServer(draining, wait)
      // The server goes to the end of the queue.
      this.#servers.delete(key)
      if (draining.since.size > 0) this.#servers.set(key, draining)
      if (isOver()) break
    }
    return deleted
  }

  async #sweepServer({ server, since }: DrainingServer, wait: Wait): Promise<number> {
    const { kernel, clock, drainLimitMs } = this.#options
    const seen = new Map((await kernel.listDestinations(server, wait)).map((one) => [destinationKey(one), one]))
    const requests = kernel.openRequests<string>('remove drained destinations', wait)
    let deleted = 0
    for (const [name, { destination, ms }] of [...since]) {
      const inKernel = seen.get(name)
      const isTooOld = clock.monotonic() - ms > drainLimitMs
      if (inKernel !== undefined && inKernel.active + inKernel.inactive > 0 && !isTooOld) continue
      since.delete(name)
      if (inKernel === undefined) continue
      deleted++
      requests.queueDestination(ipvsCommand.deleteDestination, name, server, destination)
    }
    // The kernel refuses to delete what is gone already, which is fine.
    await requests.send()
    return deleted
  }
}
