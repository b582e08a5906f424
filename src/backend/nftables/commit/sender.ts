// Sends transactions to the kernel: encodes them, tries again after passing errors, and finds the entries that the kernel refuses.

import { ProxyError } from '../../../lib/errors.ts'
import { sleep } from '../../../lib/time.ts'
import { runSliced, TimeSlice } from '../../../lib/yielding.ts'
import * as errno from '../../../sys/errno.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import type { NftablesSocket, RemovedObjects } from '../../../sys/netlink/nft/nftables.ts'
import type { MessageFailure } from '../../../sys/netlink/socket.ts'
import type { OpenContext } from '../../backend.ts'
import type { InitialCounts } from '../count/initial-counts.ts'
import type { SlotCounting } from '../count/slot-counting.ts'
import { ElementTemplates, type FindShape } from './element-template.ts'
import { type EncodeBuffers, type EncodedBatch, EncodeError, encode } from './encode.ts'
import type { Transaction } from './transaction.ts'

/** The errors of refused entries by entry id. */
export type Refusals = ReadonlyMap<string, ProxyError>

export interface SenderOptions {
  readonly context: Pick<OpenContext, 'family' | 'clock'>
  readonly nft: NftablesSocket
  /** The table's flags: OWNER and PERSIST where the kernel supports them. */
  readonly flags: number
  readonly findShape: FindShape
  /** Absent if nothing is counted. */
  readonly counting?: SlotCounting | undefined
  /** Called when the kernel refuses a transaction because another process owns the table. */
  readonly onForeignOwner: () => void
}

export interface CommitOptions {
  /** Exchanges the table for a new one in the same transaction. */
  readonly replace?: boolean
  /** Instead of the sender's flags. */
  readonly flags?: number
  /** Another entry of the same changes was refused already. What is missing now may be missing for that reason. */
  readonly hasRefusals?: boolean
  /** With `replace`: what the old table counted. */
  readonly initial?: InitialCounts | undefined
}

/** Errors after which the same transaction may succeed. */
const transient: ReadonlySet<number> = new Set([
  errno.ERESTART,
  errno.EINTR,
  errno.EAGAIN,
  errno.EBUSY,
  errno.ENOMEM,
  errno.ENOBUFS,
])
/** Errors that mean that the kernel's state is not the committed state. */
const contradicting: ReadonlySet<number> = new Set([errno.ENOENT, errno.EEXIST])
const maxAttempts = 5
const none: Refusals = new Map()

export class TransactionSender {
  readonly #options: SenderOptions
  readonly #buffers: EncodeBuffers
  #isEstablished = false

  constructor(options: SenderOptions) {
    this.#options = options
    const templates = new ElementTemplates(options.context.family, options.findShape)
    this.#buffers = { writer: new MessageWriter(1 << 16), templates }
  }

  /** True if a transaction was committed since the last observation: the table exists and, where the kernel has owners, is ours. */
  get isEstablished(): boolean {
    return this.#isEstablished
  }

  /** Called when the table is observed: from now on the committed state is what the kernel reported. */
  resetToObserved(): void {
    this.#isEstablished = false
  }

  /** Returns the refused entries: then nothing was committed. Throws if single entries are not at fault. */
  async commit(transaction: Transaction, options: CommitOptions = {}): Promise<Refusals> {
    const { counting } = this.#options
    const { initial, replace = false } = options
    if (initial !== undefined) counting?.prepareExchange(transaction, initial.carried, initial.written)
    else if (replace) counting?.prepareNew(transaction)
    else if (counting !== undefined) {
      await counting.prepare(transaction)
      // There was only something to count, and it is not needed any more.
      if (transaction.size === 0 && this.#isEstablished) return none
    }
    const refused = await this.#commit(transaction, options, false)
    if (refused.size === 0 && counting?.hasPending === true) await this.#commitPending(transaction, options)
    return refused
  }

  /** Writes what the objects had counted that the last commit removed. The next sweep tries again if it fails. */
  async #commitPending(transaction: Transaction, { flags }: CommitOptions): Promise<void> {
    const next = transaction.beginNext()
    await this.#options.counting?.prepare(next)
    if (next.size === 0) return
    await this.#commit(next, flags === undefined ? {} : { flags }, false).catch(() => none)
  }

  async #commit(transaction: Transaction, options: CommitOptions, single: boolean): Promise<Refusals> {
    const batch = await this.#encodeOrBlame(transaction, options, single)
    if (batch instanceof EncodeError) return new Map([[batch.entry, batch]])
    const removed: RemovedObjects = { elements: [], rules: [] }
    const failures = await this.#sendWithRetry(batch, removed, transaction.isSlow)
    if (failures.length === 0) {
      await runSliced(transaction.markCommitted(), this.#newSlice())
      this.#options.counting?.settle(removed, transaction.committed)
      this.#isEstablished = true
      return none
    }
    if (single) return this.#blame(failures, batch, options)
    // Many elements share a message. With one message per element the kernel names the one at fault.
    return this.#commit(transaction, options, true)
  }

  /** Returns the error if an entry cannot be expressed in netlink. */
  async #encodeOrBlame(
    transaction: Transaction,
    { replace = false, flags = this.#options.flags, initial }: CommitOptions,
    single: boolean,
  ): Promise<EncodedBatch | EncodeError> {
    const { context, counting } = this.#options
    const { family } = context
    const isCounting = counting !== undefined
    const table = { family, flags, replace, single, established: this.#isEstablished, counting: isCounting, initial }
    try {
      return await runSliced(encode(transaction.operations(), this.#buffers, table), this.#newSlice())
    } catch (error) {
      if (error instanceof EncodeError) return error
      throw error
    }
  }

  /** Returns the messages that the kernel refused; none if it committed the batch. */
  async #sendWithRetry(
    { last }: EncodedBatch,
    removed: RemovedObjects,
    isSlow: boolean,
  ): Promise<readonly MessageFailure[]> {
    const { nft, context, counting } = this.#options
    for (let attempt = 1; ; attempt++) {
      const { failures, overflow } = await (counting === undefined
        ? nft.commit(this.#buffers.writer, last, { isSlow })
        : nft.commitCounted(this.#buffers.writer, last, removed, isSlow))
      if (overflow) throw new ProxyError('nftables', 'the kernel reported more errors than fit into the receive buffer')
      const [first] = failures
      if (first === undefined || !failures.some((failure) => transient.has(failure.errno))) return failures
      if (attempt === maxAttempts) throw nft.failure('commit', first)
      await sleep(context.clock, 2 ** attempt)
    }
  }

  /** Finds the entries that the refused messages belong to. */
  #blame(failures: readonly MessageFailure[], batch: EncodedBatch, { hasRefusals = false }: CommitOptions): Refusals {
    const refused = new Map<string, ProxyError>()
    for (const failure of failures) {
      const entry = batch.entryOf(failure.sequence)
      const error = this.#options.nft.failure(entry === undefined ? 'commit' : `write ${entry}`, failure)
      if (failure.errno === errno.EPERM) throw this.#reportForeignOwner(error)
      // If an object is absent or present contrary to the committed state, the entry is not at fault: the table must be observed again. But
      // right after an observation the state is correct, and after a refusal the object may be absent because of that refusal.
      const contradicts = contradicting.has(failure.errno) && this.#isEstablished && !hasRefusals
      if (entry === undefined || contradicts) throw error
      if (!refused.has(entry)) refused.set(entry, error)
    }
    return refused
  }

  #reportForeignOwner(cause: ProxyError): ProxyError {
    this.#options.onForeignOwner()
    const message = 'another process owns our table: is a second proxy running?'
    return new ProxyError('nftables-owned', message, { cause })
  }

  #newSlice(): TimeSlice {
    return new TimeSlice(this.#options.context.clock)
  }
}
