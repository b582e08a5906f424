// What is read of the kernel: our table as it is, for `observe` to make sense of, and the clients that affinity sets remember.

import { type Family, formatIp } from '../../../lib/ip.ts'
import type { NodeView } from '../../../model/types.ts'
import type { Nftables } from '../../../sys/netlink/nft/nftables.ts'
import { base, tableName } from '../base.ts'
import type { ChainSpec, NftSetSpec } from '../entries.ts'
import { type Dump, type ExpectedTable, type Member, memberReader } from './recognise.ts'

/** What is asked of the kernel. */
export type Kernel = Pick<
  Nftables,
  'port' | 'commit' | 'failure' | 'tables' | 'sets' | 'chains' | 'rules' | 'elementsAs' | 'members' | 'close'
>

export async function dumpTable(nft: Kernel, { node, sets: known }: ExpectedTable, signal: AbortSignal): Promise<Dump> {
  const { family } = node
  const sets = await nft.sets(family, tableName, { signal })
  const elements = new Map<string, readonly (Member | undefined)[]>()
  for (const { name } of sets) {
    const spec = known.get(name)
    if (spec === undefined) continue
    elements.set(name, await nft.elementsAs(family, tableName, name, memberReader(spec, family), { signal }))
  }
  const chains = await nft.chains(family, tableName, { signal })
  return { sets, elements, chains, rules: await nft.rules(family, tableName, { signal }) }
}

/** Clients that affinity sets remember: they stay with their endpoints when the table is exchanged. New ones come while we read. */
export async function affinityClients(
  nft: Kernel,
  family: Family,
  signal?: AbortSignal,
): Promise<ReadonlyMap<string, readonly string[]>> {
  const clients = new Map<string, readonly string[]>()
  for (const { name } of await nft.sets(family, tableName, { signal })) {
    if (!name.startsWith('affinity-')) continue
    const members = await nft.members(family, tableName, name, { signal })
    clients.set(
      name,
      members.map(({ key }) => formatIp(key)),
    )
  }
  return clients
}

/** The base with every set it may ever have. */
export function expectedOf(node: NodeView): ExpectedTable {
  const sets = new Map<string, NftSetSpec>()
  const chains = new Map<string, ChainSpec>()
  for (const entry of base({ ...node, nodePorts: { ...node.nodePorts, all: false } })) {
    if (entry.kind === 'set') sets.set(entry.set.name, entry.set)
    else if (entry.kind === 'chain') chains.set(entry.chain.name, entry.chain)
  }
  return { node, sets, chains }
}
