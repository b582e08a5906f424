// Deletes chains of the nat table in nf_tables without a program: starting iptables-nft-restore costs some milliseconds of CPU, and one
// endpoint that goes needs one deletion.

import type { Family } from '../../../lib/ip.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { Nftables } from '../../../sys/netlink/nft/nftables.ts'
import { beginBatch, endBatch, flushChain, writeChain } from '../../../sys/netlink/nft/write-objects.ts'

export class ChainDeletion {
  readonly #family: Family
  #opened: Nftables | undefined
  /** Transactions that were committed so far. */
  commits = 0

  constructor(family: Family) {
    this.#family = family
  }

  /** Deletes all of the chains, in this order, with their rules. Resolves false, and deletes none, if the kernel refuses it for one. */
  async delete(names: readonly string[]): Promise<boolean> {
    const chains = names.map((name) => ({ family: this.#family, table: 'nat', name }))
    const writer = new MessageWriter()
    beginBatch(writer)
    for (const chain of chains) flushChain(writer, chain)
    for (const chain of chains) writeChain(writer, chain, 'delete')
    this.#opened ??= new Nftables()
    const { failures } = await this.#opened.commit(writer, endBatch(writer))
    if (failures.length > 0) return false
    this.commits++
    return true
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }
}
