// Finds out what nf_tables can do in this kernel, by trying it in transactions that leave nothing behind.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { EINVAL, EPERM } from '../../sys/errno.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import type { Expression } from '../../sys/netlink/nft/expressions.ts'
import { type Chain, TABLE_OWNER, TABLE_PERSIST } from '../../sys/netlink/nft/nft-types.ts'
import type { Nftables } from '../../sys/netlink/nft/nftables.ts'
import {
  beginBatch,
  endBatch,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../sys/netlink/nft/write-objects.ts'
import { compile } from './commit/compile.ts'
import { declareSet } from './commit/set-codec.ts'
import type { ChainHook, NftSetShape, Statement } from './entries.ts'
import { addressKey } from './rules.ts'

export interface NftablesFeatures {
  /** A table can have an owner: no other process can flush it (Linux 5.12). */
  readonly owner: boolean
  /** An owned table can outlive its owner; without that, owning it is of no use (Linux 6.9). */
  readonly persist: boolean
  /** The kernel can delete an object without an error if it does not exist (Linux 6.3). */
  readonly destroy: boolean
}

const probe = 'sluice-probe'

/** Throws a ProxyError that says what is missing if the mode cannot work on this kernel. */
export async function findFeatures(nft: Nftables, family: Family): Promise<NftablesFeatures> {
  const table = { family, name: probe }
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
  const withFlags = (flags: number) => (writer: MessageWriter) => {
    writeTable(writer, { ...table, flags })
    writeTable(writer, table, 'delete')
  }
  const works = async (write: (writer: MessageWriter) => void) => (await tryCommit(nft, write)).length === 0
  return {
    owner: await works(withFlags(TABLE_OWNER)),
    persist: await works(withFlags(TABLE_OWNER | TABLE_PERSIST)),
    destroy: await works((writer) => writeTable(writer, table, 'destroy')),
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
    const declared = declareSet({ name, shape, comment: '', timeoutSeconds: 1 }, family)
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
