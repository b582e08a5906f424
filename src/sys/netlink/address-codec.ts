// Converts addresses between netlink's bytes and canonical text, with a cache for addresses that occur many times in a dump. Pure.

import { type Family, formatIp, parseIp } from '../../lib/ip.ts'
import { u32At } from './message.ts'

/** A dump of a million flows contains few services and endpoints, and each client many times. */
const maxCached = 65_536

export class AddressCache {
  readonly #ipv4 = new Map<number, string>()
  readonly #ipv6 = new Map<string, string>()

  text(family: Family, bytes: Buffer, at: number): string {
    return family === 4 ? this.ipv4(bytes, at) : this.ipv6(bytes, at)
  }

  ipv4(bytes: Buffer, at: number): string {
    // A map is twice as fast with small integers as keys.
    const key = u32At(bytes, at) | 0
    const known = this.#ipv4.get(key)
    if (known !== undefined) return known
    const text = `${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`
    if (this.#ipv4.size >= maxCached) this.#ipv4.clear()
    this.#ipv4.set(key, text)
    return text
  }

  ipv6(bytes: Buffer, at: number): string {
    const key = bytes.toString('latin1', at, at + 16)
    const known = this.#ipv6.get(key)
    if (known !== undefined) return known
    const text = formatIp(bytes.subarray(at, at + 16))
    if (this.#ipv6.size >= maxCached) this.#ipv6.clear()
    this.#ipv6.set(key, text)
    return text
  }
}

/** Returns 4 bytes, or 16 for an address in the notation of IPv6. Throws if the address is not valid. */
export const addressBytes = (ip: string): Uint8Array => (ip.includes(':') ? ipv6Bytes(ip) : ipv4Bytes(ip))

/** `parseIp` returns 4 bytes for a mapped IPv4 address, but netlink expects 16. */
function ipv6Bytes(ip: string): Uint8Array {
  const bytes = parseIp(ip)
  if (bytes === undefined) throw notAnAddress(ip)
  return bytes.length === 16 ? bytes : Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ...bytes)
}

const [dot, zero, nine] = [0x2e, 0x30, 0x39]

/** Parses character by character: a cold start encodes hundreds of thousands of addresses. */
function ipv4Bytes(ip: string): Uint8Array {
  const bytes = new Uint8Array(4)
  let value = 0
  let digits = 0
  let parts = 0
  for (let i = 0; i <= ip.length; i++) {
    const code = i === ip.length ? dot : ip.charCodeAt(i)
    if (code >= zero && code <= nine) {
      value = value * 10 + code - zero
      digits++
    } else if (code === dot && digits > 0 && digits < 4 && value < 256 && parts < 4) {
      bytes[parts++] = value
      value = digits = 0
    } else throw notAnAddress(ip)
  }
  if (parts !== 4) throw notAnAddress(ip)
  return bytes
}

const notAnAddress = (ip: string): TypeError => new TypeError(`${ip} is not a valid IP address`)
