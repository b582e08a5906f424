// Finds the nf_tables tables that a proxy has on this node. cleanup.ts removes them.

import { familyName } from '../../../lib/ip.ts'
import { Nftables } from '../../../sys/netlink/nft/nftables.ts'
import type { Leftover, LeftoverTraits } from '../../proxy-mode.ts'
import { tableName } from '../base.ts'
import { cleanupNftables } from '../cleanup.ts'

export const nftablesLeftovers: LeftoverTraits = { find: findTables, cleanup: cleanupNftables }

async function findTables(): Promise<readonly Leftover[]> {
  let nft: Nftables
  try {
    nft = new Nftables()
  } catch {
    // This kernel has no nf_tables, so it has no tables.
    return []
  }
  try {
    const tables = (await nft.tables()).filter(({ name }) => name === tableName)
    return tables.map(({ family, name }) => ({
      mode: 'nftables',
      what: `table ${name}`,
      where: `nf_tables, ${familyName(family)}`,
    }))
  } finally {
    nft.close()
  }
}
