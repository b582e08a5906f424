// Addresses between netlink's bytes and canonical text, with a memory for those that come again and again in a dump.

import { formatIp, parseIp } from '../../lib/ip.ts'

/** A dump of a million flows names few services and endpoints, and each client many times. */
const maxRemembered = 65_536

export class AddressCache {
  readonly #ipv4 = new Map<number, string>()
  readonly #ipv6 = new Map<string, string>()

  ipv4(bytes: Buffer, at: number): string {
    const key = bytes.readUInt32BE(at)
    const known = this.#ipv4.get(key)
    if (known !== undefined) return known
    const text = `${key >>> 24}.${(key >>> 16) & 255}.${(key >>> 8) & 255}.${key & 255}`
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
