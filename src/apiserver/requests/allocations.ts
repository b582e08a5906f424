// An index of the cluster IPs and node ports that services hold. It is built from the services, so a restart cannot leak any. Pure.

import { type Cidr, canonicalIp, type Family, formatIp, parseCidr, parseIp } from '../../lib/ip.ts'
import { getNumber, getObject, getObjects, getString, getStrings, type Json } from '../schema/json.ts'
import { isTerminating } from '../schema/object-metadata.ts'
import type { Change } from '../store/collection.ts'

export interface NodePortRange {
  readonly first: number
  readonly last: number
}

export const defaultNodePorts: NodePortRange = { first: 30_000, last: 32_767 }

/** The name of the ServiceCIDR that every cluster has. */
export const defaultCidr = 'kubernetes'

/** Random choices before the range is searched from end to end. */
const randomAttempts = 32
/** Larger ranges are only searched this far. */
const maxSearchedBits = 20

export class Allocations {
  readonly #range: NodePortRange
  readonly #random: () => number
  /** The `namespace/name` of the service that holds the address. */
  readonly #ips = new Map<string, string>()
  /** The `namespace/name` of the service that holds the node port or health check port, in all protocols. */
  readonly #ports = new Map<number, string>()
  /** The ranges of each ServiceCIDR that is not being deleted, by its name. */
  readonly #cidrs = new Map<string, readonly Cidr[]>()

  constructor(range: NodePortRange, random: () => number) {
    this.#range = range
    this.#random = random
  }

  get range(): NodePortRange {
    return this.#range
  }

  /** The ranges of all ServiceCIDRs that are not being deleted, those of the default one first. */
  cidrs(): readonly Cidr[] {
    const first = this.#cidrs.get(defaultCidr) ?? []
    return [...first, ...[...this.#cidrs].filter(([name]) => name !== defaultCidr).flatMap(([, cidrs]) => cidrs)]
  }

  /** The families that have cluster IPs, the preferred one first. */
  families(): readonly Family[] {
    return [...new Set(this.cidrs().map((cidr) => cidr.family))]
  }

  ipOwner(ip: string): string | undefined {
    return this.#ips.get(ip)
  }

  portOwner(port: number): string | undefined {
    return this.#ports.get(port)
  }

  /** All addresses that services hold. */
  ips(): IterableIterator<string> {
    return this.#ips.keys()
  }

  counts(): { readonly ips: number; readonly ports: number } {
    return { ips: this.#ips.size, ports: this.#ports.size }
  }

  /** An indexer of the registry: it must see every change. */
  observe(change: Change): void {
    if (change.resource === 'servicecidrs') this.#observeCidr(change)
    if (change.resource === 'services') this.#observeService(change)
  }

  #observeCidr({ name, next }: Change): void {
    if (next === undefined || isTerminating(next.object)) this.#cidrs.delete(name)
    else this.#cidrs.set(name, parseCidrs(next.object))
  }

  #observeService({ namespace, name, previous, next }: Change): void {
    const owner = `${namespace}/${name}`
    if (previous !== undefined) {
      release(this.#ips, clusterIps(previous.object), owner)
      release(this.#ports, nodePorts(previous.object), owner)
    }
    if (next === undefined) return
    for (const ip of clusterIps(next.object)) this.#ips.set(ip, owner)
    for (const port of nodePorts(next.object)) this.#ports.set(port, owner)
  }

  /** A free address, from the upper part of the range as long as it has one; undefined if the family is used up. */
  findFreeIp(family: Family): string | undefined {
    for (const cidr of this.cidrs().filter((each) => each.family === family)) {
      const ip = this.#findFreeIn(cidr)
      if (ip !== undefined) return ip
    }
    return undefined
  }

  #findFreeIn(cidr: Cidr): string | undefined {
    const base = toBigInt(parseIp(cidr.ip) ?? new Uint8Array())
    const width = cidr.family === 4 ? 32 : 128
    const size = 2 ** Math.min(width - cidr.bits, maxSearchedBits)
    // No service gets the network address, or the broadcast address of an IPv4 range.
    const last = size - (cidr.family === 4 ? 2 : 1)
    if (last < 1) return undefined
    // The lower part of a larger range is left to services that choose their address.
    const lower = Math.min(Math.max(16, size >> 4), 256)
    const start = size > 2 * lower ? lower + 1 : 1
    for (const offset of this.#candidates(start, last)) {
      const ip = fromBigInt(base + BigInt(offset), width / 8)
      if (!this.#ips.has(ip)) return ip
    }
    return undefined
  }

  /** Some random offsets from `start` on, then all of them, then those below `start`. */
  *#candidates(start: number, last: number): Generator<number> {
    for (let attempt = 0; attempt < randomAttempts; attempt++) {
      yield start + Math.floor(this.#random() * (last - start + 1))
    }
    for (let offset = start; offset <= last; offset++) yield offset
    for (let offset = 1; offset < start; offset++) yield offset
  }

  /** A port that is free and not in `avoid`; undefined if there is none. */
  findFreePort(avoid: ReadonlySet<number>): number | undefined {
    const { first, last } = this.#range
    const size = last - first + 1
    const isFree = (port: number) => !avoid.has(port) && !this.#ports.has(port)
    // As with addresses, the lower part is left to services that choose their port.
    const lower = size < 32 ? 0 : Math.min(Math.max(16, Math.floor(size / 32)), 128)
    for (let attempt = 0; attempt < randomAttempts; attempt++) {
      const port = first + lower + Math.floor(this.#random() * (size - lower))
      if (isFree(port)) return port
    }
    for (let port = last; port >= first; port--) if (isFree(port)) return port
    return undefined
  }
}

/** Removes the keys that the owner holds; another service may hold some of them by now. */
function release<K>(held: Map<K, string>, keys: readonly K[], owner: string): void {
  for (const key of keys) if (held.get(key) === owner) held.delete(key)
}

/** The valid ranges of a ServiceCIDR. */
export const parseCidrs = (serviceCidr: Json): readonly Cidr[] =>
  getStrings(getObject(serviceCidr, 'spec'), 'cidrs').flatMap((cidr) => parseCidr(cidr) ?? [])

/** The service's addresses in canonical form; `None` is not among them. */
function clusterIps(service: Json): readonly string[] {
  const spec = getObject(service, 'spec')
  const listed = getStrings(spec, 'clusterIPs')
  const all = listed.length > 0 ? listed : [getString(spec, 'clusterIP')]
  return all.flatMap((ip) => canonicalIp(ip) ?? [])
}

/** The node ports of the service, and its health check port. */
function nodePorts(service: Json): readonly number[] {
  const spec = getObject(service, 'spec')
  const ports = getObjects(spec, 'ports').map((port) => getNumber(port, 'nodePort'))
  return [...ports, getNumber(spec, 'healthCheckNodePort')].filter((port) => port > 0)
}

function toBigInt(bytes: Uint8Array): bigint {
  let value = 0n
  for (const byte of bytes) value = (value << 8n) | BigInt(byte)
  return value
}

function fromBigInt(value: bigint, length: number): string {
  const bytes = new Uint8Array(length)
  for (let i = length - 1, rest = value; i >= 0; i--, rest >>= 8n) bytes[i] = Number(rest & 0xffn)
  return formatIp(bytes)
}
