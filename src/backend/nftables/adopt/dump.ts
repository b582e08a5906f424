// Reads from the kernel: our table as it is, which recognise.ts interprets, and the clients that affinity sets remember.

import { type Family, formatIp } from '../../../lib/ip.ts'
import type { Chain, Element, NftSet } from '../../../sys/netlink/nft/nft-types.ts'
import type { NftablesSocket } from '../../../sys/netlink/nft/nftables.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import { tableName } from '../base.ts'
import { SetCodec } from '../commit/set-codec.ts'
import type { AffinityClients } from '../commit/table-writer.ts'
import type { NftSetSpec } from '../entries.ts'
import { type ExpectedTable, isAffinitySet } from './expected.ts'

export interface TableDump {
  readonly chains: readonly Chain[]
  readonly rules: readonly ListedRule[]
  readonly sets: readonly NftSet[]
  /** Members by set, without those of sets that we do not know. Undefined stands for a member that we would never write. */
  readonly members: ReadonlyMap<string, readonly (SetMember | undefined)[]>
}

/** An element as text. It is made while the dump is read, because there are very many elements. */
export interface SetMember {
  /** The key without the slot. */
  readonly key: string
  /** -1 if the set has no slots. */
  readonly slot: number
  /** The endpoint of a slot; otherwise the digest of the element's entry. */
  readonly value: string
}

export async function dumpTable(
  nft: NftablesSocket,
  { node, sets: known }: ExpectedTable,
  signal: AbortSignal,
): Promise<TableDump> {
  const { family } = node
  const sets = await nft.sets(family, tableName, { signal })
  const members = new Map<string, readonly (SetMember | undefined)[]>()
  for (const { name } of sets) {
    const spec = known.get(name)
    if (spec === undefined) continue
    const decode = memberDecoder(spec, family)
    members.set(name, await nft.elements({ family, table: tableName, set: name }, decode, { signal }))
  }
  const chains = await nft.chains(family, tableName, { signal })
  return { sets, members, chains, rules: await nft.rules(family, tableName, { signal }) }
}

/** Returns undefined for a key that we would never write, such as a range that is not a CIDR. */
function memberDecoder({ shape }: NftSetSpec, family: Family): (element: Element) => SetMember | undefined {
  const codec = new SetCodec(shape, family)
  return ({ key: keyBytes, keyEnd, data, comment }) => {
    const bytes = asBuffer(keyBytes)
    const key = codec.readKey(bytes, keyEnd === undefined ? bytes : asBuffer(keyEnd))
    if (key === undefined) return undefined
    if (codec.value === 'endpoint') {
      const endpoint = data instanceof Uint8Array ? codec.readEndpoint(asBuffer(data)) : undefined
      return { key, slot: codec.readSlot(bytes), value: endpoint ?? '' }
    }
    const value = describeVerdict(data)
    return { key, slot: -1, value: comment === undefined ? value : `${value} # ${comment}` }
  }
}

function describeVerdict(data: Element['data']): string {
  if (data === undefined || data instanceof Uint8Array) return ''
  return 'chain' in data ? `goto ${data.chain}` : data.verdict
}

/** The same bytes as a Buffer. */
const asBuffer = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)

/** Reads the clients that affinity sets remember, so that they keep their endpoints when the table is exchanged. Packets add more meanwhile. */
export async function readAffinityClients(
  nft: NftablesSocket,
  family: Family,
  signal?: AbortSignal,
): Promise<AffinityClients> {
  const clients = new Map<string, readonly string[]>()
  for (const { name } of await nft.sets(family, tableName, { signal })) {
    if (!isAffinitySet(name)) continue
    const keys = await nft.keysOnce({ family, table: tableName, set: name }, { signal })
    clients.set(name, keys.map(formatIp))
  }
  return clients
}
