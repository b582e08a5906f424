// Removes everything that nftables mode may have left on the node.

import { ProxyError } from '../../lib/errors.ts'
import { familyName } from '../../lib/ip.ts'
import { EPERM } from '../../sys/errno.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import type { Table } from '../../sys/netlink/nft/nft-types.ts'
import { Nftables } from '../../sys/netlink/nft/nftables.ts'
import { beginBatch, endBatch, writeTable } from '../../sys/netlink/nft/write-objects.ts'
import type { Cleanup } from '../backend.ts'
import { tableName } from './base.ts'

/** Deletes the table of both families, also if kube-proxy made it. */
export const cleanupNftables: Cleanup = async (log) => {
  let nft: Nftables
  try {
    nft = new Nftables()
  } catch (error) {
    log.v(2, 'This machine has no nftables, so there is nothing to remove', { error })
    return
  }
  try {
    for (const table of await nft.tables()) {
      if (table.name !== tableName) continue
      await deleteTable(nft, table)
      log.info('Removed an nftables table', { family: familyName(table.family), table: table.name })
    }
  } finally {
    nft.close()
  }
}

async function deleteTable(nft: Nftables, { family, name }: Table): Promise<void> {
  const writer = new MessageWriter()
  beginBatch(writer)
  writeTable(writer, { family, name }, 'delete')
  const { failures } = await nft.commit(writer, endBatch(writer))
  const failure = failures[0]
  if (failure === undefined) return
  // A process that may list tables may also delete them, except tables whose owner still runs.
  if (failure.errno === EPERM) {
    throw new ProxyError('nftables-owned', `a running proxy owns table ${name}: stop it first, then clean up`)
  }
  throw nft.failure(`delete table ${name}`, failure)
}
