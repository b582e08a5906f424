// The sets and maps we use as the kernel and nft see them: types, lengths, and the text of keys and values as bytes and back. Pure.

import { type Family, formatIp, hostPort, maskBytes, parseIp, splitHostPort } from '../../lib/ip.ts'
import { littleEndian } from '../../sys/netlink/message.ts'
import { SET_CONCATENATION, SET_DYNAMIC, SET_INTERVAL, SET_MAP, SET_TIMEOUT } from '../../sys/netlink/nft/types.ts'
import { describeSet, type Field } from '../../sys/netlink/nft/userdata.ts'
import { protocolNumbers } from './compile.ts'
import type { SetShape, SetSpec } from './entries.ts'

type Part = 'address' | 'protocol' | 'port' | 'slot' | 'range'

export interface Shape {
  readonly key: readonly Part[]
  /** undefined: a set. */
  readonly value: 'verdict' | 'endpoint' | undefined
  readonly keyLength: number
}

const parts = new Map<SetShape, Pick<Shape, 'key' | 'value'>>()

function partsOf(shape: SetShape): Pick<Shape, 'key' | 'value'> {
  let found = parts.get(shape)
  if (found === undefined) {
    const [key, value] = (shape === 'affinity' ? 'address' : shape).split(' : ') as [string, string | undefined]
    const kind = value === 'verdict' ? 'verdict' : value === undefined ? undefined : 'endpoint'
    found = { key: key.split(' . ') as Part[], value: kind }
    parts.set(shape, found)
  }
  return found
}

export function shapeOf(shape: SetShape, family: Family): Shape {
  const { key, value } = partsOf(shape)
  const width = family === 4 ? 4 : 16
  const length = (part: Part): number => (part === 'address' || part === 'range' ? width : 4)
  return { key, value, keyLength: key.reduce((sum, part) => sum + length(part), 0) }
}

/** As the kernel is told of it. Slots are declared by `typeof`: else nft could print the map but not read it back. */
export function declare(set: SetSpec, family: Family) {
  const { key, value } = partsOf(set.shape)
  const daddr = family === 4 ? 'ip daddr' : 'ip6 daddr'
  const fields: Readonly<Record<Part, Field>> = {
    address: daddr,
    range: family === 4 ? 'ip saddr' : 'ip6 saddr',
    protocol: 'meta l4proto',
    port: 'th dport',
    slot: { slots: 5 },
  }
  const ranges = key.includes('range')
  const { fieldLengths, ...described } = describeSet({
    key: key.map((part) => fields[part]),
    ...(value === undefined ? {} : { data: value === 'verdict' ? value : [daddr, 'th dport' as const] }),
    ...(set.comment === '' ? {} : { comment: set.comment }),
    byTypeof: key.includes('slot'),
  })
  const affinity = set.shape === 'affinity'
  const flags =
    (ranges ? SET_INTERVAL | SET_CONCATENATION : 0) |
    (value === undefined ? 0 : SET_MAP) |
    (affinity ? SET_TIMEOUT | SET_DYNAMIC : 0)
  return {
    ...described,
    flags,
    ...(ranges ? { fieldLengths } : {}),
    ...(affinity ? { size: affinityClients, timeoutMs: (set.timeoutSeconds ?? 0) * 1000 } : {}),
  }
}

/** As many clients as kube-proxy's sets have room for. */
const affinityClients = 65_535

// ---- Keys and values. ----

const protocolNames = new Map<number, string>(Object.entries(protocolNumbers).map(([name, number]) => [number, name]))

/** `10.96.0.1 tcp 443 3` to the bytes of a key; for a range its first key, or with `end` its last. */
export function encodeKey(shape: Shape, family: Family, text: string, end = false): Buffer {
  const bytes = Buffer.alloc(shape.keyLength)
  const words = text.split(' ')
  let at = 0
  for (const [i, part] of shape.key.entries()) {
    const word = words[i] as string
    if (part === 'address') {
      bytes.set(parseIp(word) as Uint8Array, at)
    } else if (part === 'range') {
      bytes.set(rangeEdge(word, end), at)
    } else if (part === 'protocol') {
      bytes[at] = protocolNumbers[word as keyof typeof protocolNumbers]
    } else if (part === 'port') {
      bytes.writeUInt16BE(Number(word), at)
    } else if (littleEndian) {
      bytes.writeUInt32LE(Number(word), at)
    } else {
      bytes.writeUInt32BE(Number(word), at)
    }
    at += (part === 'address' || part === 'range') && family === 6 ? 16 : 4
  }
  return bytes
}

/** The inverse; undefined if the bytes are not a key of ours. */
export function decodeKey(shape: Shape, family: Family, bytes: Buffer, last: Buffer | undefined): string | undefined {
  if (bytes.length !== shape.keyLength) return undefined
  const words: string[] = []
  const width = family === 4 ? 4 : 16
  let at = 0
  for (const part of shape.key) {
    if (part === 'address') words.push(formatIp(bytes.subarray(at, at + width)))
    else if (part === 'range') {
      const range = rangeText(bytes.subarray(at, at + width), (last ?? bytes).subarray(at, at + width))
      if (range === undefined) return undefined
      words.push(range)
    } else if (part === 'protocol') words.push(protocolNames.get(bytes[at] as number) ?? String(bytes[at]))
    else if (part === 'port') words.push(String(bytes.readUInt16BE(at)))
    else words.push(String(littleEndian ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at)))
    at += part === 'address' || part === 'range' ? width : 4
  }
  return words.join(' ')
}

/** `ip:port` as map data. */
export function encodeEndpoint(family: Family, text: string): Buffer {
  const { host, port } = splitHostPort(text) as { host: string; port: number }
  const width = family === 4 ? 4 : 16
  const bytes = Buffer.alloc(width + 4)
  bytes.set(parseIp(host) as Uint8Array, 0)
  bytes.writeUInt16BE(port, width)
  return bytes
}

export function decodeEndpoint(family: Family, bytes: Buffer): string | undefined {
  const width = family === 4 ? 4 : 16
  return bytes.length < width + 2 ? undefined : hostPort(formatIp(bytes.subarray(0, width)), bytes.readUInt16BE(width))
}

function rangeEdge(cidr: string, end: boolean): Uint8Array {
  const slash = cidr.indexOf('/')
  const bits = Number(cidr.slice(slash + 1))
  const first = maskBytes(parseIp(cidr.slice(0, slash)) as Uint8Array, bits)
  return end ? first.map((byte, i) => byte | (0xff >> Math.min(8, Math.max(0, bits - 8 * i)))) : first
}

function rangeText(first: Buffer, last: Buffer): string | undefined {
  let bits = 0
  for (let i = 0; i < first.length; i++) {
    const differing = Math.clz32((first[i] as number) ^ (last[i] as number)) - 24
    bits += differing
    if (differing < 8) break
  }
  const text = `${formatIp(first)}/${bits}`
  return Buffer.from(rangeEdge(text, true)).equals(last) ? text : undefined
}
