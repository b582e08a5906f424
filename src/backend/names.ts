// Stable hashed names of per-service objects, the same that kube-proxy gives them.

import { hash } from 'node:crypto'
import type { Endpoint, ServicePort } from '../model/types.ts'

const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** Two characters for every ten bits: 100,000 names are made at a time. */
const pairs = Array.from({ length: 1024 }, (_, bits) => `${alphabet[bits >> 5]}${alphabet[bits & 31]}`)

/** The first `length` characters, an even number, of RFC 4648 base32 of SHA-256. */
export function hash32(text: string, length: number): string {
  // As characters, which cost half of what a buffer does.
  const bytes = hash('sha256', text, 'binary')
  let out = ''
  for (let bit = 0; out.length < length; bit += 10) {
    const at = bit >> 3
    const window = (bytes.charCodeAt(at) << 16) | (bytes.charCodeAt(at + 1) << 8) | bytes.charCodeAt(at + 2)
    out += pairs[(window >> (14 - (bit & 7))) & 1023]
  }
  return out
}

/** What iptables chains of a service port share after their prefix. */
export const iptablesHash = (port: ServicePort): string => hash32(`${port.name}${port.protocol}`, 16)

/** What follows `KUBE-SEP-` in the name of an endpoint's chain. `address` is `ip:port`. */
export const iptablesEndpointHash = (port: ServicePort, address: string): string =>
  hash32(`${port.name}${port.protocol}${address}`, 16)

/** What nftables chains of a service port share after their prefix. */
export const nftServiceBase = (port: ServicePort): string =>
  nftBase(`${port.service}/${port.protocol}/${port.portName}`)

/** What the chain and the affinity set of one endpoint of a service port share. */
export const nftEndpointBase = (port: ServicePort, endpoint: Endpoint): string =>
  nftBase(`${port.service}/${port.protocol}/${port.portName}__${endpoint.ip.replaceAll(':', '.')}/${endpoint.port}`)

/** Kernel names end at 256 bytes with a prefix; the hash in front keeps cut names apart. */
function nftBase(text: string): string {
  const name = `${hash32(text, 8)}-${text}`
  return name.length > 240 ? `${name.slice(0, 237)}...` : name
}
