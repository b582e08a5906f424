// Reads from the kernel: our table as it is, which recognise.ts interprets, and the clients that affinity sets remember.

import { type Family, formatIp } from '../../../lib/ip.ts'
import type { ListedElement } from '../../../sys/netlink/nft/elements.ts'
import type { Chain, NftSet } from '../../../sys/netlink/nft/nft-types.ts'
import type { NftablesSocket } from '../../../sys/netlink/nft/nftables.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import { tableName } from '../base.ts'
import { SetCodec } from '../commit/set-codec.ts'
import { SlottedFrontends } from '../commit/slotted-frontends.ts'
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

/** A frontend whose endpoints are in numbered slots. */
export interface SlottedFrontend {
  readonly set: string
  readonly key: string
  /** Endpoints by number of the slot. */
  readonly slots: Map<number, string>
}

/** An element as text. It is made while the dump is read, because there are very many elements. */
export interface SetMember {
  /** The key; that of the frontend if the element is a slot. */
  readonly key: string
  /** The frontend that the slot belongs to, without its slots: a dump may have to be repeated. Undefined if the set has no slots. */
  readonly frontend: SlottedFrontend | undefined
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
function memberDecoder({ name, shape }: NftSetSpec, family: Family): (element: ListedElement) => SetMember | undefined {
  const codec = new SetCodec(shape, family)
  if (codec.value === 'endpoint') return slotDecoder(name, codec)
  return (element) => {
    const { bytes, keyAt, keyEnd, lastAt, lastEnd, comment } = element
    const first = bytes.subarray(keyAt, keyEnd)
    const key = codec.readKey(first, lastEnd === 0 ? first : bytes.subarray(lastAt, lastEnd))
    if (key === undefined) return undefined
    const value = describeVerdict(element)
    return { key, frontend: undefined, slot: -1, value: comment === undefined ? value : `${value} # ${comment}` }
  }
}

/** Most elements are slots. The key of a frontend is read once for all of its slots, which come in no order. */
function slotDecoder(set: string, codec: SetCodec): (element: ListedElement) => SetMember | undefined {
  const make = (key: string): SlottedFrontend => ({ set, key, slots: new Map() })
  const frontends = new SlottedFrontends(codec, Math.floor(Math.random() * 0x4000_0000), make)
  return ({ bytes, keyAt, keyEnd, dataAt, dataEnd }) => {
    const frontend = frontends.find(bytes, keyAt, keyEnd)
    if (frontend === undefined) return undefined
    const value = codec.readEndpoint(bytes, dataAt, dataEnd) ?? ''
    return { key: frontend.key, frontend, slot: codec.readSlot(bytes, keyAt), value }
  }
}

function describeVerdict({ verdict }: ListedElement): string {
  if (verdict === undefined) return ''
  return 'chain' in verdict ? `goto ${verdict.chain}` : verdict.verdict
}

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
