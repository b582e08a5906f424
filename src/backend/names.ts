// Makes the stable hashed names of per-service objects, the same names that kube-proxy gives them. Pure.

import { hash } from 'node:crypto'
import type { Endpoint, ServicePort } from '../model/types.ts'

const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** The two characters for every value of ten bits: a full sync makes 100,000 names. */
const pairs = Array.from({ length: 1024 }, (_, bits) => `${alphabet[bits >> 5]}${alphabet[bits & 31]}`)

/** Returns the first `length` characters of the SHA-256 in RFC 4648 base32. `length` is even. */
export function hash32(text: string, length: number): string {
  // A binary string costs half of what a buffer does.
  const bytes = hash('sha256', text, 'binary')
  let out = ''
  for (let bit = 0; out.length < length; bit += 10) {
    const at = bit >> 3
    const window = (bytes.charCodeAt(at) << 16) | (bytes.charCodeAt(at + 1) << 8) | bytes.charCodeAt(at + 2)
    out += pairs[(window >> (14 - (bit & 7))) & 1023]
  }
  return out
}

/** What follows the prefix in the names of a service port's iptables chains. */
export const iptablesHash = (port: ServicePort): string => hash32(`${port.name}${port.protocol}`, 16)

/** What follows `KUBE-SEP-` in the name of an endpoint's chain. `address` is `ip:port`. */
export const iptablesEndpointHash = (port: ServicePort, address: string): string =>
  hash32(`${port.name}${port.protocol}${address}`, 16)

/** What follows the prefix in the names of a service port's nftables chains. */
export const nftServiceBase = (port: ServicePort): string =>
  nftBase(`${port.service}/${port.protocol}/${port.portName}`)

/** What follows the prefix in the names of an endpoint's chain and affinity set. */
export const nftEndpointBase = (port: ServicePort, endpoint: Endpoint): string =>
  nftBase(`${port.service}/${port.protocol}/${port.portName}__${endpoint.ip.replaceAll(':', '.')}/${endpoint.port}`)

/** The kernel limits names to 256 bytes with the prefix. The hash at the beginning keeps truncated names unique. */
function nftBase(text: string): string {
  const name = `${hash32(text, 8)}-${text}`
  return name.length > 240 ? `${name.slice(0, 237)}...` : name
}
