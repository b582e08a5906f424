// Virtual servers in the kernel: brought to what is wanted with as few messages as the difference takes, and drained without cutting.
//
// 1. What the kernel holds is read once and then known: a changed endpoint is one or two messages, however many servers there are.
// 2. New destinations come before old ones go, so there is never a moment without any.
// 3. A destination that goes gets weight 0: no new connection, but those there are go on. It is removed when the last one has ended. After
//    a restart, destinations of weight 0 are taken for such ones. UDP has no connections to wait for: removed at once.
// 4. Knowledge that proves wrong (somebody else's hand) is read again for that server, and the difference made once more.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Clock } from '../../lib/time.ts'
import { EEXIST, ENOENT } from '../../sys/errno.ts'
import { command, type Destination, type Service } from '../../sys/netlink/ipvs.ts'
import type { Wait } from '../../sys/netlink/socket.ts'
import type { RefusedEntry } from '../backend.ts'
import { destinationKey, type ServerEntry, serverDigest, serverKey } from './entries.ts'
import type { IpvsNetlink, IpvsRequests } from './ipvs-netlink.ts'

const ESRCH = 3

export interface KnownServer {
  readonly server: Service
  readonly live: Map<string, Destination>
  /** Since when, monotonic. */
  readonly draining: Map<string, { readonly destination: Destination; readonly since: number }>
}

export interface WantedServer {
  readonly key: string
  /** The id to blame. */
  readonly id: string
  readonly entry: ServerEntry | undefined
}

interface About {
  readonly key: string
  readonly what: number
}

export interface VirtualServersOptions {
  readonly kernel: Pick<IpvsNetlink, 'services' | 'service' | 'destinations' | 'requests'>
  readonly family: Family
  readonly clock: Clock
  /** A destination with connections is given up after this. */
  readonly drainLimitMs: number
}

export class VirtualServers {
  readonly #options: VirtualServersOptions
  readonly #known = new Map<string, KnownServer>()
  /** Keys of servers with destinations that drain. */
  readonly #draining = new Set<string>()

  constructor(options: VirtualServersOptions) {
    this.#options = options
  }

  get known(): ReadonlyMap<string, KnownServer> {
    return this.#known
  }

  get anyDraining(): boolean {
    return this.#draining.size > 0
  }

  /** All of the family, whosever they are. */
  async read(wait: Wait): Promise<void> {
    const { kernel, family } = this.#options
    const before = new Map(this.#known)
    this.#known.clear()
    this.#draining.clear()
    for (const { statistics: _, ...server } of await kernel.services(wait)) {
      if (server.family === family) await this.#readOne(server, before.get(serverKey(server)), wait)
    }
  }

  digest(key: string): string | undefined {
    const known = this.#known.get(key)
    return known === undefined ? undefined : serverDigest(known.server, known.live.values())
  }

  /** Makes each server what is wished for. */
  async reconcile(wishes: readonly WantedServer[], wait: Wait): Promise<readonly RefusedEntry[]> {
    const first = await this.#attempt(wishes, wait)
    if (first.length === 0) return []
    const again: WantedServer[] = []
    const refusals: RefusedEntry[] = []
    for (const { wish, refusal, stale } of first) {
      if (stale) again.push(wish)
      else refusals.push(refusal)
      await this.#reread(wish, wait)
    }
    for (const { wish, refusal } of await this.#attempt(again, wait)) {
      refusals.push(refusal)
      await this.#reread(wish, wait)
    }
    return refusals
  }

  /** Removes drained destinations; to be called now and then while any drains. Goes on next time where it had `enough`. */
  async sweep(wait: Wait, enough: () => boolean = () => false): Promise<number> {
    const { kernel, clock, drainLimitMs } = this.#options
    let removed = 0
    for (const key of [...this.#draining]) {
      const known = this.#known.get(key)
      if (known === undefined) {
        this.#draining.delete(key)
        continue
      }
      const seen = new Map((await kernel.destinations(known.server, wait)).map((one) => [destinationKey(one), one]))
      const requests = kernel.requests<string>('remove drained destinations', wait)
      for (const [name, { destination, since }] of [...known.draining]) {
        const now = seen.get(name)
        const over = clock.monotonic() - since > drainLimitMs
        if (now !== undefined && now.active + now.inactive > 0 && !over) continue
        known.draining.delete(name)
        if (now === undefined) continue
        removed++
        requests.destination(command.deleteDestination, name, known.server, destination)
      }
      // Gone already: just as well.
      await requests.send()
      // To the end of the queue.
      this.#draining.delete(key)
      if (known.draining.size > 0) this.#draining.add(key)
      if (enough()) break
    }
    return removed
  }

  /** Is a server still what we know it to be? */
  async verify(key: string, wait: Wait): Promise<boolean> {
    const known = this.#known.get(key)
    if (known === undefined) return true
    const { kernel } = this.#options
    const server = await kernel.service(known.server, wait)
    if (server === undefined || this.#known.get(key) !== known) return this.#known.get(key) !== known
    if (!sameSettings(server, known.server)) return false
    const seen = await kernel.destinations(known.server, wait)
    if (this.#known.get(key) !== known) return true
    const live = seen.filter(({ ip, port }) => !known.draining.has(destinationKey({ ip, port })))
    return (
      live.length === known.live.size && live.every((one) => known.live.get(destinationKey(one))?.weight === one.weight)
    )
  }

  async #readOne(server: Service, before: KnownServer | undefined, wait: Wait): Promise<void> {
    const key = serverKey(server)
    const known: KnownServer = { server, live: new Map(), draining: new Map() }
    for (const { ip, port, weight } of await this.#options.kernel.destinations(server, wait)) {
      const destination = { ip, port, weight }
      const name = destinationKey(destination)
      if (weight > 0) known.live.set(name, destination)
      else {
        const since = before?.draining.get(name)?.since ?? this.#options.clock.monotonic()
        known.draining.set(name, { destination, since })
      }
    }
    this.#known.set(key, known)
    if (known.draining.size > 0) this.#draining.add(key)
  }

  async #reread({ key, entry }: WantedServer, wait: Wait): Promise<void> {
    const before = this.#known.get(key)
    const asked = entry?.server ?? before?.server
    this.#known.delete(key)
    this.#draining.delete(key)
    if (asked === undefined) return
    const seen = await this.#options.kernel.service(asked, wait)
    if (seen === undefined) return
    const { statistics: _, ...server } = seen
    await this.#readOne(server, before, wait)
  }

  /** One failure per server: the first says why. `stale`: what we knew was wrong. */
  async #attempt(wishes: readonly WantedServer[], wait: Wait) {
    if (wishes.length === 0) return []
    const requests = this.#options.kernel.requests<About>('program virtual servers', wait)
    const byKey = new Map<string, WantedServer>()
    for (const wish of wishes) {
      byKey.set(wish.key, wish)
      this.#bring(wish, requests)
    }
    const failed = new Map<string, { wish: WantedServer; refusal: RefusedEntry; stale: boolean }>()
    for (const { about, errno, error } of await requests.send()) {
      const wish = byKey.get(about.key) as WantedServer
      const gone = errno === ENOENT || errno === ESRCH
      if (gone && (about.what === command.deleteDestination || about.what === command.deleteService)) continue
      if (failed.has(about.key)) continue
      const scheduler = errno === ENOENT && (about.what === command.newService || about.what === command.setService)
      failed.set(about.key, {
        wish,
        refusal: { id: wish.id, error: scheduler ? noScheduler(wish.entry, error) : error },
        stale: (gone || errno === EEXIST) && !scheduler,
      })
    }
    return [...failed.values()]
  }

  #bring({ key, entry }: WantedServer, requests: IpvsRequests<About>): void {
    const known = this.#known.get(key)
    if (entry === undefined) {
      if (known === undefined) return
      this.#known.delete(key)
      this.#draining.delete(key)
      requests.serviceKey(command.deleteService, { key, what: command.deleteService }, known.server)
      return
    }
    const { server } = entry
    const what = known === undefined ? command.newService : command.setService
    if (known === undefined || !sameSettings(known.server, server)) {
      requests.service(what, { key, what }, server)
    }
    const live = known?.live ?? new Map<string, Destination>()
    const draining: KnownServer['draining'] = known?.draining ?? new Map()
    this.#known.set(key, { server, live, draining })
    const wanted = new Set<string>()
    for (const destination of entry.destinations) {
      const name = destinationKey(destination)
      wanted.add(name)
      if (live.get(name)?.weight === destination.weight) continue
      const present = live.has(name) || draining.has(name)
      const verb = present ? command.setDestination : command.newDestination
      draining.delete(name)
      live.set(name, destination)
      requests.destination(verb, { key, what: verb }, server, destination)
    }
    for (const [name, destination] of live) {
      if (wanted.has(name)) continue
      live.delete(name)
      const verb = server.protocol === 'udp' ? command.deleteDestination : command.setDestination
      const resting = { ...destination, weight: 0 }
      if (verb === command.setDestination) {
        draining.set(name, { destination: resting, since: this.#options.clock.monotonic() })
      }
      requests.destination(verb, { key, what: verb }, server, resting)
    }
    if (draining.size > 0) this.#draining.add(key)
    else this.#draining.delete(key)
  }
}

const sameSettings = (a: Service, b: Service): boolean =>
  a.scheduler === b.scheduler && a.flags === b.flags && a.timeout === b.timeout

function noScheduler(entry: ServerEntry | undefined, cause: ProxyError): ProxyError {
  const name = entry?.server.scheduler ?? ''
  const words = `this kernel has no IPVS scheduler "${name}" (module ip_vs_${name}); choose another with the annotation sluice/scheduler or --ipvs-scheduler`
  return new ProxyError('ipvs-scheduler', words, { cause, fields: { scheduler: name } })
}
