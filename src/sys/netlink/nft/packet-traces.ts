// Follows marked packets through nf_tables: a temporary table marks them, and the kernel reports every rule that decides about them.
//
// The table belongs to the socket that made it. When this process ends, in whatever way, the kernel removes the table (Linux 5.12).

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import { IPS_DST_NAT } from '../../conntrack/conntrack-tuple.ts'
import { AddressCache, addressBytes } from '../address-codec.ts'
import { AttributeReader, littleEndian, type MessageReader } from '../message.ts'
import { MessageWriter } from '../message-writer.ts'
import { subscribe } from '../subscribe.ts'
import { NFTA_VERDICT } from './attributes.ts'
import type { Expression } from './expressions.ts'
import { type Hook, TABLE_OWNER } from './nft-types.ts'
import { Nftables } from './nftables.ts'
import { beginBatch, endBatch, writeChain, writeRule, writeTable } from './write-objects.ts'

const NFNLGRP_NFTRACE = 9
const NFT_MSG_TRACE = (10 << 8) | 17
const NFTA_TRACE = {
  TABLE: 1,
  CHAIN: 2,
  RULE_HANDLE: 3,
  TYPE: 4,
  VERDICT: 5,
  ID: 6,
  NETWORK_HEADER: 8,
  TRANSPORT_HEADER: 9,
  NFPROTO: 15,
  POLICY: 16,
} as const
/** NFT_TRACETYPE_*. */
const kinds = ['', 'policy', 'return', 'rule'] as const
const NF_CT_STATE_NEW = 8
const verdictNames: ReadonlyMap<number, TraceVerdict> = new Map([
  [0, 'drop'],
  [1, 'accept'],
  [-1, 'continue'],
  [-3, 'jump'],
  [-4, 'goto'],
  [-5, 'return'],
])

type TraceVerdict = 'drop' | 'accept' | 'continue' | 'jump' | 'goto' | 'return'

/** What one rule, or the policy of a chain, decided about a packet. */
export interface TraceEvent {
  /** The same for all events of a packet. */
  readonly id: number
  readonly kind: 'policy' | 'return' | 'rule'
  /** `ip kube-proxy`. */
  readonly table: string
  readonly chain: string
  /** 0 for a policy. */
  readonly handle: number
  readonly verdict: TraceVerdict
  /** The chain of a jump; '' otherwise. */
  readonly target: string
  /** The packet as it is here; only the first event of each hook has it. */
  readonly packet: TracedHeader | undefined
}

export interface TracedHeader {
  readonly family: Family
  /** The IP protocol number. */
  readonly protocol: number
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
}

/** New connections that are marked. An absent field matches every packet. */
export interface MarkRule {
  readonly family: Family
  readonly hook: Hook
  readonly priority: number
  /** Marked packets per second, at most. */
  readonly perSecond: number
  /** Only packets whose destination is not translated. */
  readonly untranslated?: boolean
  readonly source?: string
  readonly destination?: string
  readonly protocol?: number
  readonly destinationPort?: number
}

export interface TraceListener {
  event(event: TraceEvent): void
  lost(reason: string): void
}

/** Marks packets until it is closed. Throws a ProxyError if this kernel cannot own a table. */
export async function tracePackets(
  name: string,
  rules: readonly MarkRule[],
  listener: TraceListener,
): Promise<{ close(): void }> {
  const addresses = new AddressCache()
  const reader = new AttributeReader()
  const options = { protocol: 'netfilter', purpose: 'packet traces', receiveBufferBytes: 4 << 20 } as const
  const read = (message: MessageReader) => {
    const event = message.type === NFT_MSG_TRACE ? decodeTrace(message, reader, addresses) : undefined
    if (event !== undefined) listener.event(event)
  }
  const subscription = subscribe(options, [NFNLGRP_NFTRACE], { message: read, lost: (why) => listener.lost(why) })
  const nft = new Nftables()
  try {
    await writeMarks(nft, name, rules)
  } catch (error) {
    nft.close()
    subscription.close()
    throw error
  }
  return {
    close() {
      nft.close()
      subscription.close()
    },
  }
}

async function writeMarks(nft: Nftables, name: string, rules: readonly MarkRule[]): Promise<void> {
  const writer = new MessageWriter()
  beginBatch(writer)
  const comment = 'temporary: marks packets for sluice flows and sluice trace'
  for (const family of new Set(rules.map((rule) => rule.family))) {
    writeTable(writer, { family, name, flags: TABLE_OWNER, comment })
  }
  const made = new Set<string>()
  for (const rule of rules) {
    const chain = `${rule.hook}${rule.priority}`
    const place = { family: rule.family, table: name }
    if (!made.has(`${rule.family} ${chain}`)) {
      const { hook, priority } = rule
      writeChain(writer, { ...place, name: chain, base: { type: 'filter', hook, priority, policy: 'accept' } })
      made.add(`${rule.family} ${chain}`)
    }
    writeRule(writer, { ...place, chain, expressions: markExpressions(rule) })
  }
  const { failures } = await nft.commit(writer, endBatch(writer))
  const [failure] = failures
  if (failure === undefined) return
  const message = 'this kernel cannot trace packets with a table that goes away by itself (Linux 5.12 can)'
  throw new ProxyError('question', message, { cause: nft.failure('mark packets', failure) })
}

function markExpressions(rule: MarkRule): readonly Expression[] {
  const network = rule.family === 4 ? { source: 12, destination: 16 } : { source: 8, destination: 24 }
  const expressions: Expression[] = [...matchBits('state', NF_CT_STATE_NEW, 'ne')]
  if (rule.untranslated === true) expressions.push(...matchBits('status', IPS_DST_NAT, 'eq'))
  for (const field of ['source', 'destination'] as const) {
    const ip = rule[field]
    if (ip !== undefined) expressions.push(...matchPayload('network', network[field], addressBytes(ip)))
  }
  if (rule.protocol !== undefined) {
    expressions.push({ expression: 'meta', key: 'l4proto', dreg: 1 }, equal(Uint8Array.of(rule.protocol)))
  }
  const port = rule.destinationPort
  if (port !== undefined) expressions.push(...matchPayload('transport', 2, Uint8Array.of(port >> 8, port & 0xff)))
  return [
    ...expressions,
    { expression: 'limit', perSecond: rule.perSecond, burst: rule.perSecond },
    { expression: 'immediate', dreg: 1, data: Uint8Array.of(1) },
    { expression: 'meta set', key: 'nftrace', sreg: 1 },
  ]
}

const equal = (data: Uint8Array): Expression => ({ expression: 'cmp', sreg: 1, op: 'eq', data })

const matchPayload = (base: 'network' | 'transport', offset: number, data: Uint8Array): readonly Expression[] => [
  { expression: 'payload', dreg: 1, base, offset, length: data.length },
  equal(data),
]

function matchBits(key: 'state' | 'status', bits: number, op: 'eq' | 'ne'): readonly Expression[] {
  const zero = new Uint8Array(4)
  const mask = littleEndian ? Uint8Array.of(bits, 0, 0, 0) : Uint8Array.of(0, 0, 0, bits)
  return [
    { expression: 'ct', key, dreg: 1 },
    { expression: 'bitwise', sreg: 1, dreg: 1, mask, xor: zero },
    { expression: 'cmp', sreg: 1, op, data: zero },
  ]
}

/** The parts of an event while it is read. */
interface FoundTrace {
  id: number
  table: string
  chain: string
  handle: number
  type: number
  code: number
  target: string
  policy: number
  family: number
  network: Buffer | undefined
  transport: Buffer | undefined
}

const readers: Readonly<Record<number, (reader: AttributeReader, found: FoundTrace) => void>> = {
  [NFTA_TRACE.TABLE]: (reader, found) => {
    found.table = reader.text()
  },
  [NFTA_TRACE.CHAIN]: (reader, found) => {
    found.chain = reader.text()
  },
  [NFTA_TRACE.RULE_HANDLE]: (reader, found) => {
    found.handle = reader.u64()
  },
  [NFTA_TRACE.TYPE]: (reader, found) => {
    found.type = reader.u32()
  },
  [NFTA_TRACE.ID]: (reader, found) => {
    found.id = reader.u32()
  },
  [NFTA_TRACE.POLICY]: (reader, found) => {
    found.policy = reader.u32()
  },
  [NFTA_TRACE.NFPROTO]: (reader, found) => {
    found.family = reader.u32()
  },
  [NFTA_TRACE.NETWORK_HEADER]: (reader, found) => {
    found.network = reader.raw()
  },
  [NFTA_TRACE.TRANSPORT_HEADER]: (reader, found) => {
    found.transport = reader.raw()
  },
  [NFTA_TRACE.VERDICT]: (reader, found) => {
    reader.enter()
    while (reader.next()) {
      if (reader.type === NFTA_VERDICT.CODE) found.code = reader.i32()
      else if (reader.type === NFTA_VERDICT.CHAIN) found.target = reader.text()
    }
    reader.leave()
  },
}

const familyNames: ReadonlyMap<number, string> = new Map([
  [1, 'inet'],
  [2, 'ip'],
  [5, 'netdev'],
  [7, 'bridge'],
  [10, 'ip6'],
])

function decodeTrace(message: MessageReader, reader: AttributeReader, addresses: AddressCache): TraceEvent | undefined {
  const found: FoundTrace = {
    ...{ id: 0, table: '', chain: '', handle: 0, type: 0, code: 1, target: '', policy: 1, family: 0 },
    ...{ network: undefined, transport: undefined },
  }
  message.attributes(4, reader)
  while (reader.next()) readers[reader.type]?.(reader, found)
  const kind = kinds[found.type] ?? ''
  if (reader.error !== undefined || kind === '') return undefined
  const code = kind === 'policy' ? found.policy : found.code
  const familyName = familyNames.get(message.bytes[message.start] ?? 0) ?? 'unknown'
  return {
    id: found.id,
    kind,
    table: `${familyName} ${found.table}`,
    chain: found.chain,
    handle: found.handle,
    verdict: verdictNames.get(code) ?? 'accept',
    target: found.target,
    packet: decodeHeader(found, addresses),
  }
}

/** Undefined without headers, and for fragments and IPv6 extension headers. */
function decodeHeader({ network, transport }: FoundTrace, addresses: AddressCache): TracedHeader | undefined {
  if (network === undefined || transport === undefined || transport.length < 4) return undefined
  const family = (network[0] ?? 0) >> 4
  if ((family !== 4 && family !== 6) || network.length < (family === 4 ? 20 : 40)) return undefined
  const [source, destination] = family === 4 ? [12, 16] : [8, 24]
  return {
    family,
    protocol: network[family === 4 ? 9 : 6] as number,
    source: addresses.text(family, network, source),
    sourcePort: transport.readUInt16BE(0),
    destination: addresses.text(family, network, destination),
    destinationPort: transport.readUInt16BE(2),
  }
}
