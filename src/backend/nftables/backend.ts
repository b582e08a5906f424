// The nftables mode: its parts put together, and what removes everything it may have left.

import { ProxyError } from '../../lib/errors.ts'
import { type Family, familyName } from '../../lib/ip.ts'
import { EPERM } from '../../sys/errno.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import { Nftables } from '../../sys/netlink/nft/nftables.ts'
import { beginBatch, endBatch, writeTable } from '../../sys/netlink/nft/write-objects.ts'
import type { Backend, Cleanup } from '../backend.ts'
import { base, tableName } from './base.ts'
import type { NftEntry } from './entries.ts'
import { findFeatures, permitted } from './features.ts'
import { plan } from './plan.ts'
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
  // Nothing to set: no sysctl, no module that the kernel does not load by itself.
  prepare: async () => {},
  base,
  plan,
  async open(context) {
    const nft = new Nftables({ clock: context.clock })
    const features = permitted(await findFeatures(nft, context.family))
    const names = Object.entries(features).map(([name, has]) => `${name}=${has ? 'yes' : 'no'}`)
    context.log.info('nftables features of this kernel', { family: familyName(context.family), found: names.join(' ') })
    return new NftTarget(context, nft, features)
  },
})

/** Deletes the table of both families, whoever made it; one that is not there is fine. */
export const cleanupNftables: Cleanup = async (log) => {
  let nft: Nftables
  try {
    nft = new Nftables()
  } catch (error) {
    log.v(2, 'no nftables here, so nothing to remove', { error })
    return
  }
  try {
    for (const { family, name } of await nft.tables()) {
      if (name !== tableName) continue
      const writer = new MessageWriter()
      beginBatch(writer)
      writeTable(writer, { family, name }, 'delete')
      const { failures } = await nft.commit(writer, endBatch(writer))
      const failure = failures[0]
      // Who may list tables may delete them, but for those of a living owner.
      if (failure?.errno === EPERM) {
        throw new ProxyError('nftables-owned', `a running proxy owns table ${name}: stop it first, then clean up`)
      }
      if (failure !== undefined) throw nft.failure(`delete table ${name}`, failure)
      log.info('removed an nftables table', { family: familyName(family), table: name })
    }
  } finally {
    nft.close()
  }
}
