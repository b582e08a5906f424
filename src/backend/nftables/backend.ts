// Assembles nftables mode from its parts. Its cleanup is in cleanup.ts.

import { type Family, familyName } from '../../lib/ip.ts'
import { Nftables } from '../../sys/netlink/nft/nftables.ts'
import type { Backend, OpenContext } from '../backend.ts'
import { base } from './base.ts'
import { checkNftables } from './check.ts'
import type { NftEntry } from './entries.ts'
import { findFeatures, restrictFeatures } from './features.ts'
import { plan, planLazily } from './plan.ts'
import { NftTarget } from './target.ts'

export const nftables = (): Backend<NftEntry> => ({
  name: 'nftables',
  periodic: false,
  async families(): Promise<readonly Family[]> {
    const nft = new Nftables()
    try {
      await findFeatures(nft, 4)
    } finally {
      nft.close()
    }
    return [4, 6]
  },
  // There is nothing to prepare: no sysctl, and the kernel loads its modules by itself.
  prepare: async () => {},
  base,
  plan,
  planLazily,
  open,
  openCheck: (node, signal) => checkNftables(open, node, signal),
})

async function open(context: OpenContext): Promise<NftTarget> {
  const nft = new Nftables({ clock: context.clock })
  const features = restrictFeatures(await findFeatures(nft, context.family))
  const names = Object.entries(features).map(([name, has]) => `${name}=${has ? 'yes' : 'no'}`)
  context.log.info('Features of nftables in this kernel', {
    family: familyName(context.family),
    found: names.join(' '),
  })
  return new NftTarget(context, nft, features)
}
