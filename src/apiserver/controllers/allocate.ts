// Which cluster IPs and node ports are taken, and by whom; it is an index of the services, so a restart cannot leak any.

import { type Cidr, canonicalIp, type Family, formatIp, parseCidr, parseIp } from '../../lib/ip.ts'
import { child, type Json, objects, text, texts, whole } from '../schema/json.ts'
import type { Change } from '../store/collection.ts'

export interface NodePortRange {
  readonly first: number
  readonly last: number
}

export class Allocations {
  readonly #range: NodePortRange
  readonly #random: () => number
  readonly #ips = new Map<string, string>()
  /** `TCP/30000`; a health check port holds its number in TCP. */
  readonly #ports = new Map<string, string>()
  readonly #cidrs = new Map<string, readonly Cidr[]>()

  constructor(range: NodePortRange, random: () => number = Math.random) {
    this.#range = range
    this.#random = random
  }

  get range(): NodePortRange {
    return this.#range
  }

  /** Of all ServiceCIDRs that are not on their way out, the default first. */
  cidrs(): readonly Cidr[] {
    const first = this.#cidrs.get(defaultCidr) ?? []
    return [...first, ...[...this.#cidrs].filter(([name]) => name !== defaultCidr).flatMap(([, cidrs]) => cidrs)]
  }

  /** Families in which there are cluster IPs, the preferred one first. */
  families(): readonly Family[] {
    return [...new Set(this.cidrs().map((cidr) => cidr.family))]
  }

  ipOwner(ip: string): string | undefined {
    return this.#ips.get(ip)
  }

  portOwner(port: number, protocol: string): string | undefined {
    return this.#ports.get(`${protocol}/${port}`)
  }

  /** Taken addresses, for whoever removes a range. */
  ips(): IterableIterator<string> {
    return this.#ips.keys()
  }

  counts(): { readonly ips: number; readonly ports: number } {
    return { ips: this.#ips.size, ports: this.#ports.size }
  }

  /** To be called for every change of the registry. */
  observe({ resource, namespace, name, previous, next }: Change): void {
    if (resource === 'servicecidrs') {
      const active = next !== undefined && child(next.object, 'metadata').deletionTimestamp === undefined
      if (active)
        this.#cidrs.set(
          name,
          texts(child(next.object, 'spec'), 'cidrs').flatMap((cidr) => parseCidr(cidr) ?? []),
        )
      else this.#cidrs.delete(name)
    }
    if (resource !== 'services') return
    const owner = `${namespace}/${name}`
    if (previous !== undefined) {
      for (const ip of clusterIps(previous.object)) if (this.#ips.get(ip) === owner) this.#ips.delete(ip)
      for (const port of nodePorts(previous.object)) if (this.#ports.get(port) === owner) this.#ports.delete(port)
    }
    if (next === undefined) return
    for (const ip of clusterIps(next.object)) this.#ips.set(ip, owner)
    for (const port of nodePorts(next.object)) this.#ports.set(port, owner)
  }

  /** A free address, from the upper part of the range as long as there are any; undefined if the family is used up. */
  freeIp(family: Family): string | undefined {
    for (const cidr of this.cidrs().filter((each) => each.family === family)) {
      const ip = this.#freeIn(cidr)
      if (ip !== undefined) return ip
    }
    return undefined
  }

  #freeIn(cidr: Cidr): string | undefined {
    const base = toBigInt(parseIp(cidr.ip) as Uint8Array)
    const width = cidr.family === 4 ? 32 : 128
    // Larger ranges than this are not walked to their end.
    const size = Math.min(2 ** Math.min(width - cidr.bits, 20), 2 ** 20)
    // The network address, and for IPv4 the broadcast address, are nobody's.
    const last = size - (cidr.family === 4 ? 2 : 1)
    if (last < 1) return undefined
    const address = (offset: number) => fromBigInt(base + BigInt(offset), width / 8)
    const lower = Math.min(Math.max(16, size >> 4), 256)
    const start = size > 2 * lower ? lower + 1 : 1
    const free = (offset: number) => (this.#ips.has(address(offset)) ? undefined : address(offset))
    for (let attempt = 0; attempt < 32; attempt++) {
      const ip = free(start + Math.floor(this.#random() * (last - start + 1)))
      if (ip !== undefined) return ip
    }
    for (let offset = start; offset <= last; offset++) {
      const ip = free(offset)
      if (ip !== undefined) return ip
    }
    for (let offset = 1; offset < start; offset++) {
      const ip = free(offset)
      if (ip !== undefined) return ip
    }
    return undefined
  }

  /** A port that is free in every protocol that is asked for; `avoid` are those given out in the same breath. */
  freePort(wanted: readonly string[], avoid: ReadonlySet<number>): number | undefined {
    const { first, last } = this.#range
    const size = last - first + 1
    const free = (port: number) =>
      !avoid.has(port) && wanted.every((protocol) => !this.#ports.has(`${protocol}/${port}`))
    // As with addresses, the lower part is left to those who choose for themselves.
    const lower = size < 32 ? 0 : Math.min(Math.max(16, Math.floor(size / 32)), 128)
    for (let attempt = 0; attempt < 32; attempt++) {
      const port = first + lower + Math.floor(this.#random() * (size - lower))
      if (free(port)) return port
    }
    for (let port = last; port >= first; port--) if (free(port)) return port
    return undefined
  }
}

export const defaultCidr = 'kubernetes'

/** Canonical, without None. */
export function clusterIps(service: Json): readonly string[] {
  const spec = child(service, 'spec')
  const listed = texts(spec, 'clusterIPs')
  const all = listed.length > 0 ? listed : [text(spec, 'clusterIP')]
  return all.flatMap((ip) => canonicalIp(ip) ?? [])
}

function nodePorts(service: Json): readonly string[] {
  const spec = child(service, 'spec')
  const ports = objects(spec, 'ports')
    .filter((port) => whole(port, 'nodePort') > 0)
    .map((port) => `${text(port, 'protocol') || 'TCP'}/${whole(port, 'nodePort')}`)
  const health = whole(spec, 'healthCheckNodePort')
  return health > 0 ? [...ports, `TCP/${health}`] : ports
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
