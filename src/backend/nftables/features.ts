// Finds out what nf_tables can do in this kernel, by trying it in transactions that leave nothing behind.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { EINVAL, EPERM } from '../../sys/errno.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import { writeElements } from '../../sys/netlink/nft/elements.ts'
import type { Expression } from '../../sys/netlink/nft/expressions.ts'
import { type Chain, TABLE_OWNER, TABLE_PERSIST } from '../../sys/netlink/nft/nft-types.ts'
import type { Nftables } from '../../sys/netlink/nft/nftables.ts'
import {
  beginBatch,
  endBatch,
  writeChain,
  writeNamedCounter,
  writeRule,
  writeSet,
  writeTable,
} from '../../sys/netlink/nft/write-objects.ts'
import { compile } from './commit/compile.ts'
import { declareSet, SetCodec } from './commit/set-codec.ts'
import type { ChainHook, NftSetShape, Statement } from './entries.ts'
import { addressKey } from './rules.ts'

export interface NftablesFeatures {
  /** A table can have an owner: no other process can flush it (Linux 5.12). */
  readonly owner: boolean
  /** An owned table can outlive its owner; without that, owning it is of no use (Linux 6.9). */
  readonly persist: boolean
  /** The kernel can delete an object without an error if it does not exist (Linux 6.3). */
  readonly destroy: boolean
  /** The slots of a map can count (Linux 5.7 with CONFIG_NFT_COUNTER). */
  readonly counters: boolean
}

const probe = 'sluice-probe'

/** Tries the kernel once per family, and once for what does not depend on the family. */
export class FeatureProbe {
  readonly #tried = new Set<Family>()
  #found: NftablesFeatures | undefined

  /** Throws a ProxyError that says what is missing if the mode cannot work on this kernel. */
  async find(nft: Nftables, family: Family): Promise<NftablesFeatures> {
    if (!this.#tried.has(family)) await tryRequired(nft, family)
    this.#tried.add(family)
    this.#found ??= await findTableFeatures(nft)
    return this.#found
  }
}

async function tryRequired(nft: Nftables, family: Family): Promise<void> {
  const parts = new Map<number, string>()
  const refused = new Set<number>()
  const failures = await tryCommit(nft, (writer) => writeRequired(writer, family, { parts, refused }))
  const failure = failures.find(({ sequence, errno }) => !(errno === EINVAL && refused.has(sequence)))
  if (failure !== undefined) {
    const part = parts.get(failure.sequence)
    const missing =
      failure.errno === EPERM
        ? 'CAP_NET_ADMIN is missing: nftables mode must run as root or with that capability'
        : `this kernel cannot do nftables mode: it has no ${part ?? 'nf_tables with NAT'} (Linux 5.13 has it)`
    throw new ProxyError('nftables', missing, { cause: nft.failure('try the kernel', failure) })
  }
}

/** Finds out what a table can be in this kernel, in every family. A transaction takes the kernel up to tens of milliseconds. */
async function findTableFeatures(nft: Nftables): Promise<NftablesFeatures> {
  const table = { family: 4, name: probe } as const
  const withFlags = (flags: number) => (writer: MessageWriter) => {
    writeTable(writer, { ...table, flags })
    writeTable(writer, table, 'delete')
  }
  const works = async (write: (writer: MessageWriter) => void) => (await tryCommit(nft, write)).length === 0
  const persist = await works(withFlags(TABLE_OWNER | TABLE_PERSIST))
  return {
    persist,
    owner: persist || (await works(withFlags(TABLE_OWNER))),
    destroy: await works((writer) => writeTable(writer, table, 'destroy')),
    counters: await works((writer) => writeCounting(writer, table.family)),
  }
}

interface Tried {
  /** What each message tries. */
  readonly parts: Map<number, string>
  /** The messages that the kernel must refuse as invalid. */
  readonly refused: Set<number>
}

/** Makes and deletes a table with one object of every kind that our table has. The kernel refuses the transaction as a whole. */
function writeRequired(writer: MessageWriter, family: Family, { parts, refused }: Tried): void {
  const names = { family, table: probe }
  writeTable(writer, { family, name: probe })
  const chains: readonly Chain['base'][] = [
    { type: 'nat', hook: 'prerouting', priority: -100 },
    { type: 'nat', hook: 'postrouting', priority: 100 },
    { type: 'filter', hook: 'input', priority: 0 },
  ]
  for (const base of chains) {
    if (base !== undefined) parts.set(writeChain(writer, { ...names, name: base.hook, base }), `${base.type} chains`)
  }
  const sets: readonly (readonly [string, NftSetShape])[] = [
    ['slots', 'address . protocol . port . slot : address . port'],
    ['clients', 'affinity'],
    ['ranges', 'address . protocol . port . range'],
  ]
  for (const [i, [name, shape]] of sets.entries()) {
    const declared = declareSet({ name, shape, comment: '', timeoutSeconds: 1 }, family, false)
    parts.set(writeSet(writer, { ...names, name, id: i + 1, ...declared }), `sets of the shape ${shape}`)
  }
  for (const [name, chain, statement] of optional) {
    const expressions = compile(statement, family, 0)
    const isTracking = tracking.has(statement.kind)
    const rule = { ...names, chain, expressions: isTracking ? [...expressions, invalid] : expressions }
    const sequence = writeRule(writer, rule)
    parts.set(sequence, name)
    if (isTracking) refused.add(sequence)
  }
  writeTable(writer, { family, name: probe }, 'delete')
}

/** Makes and deletes a table with a map whose elements count, a rule that counts, and a named counter. */
function writeCounting(writer: MessageWriter, family: Family): void {
  const names = { family, table: probe }
  const [name, shape] = ['slots', 'protocol . port . slot : address . port'] as const
  writeTable(writer, { family, name: probe })
  writeSet(writer, { ...names, name, id: 1, ...declareSet({ name, shape, comment: '' }, family, true) })
  writeNamedCounter(writer, { ...names, name: 'probe', packets: 1, comment: 'probe' })
  writeChain(writer, { ...names, name: 'probe' })
  writeRule(writer, { ...names, chain: 'probe', expressions: [{ expression: 'counter', packets: 1 }] })
  const codec = new SetCodec(shape, family)
  const element = { key: Buffer.alloc(codec.keyLength), data: Buffer.alloc(codec.endpointLength), packets: 1 }
  writeElements(writer, { ...names, set: name, elements: [element] })
  writeTable(writer, { family, name: probe }, 'delete')
}

/**
 * Statements that switch connection tracking on as soon as the kernel makes them, whatever becomes of the transaction. A connection that
 * is tracked before our rules translate is never translated. So the rules that try these statements end with an invalid expression: the
 * kernel looks up all expressions of a rule (ENOENT if one is missing) and refuses the invalid one (EINVAL) before it makes the first.
 */
const tracking: ReadonlySet<Statement['kind']> = new Set(['ct-new', 'dnat-map', 'masquerade'])

/** A comparison with nothing. */
const invalid: Expression = { expression: 'cmp', sreg: 1, op: 'eq', data: new Uint8Array(0) }

/** Parts that a kernel with nf_tables may lack. */
const optional: readonly (readonly [name: string, chain: ChainHook, statement: Statement])[] = [
  ['connection tracking in rules (CONFIG_NFT_CT)', 'input', { kind: 'ct-new' }],
  [
    'look-up of routes in rules (CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6)',
    'prerouting',
    { kind: 'address-type-local', field: 'saddr' },
  ],
  [
    'choice at random (CONFIG_NFT_NUMGEN) or DNAT by a map (CONFIG_NFT_NAT)',
    'prerouting',
    { kind: 'dnat-map', fields: addressKey, count: 2, offset: 0, set: 'slots' },
  ],
  ['sets that rules fill', 'prerouting', { kind: 'remember', set: 'clients', timeoutSeconds: 1 }],
  ['masquerading (CONFIG_NFT_MASQ)', 'postrouting', { kind: 'masquerade' }],
  ['reject (CONFIG_NFT_REJECT)', 'input', { kind: 'reject' }],
]

/**
 * For tests: if `SLUICE_NFT_FEATURES` is set, only the features that it names are used (`owner,persist`; empty means none). The code
 * for older kernels can then be tested on a newer one.
 */
export function restrictFeatures(found: NftablesFeatures, names = process.env.SLUICE_NFT_FEATURES): NftablesFeatures {
  if (names === undefined) return found
  const allowed = new Set(names.split(','))
  return {
    owner: found.owner && allowed.has('owner'),
    persist: found.persist && allowed.has('persist'),
    destroy: found.destroy && allowed.has('destroy'),
    counters: found.counters && allowed.has('counters'),
  }
}

/** Returns the failures; none if the kernel committed the transaction. */
async function tryCommit(nft: Nftables, write: (writer: MessageWriter) => void) {
  const writer = new MessageWriter()
  beginBatch(writer)
  write(writer)
  const { failures } = await nft.commit(writer, endBatch(writer))
  return failures
}
