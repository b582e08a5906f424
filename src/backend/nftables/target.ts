// The nftables table of one family: adopts what is there, applies changes, and releases the table at the end.
//
// 1. One socket writes. On kernels with table owners it owns the table: no other process can change or flush the table while we run, and
//    the table stays when we end. On other kernels notifications report foreign changes (drift.ts).
// 2. Slots and chains that nothing chooses any more stay for a second, because a packet may be between two lookups (commit/sweeper.ts).
// 3. The table of another proxy, or a table that we cannot own, is exchanged for ours in one transaction: no packet sees a gap.
// 4. At the end the table is exchanged in the same way for one without an owner, so that the next proxy, even kube-proxy, can use it.

import type { ProxyError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'
import { TABLE_OWNER, TABLE_PERSIST, type Table } from '../../sys/netlink/nft/nft-types.ts'
import type { NftablesSocket } from '../../sys/netlink/nft/nftables.ts'
import type { Applied, Changes, Held, OpenContext, PortCounters, RefusedEntry, Target, Wanted } from '../backend.ts'
import { dumpTable, readAffinityClients } from './adopt/dump.ts'
import { describeTable, type ExpectedTable, findShape } from './adopt/expected.ts'
import { isOurs, recogniseTable } from './adopt/recognise.ts'
import { tableName } from './base.ts'
import { selectListeners } from './commit/order.ts'
import { TransactionSender } from './commit/sender.ts'
import { Sweeper } from './commit/sweeper.ts'
import { type AffinityClients, TableWriter, type Writing } from './commit/table-writer.ts'
import type { Transaction } from './commit/transaction.ts'
import { readInitialCounts } from './count/exchange-counts.ts'
import type { InitialCounts } from './count/initial-counts.ts'
import { type CountSource, readCounts } from './count/read-counts.ts'
import { SlotCounting } from './count/slot-counting.ts'
import { findTable, OwnerPoll, OwnSocketCheck, TableWatch } from './drift.ts'
import type { NftEntry } from './entries.ts'
import type { NftablesFeatures } from './features.ts'
import { LoopbackListeners } from './listeners.ts'

/** Stands for all that a foreign table holds. It is dropped when ours is put, in one exchange. */
const foreignTable: Held = { id: 'table foreign', kind: 'table', digest: '' }

export class NftTarget implements Target<NftEntry> {
  readonly #context: OpenContext
  readonly #nft: NftablesSocket
  /** OWNER and PERSIST where the kernel supports them. */
  readonly #flags: number
  readonly #expected: ExpectedTable
  readonly #sender: TransactionSender
  readonly #writer: TableWriter
  readonly #sweeper: Sweeper
  /** Undefined if nothing is counted. */
  readonly #counting: SlotCounting | undefined
  readonly #ownerPoll: OwnerPoll
  /** Undefined if the kernel has table owners. */
  readonly #watch: TableWatch | undefined
  readonly #socketCheck: OwnSocketCheck | undefined
  readonly #listeners: LoopbackListeners
  /** Allows one transaction at a time: of a sync, a sweep or the release. */
  readonly #mutex = new Mutex()
  #wanted: Wanted<NftEntry> | undefined
  /** How often the socket had been opened when the table was observed. A socket that is opened again does not own the table. */
  #observedOpening: number | undefined
  /** Set if the table must be exchanged: the clients that its affinity sets remember. */
  #exchange: AffinityClients | undefined

  constructor(context: OpenContext, nft: NftablesSocket, features: NftablesFeatures) {
    const { node } = context
    const isOwned = features.owner && features.persist
    const expected = describeTable(node, features.counters)
    const counting = features.counters ? new SlotCounting(nft, node.family) : undefined
    this.#counting = counting
    this.#context = context
    this.#nft = nft
    this.#flags = isOwned ? TABLE_OWNER | TABLE_PERSIST : 0
    this.#expected = expected
    this.#ownerPoll = new OwnerPoll(nft, context, this.#mutex)
    this.#sender = new TransactionSender({
      context,
      nft,
      flags: this.#flags,
      findShape: (set) => findShape(expected, set),
      counting,
      onForeignOwner: () => this.#ownerPoll.start(),
    })
    this.#writer = new TableWriter(this.#sender, expected.balanceChains, context, counting)
    this.#sweeper = new Sweeper(context, this.#writer, this.#mutex)
    this.#listeners = new LoopbackListeners(context)
    this.#watch = isOwned ? undefined : new TableWatch(nft, context)
    this.#socketCheck = isOwned ? new OwnSocketCheck(() => nft.isLost || this.#hasNewSocket, context) : undefined
  }

  drifted(): boolean {
    return this.#sweeper.isStuck || this.#hasNewSocket || (this.#watch?.hasDrifted ?? false)
  }

  get #hasNewSocket(): boolean {
    return this.#flags !== 0 && this.#observedOpening !== undefined && this.#observedOpening !== this.#nft.timesOpened
  }

  observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#mutex.run(async () => {
      const held = [...(await this.#observeTable(signal)), ...this.#listeners.held()]
      this.#observedOpening = this.#nft.timesOpened
      return held
    })
  }

  apply(changes: Changes<NftEntry>, signal: AbortSignal, wanted: Wanted<NftEntry>): Promise<Applied> {
    return this.#mutex.run(async () => {
      this.#wanted = wanted
      if (this.#exchange === undefined) return this.#write(changes, await this.#writer.begin(changes), signal)
      const refused = new Map<string, ProxyError>()
      await this.#exchangeTable(changes.put, this.#exchange, refused)
      return { refused: [...listRefused(refused), ...(await this.#finish(await this.#selectListeners(changes)))] }
    })
  }

  /** Writes until everything is written or the writer pauses. */
  async #write(changes: Changes<NftEntry>, writing: Writing, signal: AbortSignal): Promise<Applied> {
    const { written, isComplete } = await this.#writer.write(writing, signal)
    if (!isComplete) {
      this.#sweeper.schedule()
      const resume = (next: AbortSignal) => this.#mutex.run(() => this.#write(changes, writing, next))
      return { refused: listRefused(writing.refused, written), written, resume }
    }
    const listeners = await this.#selectListeners(changes)
    const unopened = await this.#finish(listeners)
    written.put.push(...listeners.put)
    written.drop.push(...listeners.drop)
    return { refused: [...listRefused(writing.refused, written), ...unopened], written }
  }

  #selectListeners(changes: Changes<NftEntry>): Promise<Changes<NftEntry>> | Changes<NftEntry> {
    return runSliced(selectListeners(changes), this.#newSlice())
  }

  /** Opens and closes the sockets that belong to the changes. */
  async #finish(listeners: Changes<NftEntry>): Promise<readonly RefusedEntry[]> {
    const unopened = await this.#listeners.apply(listeners)
    this.#sweeper.schedule()
    return unopened
  }

  async close(): Promise<void> {
    this.#sweeper.close()
    this.#ownerPoll.close()
    await this.#mutex
      .run(() => this.#release())
      .catch((error) =>
        this.#context.log.warn('Our table could not be released: kube-proxy cannot use it as it is', { error }),
      )
    await this.#listeners.close()
    this.#watch?.close()
    this.#socketCheck?.close()
    this.#nft.close()
  }

  async #observeTable(signal: AbortSignal): Promise<readonly Held[]> {
    const { committed } = this.#writer
    const { family } = this.#context
    this.#watch?.reset()
    this.#sender.resetToObserved()
    this.#exchange = undefined
    const table = findTable(await this.#nft.tables({ signal }), family)
    if (table === undefined) {
      committed.clear()
      return []
    }
    const dump = await dumpTable(this.#nft, this.#expected, signal)
    const isUsable = isOurs(dump) && this.#canOwn(table) && !this.#sweeper.isStuck
    const held = isUsable ? await recogniseTable(dump, this.#expected, committed, this.#newSlice()) : undefined
    if (held !== undefined) {
      await this.#adoptCounters(signal)
      return held
    }
    committed.clear()
    this.#exchange = await readAffinityClients(this.#nft, family, signal)
    return [foreignTable]
  }

  async #adoptCounters(signal: AbortSignal): Promise<void> {
    if (this.#counting === undefined) return
    const counters = await this.#nft.namedCounters(this.#context.family, tableName, { signal })
    for (const { name } of counters) this.#writer.committed.counters.add(name)
    this.#counting.adopt(counters)
  }

  /** Reads what the table counted, before it is exchanged. */
  readonly #readInitialCounts = async (transaction: Transaction): Promise<InitialCounts | undefined> =>
    this.#counting && readInitialCounts(this.#nft, this.#context.family, transaction, this.#newSlice())

  /** Sums what the table has counted by service port; empty if nothing is counted. */
  async readCounters(nft: CountSource['nft']): Promise<readonly PortCounters[]> {
    const counting = this.#counting
    if (counting === undefined || !this.#sender.isEstablished) return []
    const { committed } = this.#writer
    const exclusively = <T>(work: () => Promise<T>) => this.#mutex.run(work)
    return readCounts({ nft, family: this.#context.family, committed, counting, exclusively, slice: this.#newSlice() })
  }

  /** The kernel cannot make an existing table persistent. */
  #canOwn({ flags = 0 }: Table): boolean {
    return (flags & TABLE_PERSIST) === (this.#flags & TABLE_PERSIST)
  }

  async #exchangeTable(
    entries: readonly NftEntry[],
    clients: AffinityClients,
    refused: Map<string, ProxyError>,
  ): Promise<void> {
    await this.#writer.exchange(entries, clients, refused, this.#readInitialCounts)
    this.#exchange = undefined
    this.#sweeper.resetFailures()
  }

  async #release(): Promise<void> {
    if (this.#flags === 0 || this.#wanted === undefined || !this.#sender.isEstablished) return
    const readClients = () => readAffinityClients(this.#nft, this.#context.family)
    await this.#writer.release(this.#wanted.entries(), readClients, this.#readInitialCounts)
  }

  #newSlice(): TimeSlice {
    return new TimeSlice(this.#context.clock)
  }
}

/** The refused entries; with `written`, those of them that belong to it. */
function listRefused(refused: ReadonlyMap<string, ProxyError>, written?: Changes<Held>): readonly RefusedEntry[] {
  if (refused.size === 0) return []
  const ids = written && new Set([...written.put, ...written.drop].map(({ id }) => id))
  return [...refused].filter(([id]) => ids?.has(id) ?? true).map(([id, error]) => ({ id, error }))
}
