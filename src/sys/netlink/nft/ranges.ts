// Address ranges as nf_tables wants them in interval sets: sorted and disjoint, for it refuses what overlaps. Pure.

import { type Cidr, formatIp, maskBytes, parseCidr, parseIp } from '../../../lib/ip.ts'
import type { Element } from './nft-types.ts'

/** Both ends belong to it; canonical. */
export interface Range {
  readonly first: string
  readonly last: string
}

/** The fewest ranges that cover exactly these CIDRs and addresses, all of one family, in order. */
export function mergeRanges(cidrs: readonly string[]): Range[] {
  const bounds = cidrs.map(boundsOf).sort((a, b) => (a.first < b.first ? -1 : a.first > b.first ? 1 : 0))
  const merged: { first: bigint; last: bigint; size: number }[] = []
  for (const next of bounds) {
    const before = merged.at(-1)
    if (before === undefined || next.first > before.last + 1n) merged.push({ ...next })
    else if (next.last > before.last) before.last = next.last
  }
  return merged.map(({ first, last, size }) => ({ first: format(first, size), last: format(last, size) }))
}

/** Elements of an interval set with a simple key: where each range begins, and where the next address is not in it any more. */
export function intervalElements(ranges: readonly Range[]): Element[] {
  return ranges.flatMap(({ first, last }): Element[] => {
    const start = { key: bytesOf(first) }
    const end = bytesOf(last)
    // A range up to the last address there is has no end.
    if (end.every((byte) => byte === 0xff)) return [start]
    return [start, { key: toBytes(toNumber(end) + 1n, end.length), intervalEnd: true }]
  })
}

function boundsOf(text: string): { first: bigint; last: bigint; size: number } {
  const cidr: Cidr | undefined = text.includes('/')
    ? parseCidr(text)
    : parseCidr(`${text}/${text.includes(':') ? 128 : 32}`)
  if (cidr === undefined) throw new TypeError(`no CIDR: ${text}`)
  const bytes = bytesOf(cidr.ip)
  const host = maskBytes(new Uint8Array(bytes.length).fill(0xff), cidr.bits).map((byte) => ~byte & 0xff)
  const first = toNumber(bytes)
  return { first, last: first | toNumber(host), size: bytes.length }
}

function bytesOf(ip: string): Uint8Array {
  const bytes = parseIp(ip)
  if (bytes === undefined) throw new TypeError(`no IP address: ${ip}`)
  return bytes
}

const toNumber = (bytes: Uint8Array): bigint => bytes.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n)

function toBytes(number: bigint, size: number): Uint8Array {
  return Uint8Array.from({ length: size }, (_, i) => Number((number >> BigInt(8 * (size - 1 - i))) & 0xffn))
}

const format = (number: bigint, size: number): string => formatIp(toBytes(number, size))
