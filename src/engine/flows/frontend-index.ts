// Finds the service port that a packet is for by its destination, and follows changes service by service. No I/O.

import { type Family, hostPort, isLoopback } from '../../lib/ip.ts'
import type { Protocol, ServicePort } from '../../model/types.ts'

/** A destination of packets. */
export interface FlowDestination {
  readonly family: Family
  readonly protocol: Protocol
  readonly destination: string
  readonly destinationPort: number
}

export class FrontendIndex {
  readonly #isOwn: (ip: string) => boolean
  readonly #ports = new Map<string, ServicePort>()
  /** The keys of each service, to forget them. */
  readonly #keys = new Map<string, readonly string[]>()
  /** How many frontends have a port number, or a family and protocol. */
  readonly #counts = new Map<number | string, number>()

  /** `isOwn` says whether an address is one of this node: there node ports answer. */
  constructor(isOwn: (ip: string) => boolean) {
    this.#isOwn = isOwn
  }

  /** Replaces what is known of a service in one family. */
  set(service: string, family: Family, ports: Iterable<ServicePort>): void {
    const owner = `${family} ${service}`
    for (const key of this.#keys.get(owner) ?? []) {
      this.#ports.delete(key)
      this.#count(key, -1)
    }
    const keys = [...ports].flatMap((port) =>
      port.frontends.map((frontend) => {
        const key = keyOf(family, port.protocol, frontend.kind === 'node-port' ? '' : frontend.ip, frontend.port)
        this.#ports.set(key, port)
        return key
      }),
    )
    for (const key of keys) this.#count(key, 1)
    if (keys.length === 0) this.#keys.delete(owner)
    else this.#keys.set(owner, keys)
  }

  /** True if a frontend has this port number. */
  hasNumber(port: number): boolean {
    return this.#counts.has(port)
  }

  hasProtocol(family: Family, protocol: Protocol): boolean {
    return this.#counts.has(`${family} ${protocol}`)
  }

  find({ family, protocol, destination, destinationPort }: FlowDestination): ServicePort | undefined {
    const exact = this.#ports.get(keyOf(family, protocol, destination, destinationPort))
    if (exact !== undefined) return exact
    const byNodePort = this.#ports.get(keyOf(family, protocol, '', destinationPort))
    if (byNodePort === undefined) return undefined
    return isLoopback(destination) || this.#isOwn(destination) ? byNodePort : undefined
  }

  #count(key: string, change: 1 | -1): void {
    for (const counted of [numberOf(key), key.slice(0, key.lastIndexOf(' '))]) {
      const count = (this.#counts.get(counted) ?? 0) + change
      if (count === 0) this.#counts.delete(counted)
      else this.#counts.set(counted, count)
    }
  }
}

const keyOf = (family: Family, protocol: Protocol, ip: string, port: number): string =>
  `${family} ${protocol} ${hostPort(ip, port)}`

const numberOf = (key: string): number => Number(key.slice(key.lastIndexOf(':') + 1))
