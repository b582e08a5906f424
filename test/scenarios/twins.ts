// Makes twins: the same scenario in IPv6, and with UDP instead of TCP, from the values of the file before they are expanded.

import { canonicalIp, parseIp } from '../../src/lib/ip.ts'

/** Any JSON value of a scenario file. */
export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json }

const ipv4 = String.raw`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`
// An address is alone, part of a CIDR, followed by a port, or followed by words (endpoints).
const addressText = new RegExp(String.raw`^(${ipv4})(?:/(\d{1,2}))?(?::(\d+)(/[a-z]+)?)?((?: .*)?)$`)

/** Prefix lengths have a twin only if the mapped prefix contains exactly the mapped addresses. */
const prefixTwins: Readonly<Record<number, number>> = { 0: 0, 1: 1, 8: 32, 16: 48, 24: 64, 25: 120, 32: 128 }

/** Maps `a.b.c.d` to `fd00:a:b:c::d` and keeps the decimal digits as text: 172.30.0.41 becomes fd00:172:30::41. */
export function ipv6Twin(ip: string): string {
  if (ip.startsWith('127.')) return '::1'
  if (ip === '0.0.0.0') return '::'
  if (ip === '128.0.0.0') return '8000::'
  const [a, b, c, d] = ip.split('.').map(Number)
  return canonicalIp(`fd00:${a}:${b}:${c}::${d}`) as string
}

function ipv6CidrTwin(ip: string, bits: number): string {
  if (ip.startsWith('127.')) return '::1/128'
  const twin = prefixTwins[bits]
  if (twin === undefined) throw new Error(`/${bits} has no IPv6 twin; see test/scenarios/README.md`)
  return `${ipv6Twin(ip)}/${twin}`
}

/** Maps every address in the value to IPv6. */
export function toIpv6(value: Json): Json {
  if (typeof value === 'string') return textToIpv6(value)
  if (Array.isArray(value)) return value.map(toIpv6)
  if (value === null || typeof value !== 'object') return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toIpv6(inner)]))
}

function textToIpv6(text: string): string {
  const match = addressText.exec(text)
  if (match === null) return text
  const [, ip, bits, port, protocol, rest] = match as unknown as [string, string, string?, string?, string?, string?]
  if (bits !== undefined) return `${ipv6CidrTwin(ip, Number(bits))}${rest ?? ''}`
  if (port !== undefined) return `[${ipv6Twin(ip)}]:${port}${protocol ?? ''}${rest ?? ''}`
  return `${ipv6Twin(ip)}${rest ?? ''}`
}

/** Replaces `/tcp` by `/udp` in ports and destinations. */
export function toUdp(value: Json): Json {
  if (typeof value === 'string') return value.replace(/(\d)\/tcp\b/, '$1/udp')
  if (Array.isArray(value)) return value.map(toUdp)
  if (value === null || typeof value !== 'object') return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toUdp(inner)]))
}

/** The inverse of `ipv6Twin`; undefined if the address is not a twin. */
export function ipv4Twin(ip: string): string | undefined {
  const bytes = parseIp(ip)
  if (bytes === undefined || bytes.length !== 16 || bytes[0] !== 0xfd || bytes[1] !== 0) return undefined
  const parts = [2, 4, 6, 14].map((i) => (((bytes[i] as number) << 8) | (bytes[i + 1] as number)).toString(16))
  const text = parts.join('.')
  return ipv6Twin(text) === ip ? text : undefined
}
