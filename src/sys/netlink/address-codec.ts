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

/** Writes the bytes of an address, 4 or 16 by its spelling; throws if it is none. */
export function putAddress(bytes: Uint8Array, at: number, ip: string): void {
  if (!ip.includes(':')) putIpv4(bytes, at, ip)
  else bytes.set(ipv6Bytes(ip), at)
}

/** 4 bytes, or 16 for what is spelled as IPv6. */
export function addressBytes(ip: string): Uint8Array {
  if (ip.includes(':')) return ipv6Bytes(ip)
  const bytes = new Uint8Array(4)
  putIpv4(bytes, 0, ip)
  return bytes
}

/** `parseIp` takes a mapped IPv4 address for IPv4; on the wire it is not. */
function ipv6Bytes(ip: string): Uint8Array {
  const bytes = parseIp(ip)
  if (bytes === undefined) throw new TypeError(`no IP address: ${ip}`)
  return bytes.length === 16 ? bytes : Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ...bytes)
}

/** Character by character: a cold start packs hundreds of thousands of addresses. */
function putIpv4(bytes: Uint8Array, at: number, ip: string): void {
  let value = 0
  let digits = 0
  let parts = 0
  for (let i = 0; i <= ip.length; i++) {
    const code = i === ip.length ? 46 : ip.charCodeAt(i)
    if (code >= 48 && code <= 57) {
      value = value * 10 + code - 48
      digits++
    } else if (code === 46 && digits > 0 && digits < 4 && value < 256 && parts < 4) {
      bytes[at + parts++] = value
      value = digits = 0
    } else throw new TypeError(`no IP address: ${ip}`)
  }
  if (parts !== 4) throw new TypeError(`no IP address: ${ip}`)
}
