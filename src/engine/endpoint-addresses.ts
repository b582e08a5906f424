// Finds services whose external and load-balancer addresses are endpoints of other services, in one family. No I/O.
//
// Only addresses of the pod network count, if the configuration names it. Elsewhere an endpoint proves nothing: people write the address of
// a load balancer into a slice, and a user who may write slices could take the address from its service that way.
//
// A cluster has many endpoints and hardly any such address, so only endpoints at claimed addresses are indexed. It costs one look-up per
// endpoint of a service that is planned, and one pass over all slices in a sync that brings new addresses.

import { contains, parseCidr } from '../lib/ip.ts'
import { type Steps, stride } from '../lib/yielding.ts'
import { frontendKey } from '../model/conflicts.ts'
import type { LocalDetector, ServicePort, SliceRecord } from '../model/types.ts'

const none: readonly never[] = []

export class EndpointAddresses {
  /** How many services claim each address. */
  readonly #claimed = new Map<string, number>()
  readonly #claims = new Map<string, readonly string[]>()
  #network: string | undefined
  #isPod: (ip: string) => boolean = () => false
  /** Claimed addresses that `findNew` has not looked for yet. */
  #unseen = new Set<string>()
  /** Services with an endpoint at a claimed address, by `frontendKey`. */
  readonly #services = new Map<string, Set<string>>()
  readonly #keys = new Map<string, readonly string[]>()

  /**
   * Sets the pod network. If it changed, all services must be planned again: what was claimed and found in the old one is forgotten, also of
   * slices whose service does not exist, which is never planned.
   */
  setPodNetwork(local: LocalDetector | undefined): void {
    const network = local?.kind === 'cidr' ? local.cidr : undefined
    if (network === this.#network) return
    this.#network = network
    for (const index of [this.#claimed, this.#claims, this.#unseen, this.#services, this.#keys]) index.clear()
    const cidr = network === undefined ? undefined : parseCidr(network)
    // Nearly every address is elsewhere, which the first digits of an IPv4 address show at a fraction of the cost.
    const digits = cidr?.family === 4 ? cidr.ip.split('.').slice(0, cidr.bits >> 3) : []
    const start = digits.map((part) => `${part}.`).join('')
    this.#isPod = cidr === undefined ? () => false : (ip) => ip.startsWith(start) && contains(cidr, ip)
  }

  /** True if no service claims an address of the pod network, and none was claimed before. */
  get isIdle(): boolean {
    return this.#claimed.size === 0 && this.#keys.size === 0
  }

  /** Replaces the addresses that a service claims by those of its ports. */
  claim(service: string, ports: readonly ServicePort[]): void {
    const before = this.#claims.get(service)
    const after = externalAddresses(ports).filter((ip) => this.#isPod(ip))
    if (before === undefined ? after.length === 0 : areEqual(before, after)) return
    for (const ip of after) {
      const count = this.#claimed.get(ip) ?? 0
      this.#claimed.set(ip, count + 1)
      if (count === 0) this.#unseen.add(ip)
    }
    for (const ip of before ?? none) this.#forget(ip)
    if (after.length === 0) this.#claims.delete(service)
    else this.#claims.set(service, after)
  }

  /** Replaces the endpoints of a service. Returns the keys that it gained or lost. */
  replace(service: string, slices: readonly SliceRecord[]): readonly string[] {
    const before = this.#keys.get(service) ?? none
    const after = this.#claimed.size === 0 ? none : keysAt(slices, this.#claimed)
    if (before.length === 0 && after.length === 0) return none
    const gone = new Set(before)
    const added = after.filter((key) => !gone.delete(key))
    for (const key of gone) this.#remove(key, service)
    for (const key of added) this.#add(key, service)
    if (after.length === 0) this.#keys.delete(service)
    else this.#keys.set(service, after)
    return [...added, ...gone]
  }

  /** Looks for endpoints at addresses that were claimed since the last call. Returns the keys that were found. */
  *findNew(slices: Iterable<readonly SliceRecord[]>): Steps<readonly string[]> {
    if (this.#unseen.size === 0) return none
    const wanted = this.#unseen
    this.#unseen = new Set()
    const found: string[] = []
    let seen = 0
    for (const own of slices) {
      if (++seen % stride === 0) yield
      const keys = keysAt(own, wanted)
      if (keys.length === 0) continue
      const service = (own[0] as SliceRecord).service
      const known = new Set(this.#keys.get(service))
      const added = keys.filter((key) => !known.has(key))
      this.#keys.set(service, [...known, ...added])
      for (const key of added) {
        this.#add(key, service)
        found.push(key)
      }
    }
    return found
  }

  /** Returns another service that has this endpoint, the first by name; undefined if there is none, or if the service has it as well. */
  holderOf(key: string, service: string): string | undefined {
    const services = this.#services.get(key)
    if (services === undefined || services.has(service)) return undefined
    let first: string | undefined
    for (const one of services) if (first === undefined || one < first) first = one
    return first
  }

  #forget(ip: string): void {
    const count = this.#claimed.get(ip) ?? 0
    if (count > 1) this.#claimed.set(ip, count - 1)
    else {
      this.#claimed.delete(ip)
      this.#unseen.delete(ip)
    }
  }

  #add(key: string, service: string): void {
    const services = this.#services.get(key)
    if (services === undefined) this.#services.set(key, new Set([service]))
    else services.add(service)
  }

  #remove(key: string, service: string): void {
    const services = this.#services.get(key)
    services?.delete(service)
    if (services?.size === 0) this.#services.delete(key)
  }
}

const areEqual = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((ip, i) => ip === b[i])

/** All ports of a service have the same addresses, so the first one with frontends is enough. */
function externalAddresses(ports: readonly ServicePort[]): readonly string[] {
  const frontends = ports[0]?.frontends ?? none
  return frontends.filter(({ kind }) => kind === 'external-ip' || kind === 'load-balancer').map(({ ip }) => ip)
}

/** The keys of endpoints at the given addresses, each once. */
function keysAt(slices: readonly SliceRecord[], addresses: { has(ip: string): boolean }): readonly string[] {
  let keys: Set<string> | undefined
  for (const { endpoints, ports } of slices) {
    for (const { ip } of endpoints) {
      if (!addresses.has(ip)) continue
      keys ??= new Set()
      for (const { port, protocol } of ports) keys.add(frontendKey({ ip, port }, protocol))
    }
  }
  return keys === undefined ? none : [...keys]
}
