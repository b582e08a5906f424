// Addresses between netlink's bytes and canonical text, with a memory for those that come again and again in a dump.

import { type Family, formatIp, parseIp } from '../../lib/ip.ts'
import { u32At } from './message.ts'

/** A dump of a million flows names few services and endpoints, and each client many times. */
const maxRemembered = 65_536

export class AddressCache {
  readonly #ipv4 = new Map<number, string>()
  readonly #ipv6 = new Map<string, string>()

  text(family: Family, bytes: Buffer, at: number): string {
    return family === 4 ? this.ipv4(bytes, at) : this.ipv6(bytes, at)
  }

  ipv4(bytes: Buffer, at: number): string {
    // As a small integer, for the map: twice as fast as with a large one.
    const key = u32At(bytes, at) | 0
    const known = this.#ipv4.get(key)
    if (known !== undefined) return known
    const text = `${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`
    if (this.#ipv4.size >= maxRemembered) this.#ipv4.clear()
    this.#ipv4.set(key, text)
    return text
  }

  ipv6(bytes: Buffer, at: number): string {
    const key = bytes.toString('latin1', at, at + 16)
    const known = this.#ipv6.get(key)
    if (known !== undefined) return known
    const text = formatIp(bytes.subarray(at, at + 16))
    if (this.#ipv6.size >= maxRemembered) this.#ipv6.clear()
    this.#ipv6.set(key, text)
    return text
  }
}

/** Bytes of an address that is known to be one; 16 for IPv6, also for a mapped one. */
export function addressBytes(ip: string): Uint8Array {
  const bytes = parseIp(ip)
  if (bytes === undefined) throw new TypeError(`no IP address: ${ip}`)
  return bytes
}
