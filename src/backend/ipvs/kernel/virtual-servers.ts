// Brings virtual servers to what is wanted with as few messages as the difference needs. Draining destinations are in drain.ts.
//
// 1. The kernel's servers are read once and then remembered: a changed endpoint is one or two messages, however many servers there are.
// 2. New destinations are added before old ones are removed, so a server is never without any.
// 3. A removed destination drains: its connections go on. A UDP destination is deleted at once.
// 4. If the kernel's answers show that the remembered state is wrong, because someone else changed the server, that server is read again
//    and the difference is sent once more.

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import type { Clock } from '../../../lib/time.ts'
import { EEXIST, ENOENT } from '../../../sys/errno.ts'
import { type Destination, ipvsCommand, type VirtualServer } from '../../../sys/netlink/ipvs.ts'
import type { Wait } from '../../../sys/netlink/socket.ts'
import type { RefusedEntry } from '../../backend.ts'
import { isServerUnchanged } from '../drift.ts'
import { destinationKey, hasSameSettings, type ServerEntry, serverDigest, serverKey } from '../entries.ts'
import { DrainingDestinations } from './drain.ts'
import type { IpvsNetlink, IpvsRequests } from './ipvs-netlink.ts'

const ESRCH = 3

/** A server as the kernel holds it. */
export interface KnownServer {
  readonly server: VirtualServer
  /** Destinations by key, without those that drain. */
  readonly destinations: Map<string, Destination>
}

export interface WantedServer {
  readonly key: string
  /** The id that a refusal names. */
  readonly id: string
  /** Undefined: the server must go. */
  readonly entry: ServerEntry | undefined
}

/** What a request is about. */
interface RequestSubject {
  readonly key: string
  readonly what: number
}

interface FailedServer {
  readonly wanted: WantedServer
  readonly refused: RefusedEntry
  /** The remembered state of the server was wrong. */
  readonly isStale: boolean
}

export interface VirtualServersOptions {
  readonly kernel: Pick<IpvsNetlink, 'listServers' | 'readServer' | 'listDestinations' | 'openRequests'>
  readonly family: Family
  readonly clock: Clock
  /** See DrainOptions. */
  readonly drainLimitMs: number
}

export class VirtualServers {
  readonly #options: VirtualServersOptions
  readonly #known = new Map<string, KnownServer>()
  readonly #draining: DrainingDestinations
  /** Where `findChanged` continues. */
  #nextCheck = 0

  constructor(options: VirtualServersOptions) {
    this.#options = options
    this.#draining = new DrainingDestinations(options)
  }

  get known(): ReadonlyMap<string, KnownServer> {
    return this.#known
  }

  get draining(): Pick<DrainingDestinations, 'isEmpty' | 'sweep'> {
    return this.#draining
  }

  /** Reads all servers of the family, ours and others'. */
  async read(wait: Wait): Promise<void> {
    const { kernel, family } = this.#options
    const began = new Map([...this.#known.keys()].map((key) => [key, this.#draining.forgetServer(key)]))
    this.#known.clear()
    for (const { statistics: _, ...server } of await kernel.listServers(wait)) {
      if (server.family === family) await this.#readServer(server, began.get(serverKey(server)), wait)
    }
  }

  digest(key: string): string | undefined {
    const known = this.#known.get(key)
    return known === undefined ? undefined : serverDigest(known.server, known.destinations.values())
  }

  async reconcile(wanted: readonly WantedServer[], wait: Wait): Promise<readonly RefusedEntry[]> {
    const failed = await this.#program(wanted, wait)
    for (const one of failed) await this.#readAgain(one.wanted, wait)
    const stale = failed.filter(({ isStale }) => isStale)
    const failedAgain = await this.#program(
      stale.map((one) => one.wanted),
      wait,
    )
    for (const one of failedAgain) await this.#readAgain(one.wanted, wait)
    return [...failed.filter(({ isStale }) => !isStale), ...failedAgain].map(({ refused }) => refused)
  }

  /** Compares servers with the kernel until `isOver`, from where the last call ended. Returns the key of a server that someone else changed. */
  async findChanged(keys: readonly string[], wait: Wait, isOver: () => boolean): Promise<string | undefined> {
    for (let left = keys.length; left > 0; left--) {
      const key = keys[this.#nextCheck++ % keys.length] as string
      if (!(await this.isUnchanged(key, wait))) return key
      if (isOver()) break
    }
    return undefined
  }

  async isUnchanged(key: string, wait: Wait): Promise<boolean> {
    const known = this.#known.get(key)
    if (known === undefined) return true
    const { kernel } = this.#options
    const server = await kernel.readServer(known.server, wait)
    const seen = server === undefined ? [] : await kernel.listDestinations(known.server, wait)
    // We ourselves changed the server meanwhile.
    if (this.#known.get(key) !== known) return true
    const destinations = seen.filter((one) => !this.#draining.has(key, destinationKey(one)))
    return server !== undefined && isServerUnchanged(known, server, destinations)
  }

  /** `began`: when the drains that were known before began. */
  async #readServer(server: VirtualServer, began: ReadonlyMap<string, number> | undefined, wait: Wait): Promise<void> {
    const known: KnownServer = { server, destinations: new Map() }
    for (const { ip, port, weight } of await this.#options.kernel.listDestinations(server, wait)) {
      const destination = { ip, port, weight }
      const name = destinationKey(destination)
      if (weight > 0) known.destinations.set(name, destination)
      else this.#draining.add(server, destination, began?.get(name))
    }
    this.#known.set(serverKey(server), known)
  }

  async #readAgain({ key, entry }: WantedServer, wait: Wait): Promise<void> {
    const before = entry?.server ?? this.#known.get(key)?.server
    const began = this.#draining.forgetServer(key)
    this.#known.delete(key)
    if (before === undefined) return
    const seen = await this.#options.kernel.readServer(before, wait)
    if (seen === undefined) return
    const { statistics: _, ...server } = seen
    await this.#readServer(server, began, wait)
  }

  /** Returns one failure per server: the first refused request says why. */
  async #program(wanted: readonly WantedServer[], wait: Wait): Promise<readonly FailedServer[]> {
    if (wanted.length === 0) return []
    const requests = this.#options.kernel.openRequests<RequestSubject>('program virtual servers', wait)
    const byKey = new Map<string, WantedServer>()
    for (const one of wanted) {
      byKey.set(one.key, one)
      this.#writeRequests(one, requests)
    }
    const failed = new Map<string, FailedServer>()
    for (const { subject, errno, error } of await requests.send()) {
      const why = classifyRefusal(subject.what, errno)
      if (why === 'gone-already' || failed.has(subject.key)) continue
      const one = byKey.get(subject.key) as WantedServer
      failed.set(subject.key, {
        wanted: one,
        refused: { id: one.id, error: why === 'no-scheduler' ? missingSchedulerError(one.entry, error) : error },
        isStale: why === 'stale',
      })
    }
    return [...failed.values()]
  }

  #writeRequests({ key, entry }: WantedServer, requests: IpvsRequests<RequestSubject>): void {
    const known = this.#known.get(key)
    if (entry === undefined) {
      if (known !== undefined) this.#deleteServer(key, known, requests)
      return
    }
    const { server } = entry
    if (known === undefined || !hasSameSettings(known.server, server)) {
      const what = known === undefined ? ipvsCommand.newService : ipvsCommand.setService
      requests.queueServer(what, { key, what }, server)
    }
    const destinations = known?.destinations ?? new Map<string, Destination>()
    this.#known.set(key, { server, destinations })
    this.#addDestinations(entry, destinations, requests)
    this.#removeDestinations(entry, destinations, requests)
  }

  #deleteServer(key: string, { server }: KnownServer, requests: IpvsRequests<RequestSubject>): void {
    this.#known.delete(key)
    this.#draining.forgetServer(key)
    requests.queueServerKey(ipvsCommand.deleteService, { key, what: ipvsCommand.deleteService }, server)
  }

  #addDestinations(
    { server, destinations: wanted }: ServerEntry,
    destinations: Map<string, Destination>,
    requests: IpvsRequests<RequestSubject>,
  ): void {
    const key = serverKey(server)
    for (const destination of wanted) {
      const name = destinationKey(destination)
      if (destinations.get(name)?.weight === destination.weight) continue
      const isPresent = this.#draining.cancel(key, name) || destinations.has(name)
      const what = isPresent ? ipvsCommand.setDestination : ipvsCommand.newDestination
      destinations.set(name, destination)
      requests.queueDestination(what, { key, what }, server, destination)
    }
  }

  #removeDestinations(
    { server, destinations: wanted }: ServerEntry,
    destinations: Map<string, Destination>,
    requests: IpvsRequests<RequestSubject>,
  ): void {
    const key = serverKey(server)
    const kept = new Set(wanted.map(destinationKey))
    for (const [name, destination] of destinations) {
      if (kept.has(name)) continue
      destinations.delete(name)
      const drained = { ...destination, weight: 0 }
      const what = server.protocol === 'udp' ? ipvsCommand.deleteDestination : ipvsCommand.setDestination
      if (what === ipvsCommand.setDestination) this.#draining.add(server, drained)
      requests.queueDestination(what, { key, what }, server, drained)
    }
  }
}

type RefusalKind = 'gone-already' | 'no-scheduler' | 'stale' | 'refused'

function classifyRefusal(what: number, errno: number): RefusalKind {
  const isGone = errno === ENOENT || errno === ESRCH
  if (isGone && (what === ipvsCommand.deleteDestination || what === ipvsCommand.deleteService)) return 'gone-already'
  if (errno === ENOENT && (what === ipvsCommand.newService || what === ipvsCommand.setService)) return 'no-scheduler'
  return isGone || errno === EEXIST ? 'stale' : 'refused'
}

function missingSchedulerError(entry: ServerEntry | undefined, cause: ProxyError): ProxyError {
  const name = entry?.server.scheduler ?? ''
  const words = `this kernel has no IPVS scheduler "${name}" (module ip_vs_${name}); choose another with the annotation sluice/scheduler, with ipvs.scheduler in the file of --config, or with --ipvs-scheduler`
  return new ProxyError('ipvs-scheduler', words, { cause, fields: { scheduler: name } })
}
