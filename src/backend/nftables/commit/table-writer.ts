// Writes entries to the table: changes in small transactions, a whole table in one, and the removal of what fell out of use.
//
// The committed state changes only with a committed transaction. A transaction that fails has changed nothing, neither there nor in the
// kernel.

import type { ProxyError } from '../../../lib/errors.ts'
import type { Clock } from '../../../lib/time.ts'
import { runSliced, TimeSlice } from '../../../lib/yielding.ts'
import type { Changes, Held, OpenContext } from '../../backend.ts'
import type { InitialCounts } from '../count/initial-counts.ts'
import type { SlotCounting } from '../count/slot-counting.ts'
import type { NftEntry } from '../entries.ts'
import type { BalanceChains } from '../rules.ts'
import { CommittedState } from './committed.ts'
import { applyStep, type OrderedSteps, omitRefused, orderSteps, type Step } from './order.ts'
import type { Refusals, TransactionSender } from './sender.ts'
import { operationStride, Transaction } from './transaction.ts'

/** A transaction of this size takes some milliseconds of our time and of the kernel's. The event loop runs between transactions. */
const chunkOperations = 1_000
/** Transactions become smaller while one takes longer than this: a rule with a set takes the longer the more sets there are. */
const slowMs = 15
/** Not smaller than this: a transaction has a cost of its own. */
const fewestOperations = 200
/** Limits the steps of a transaction too, because a step may need no operation: as many per operation. */
const stepsPerOperation = 2
/** At each commit that adds a verdict the kernel checks all verdicts of the table, so a transaction may be a part of what the table has. */
const shareOfTable = 1 / 3
/** A transaction of as many elements takes the kernel tens of milliseconds, in another thread. */
const mostElements = 8_000

/** Changes while they are written: what the kernel still has to get, and what it refused. */
export interface Writing extends OrderedSteps {
  readonly refused: Map<string, ProxyError>
}

/** What one call wrote, refused changes included. */
interface Written {
  readonly put: NftEntry[]
  readonly drop: Held[]
}

/** Clients that affinity sets remember, by set. */
export type AffinityClients = ReadonlyMap<string, readonly string[]>

/** Reads what the table counted, just before a transaction exchanges it. */
export type ReadCounts = (transaction: Transaction) => Promise<InitialCounts | undefined>

export class TableWriter {
  readonly committed: CommittedState
  readonly #counting: SlotCounting | undefined
  readonly #sender: TransactionSender
  readonly #balanceChains: BalanceChains
  readonly #clock: Clock
  readonly #shouldPause: () => boolean
  /** The weight of a transaction, after how long the last ones took. */
  #chunkWeight = chunkOperations

  constructor(
    sender: TransactionSender,
    balanceChains: BalanceChains,
    { clock, shouldPause = () => false }: Pick<OpenContext, 'clock' | 'shouldPause'>,
    counting?: SlotCounting,
  ) {
    this.committed = new CommittedState(counting !== undefined)
    this.#counting = counting
    this.#sender = sender
    this.#balanceChains = balanceChains
    this.#clock = clock
    this.#shouldPause = shouldPause
  }

  async begin({ put, drop }: Changes<NftEntry>): Promise<Writing> {
    const steps = await runSliced(orderSteps(put, drop), this.#newSlice())
    return { ...steps, refused: new Map() }
  }

  /**
   * Applies changes without those that the kernel refuses, until all are written or the writer should pause. Returns what this call wrote,
   * and whether that was all. The same changes can be continued later.
   */
  async write(
    writing: Writing,
    signal: AbortSignal,
  ): Promise<{ readonly written: Written; readonly isComplete: boolean }> {
    const written: Written = { put: [], drop: [] }
    for (const steps of [writing.first, writing.second]) {
      const isComplete = await this.#applySteps(steps, writing.refused, { signal, written })
      if (!isComplete) return { written, isComplete }
    }
    // Without changes, damaged chains must still be repaired, and the table of a predecessor must become ours.
    const isPending = this.committed.damagedChains.size > 0 || !this.#sender.isEstablished
    if (isPending) await this.#commitSteps([], this.#begin(), writing.refused)
    return { written, isComplete: true }
  }

  /** True if a sweep has something to do. */
  get needsSweep(): boolean {
    return this.committed.hasRetired || this.#counting?.hasPending === true || this.committed.owners.hasRetired
  }

  /** Exchanges the whole table in one transaction of any size: a table with only a part of the entries would be a gap. */
  async exchange(
    entries: readonly NftEntry[],
    clients: AffinityClients,
    refused: Map<string, ProxyError>,
    readCounts?: ReadCounts,
  ): Promise<void> {
    for (;;) {
      this.committed.clear()
      const transaction = this.#begin()
      await this.#putAll(transaction, entries, refused)
      transaction.addClients(clients)
      const initial = await readCounts?.(transaction)
      const failed = await this.#sender.commit(transaction, { replace: true, initial, hasRefusals: refused.size > 0 })
      if (failed.size === 0) return
      addRefusals(refused, failed)
    }
  }

  /** Exchanges the table for an equal one that no process owns: kube-proxy cannot use a table that has or had an owner. */
  async release(
    entries: Iterable<NftEntry>,
    readClients: () => Promise<AffinityClients>,
    readCounts?: ReadCounts,
  ): Promise<void> {
    const transaction = new Transaction(new CommittedState(this.#counting !== undefined), this.#balanceChains)
    await this.#putAll(transaction, entries, new Map())
    // Clients are read as late as possible, because packets add more all the time.
    transaction.addClients(await readClients())
    const initial = await readCounts?.(transaction)
    throwFirst(await this.#sender.commit(transaction, { replace: true, flags: 0, initial }))
  }

  /** Removes slots and chains that fell out of use before the last sweep; the rest in the next sweep if `shouldStop` says so. */
  async sweep(shouldStop: () => boolean = () => false): Promise<void> {
    const slice = this.#newSlice()
    for (;;) {
      const transaction = new Transaction(this.committed, this.#balanceChains)
      const retired = this.committed.selectRetired(chunkOperations)
      transaction.sweep(retired)
      this.#counting?.sweep(transaction)
      if (transaction.size === 0 && this.#counting?.hasPending !== true) {
        this.committed.removeSwept(retired)
        break
      }
      throwFirst(await this.#sender.commit(transaction))
      await slice.yieldLoop()
      if (shouldStop()) return
    }
    this.committed.advanceAge()
  }

  /** Applies at least one transaction. Returns false if steps are left because the writer should pause. */
  async #applySteps(
    steps: Generator<Step>,
    refused: Map<string, ProxyError>,
    { signal, written }: { readonly signal: AbortSignal; readonly written: Written },
  ): Promise<boolean> {
    const slice = this.#newSlice()
    let chunk: Step[] = []
    let transaction: Transaction | undefined
    // Not for...of, which would end the generator when the loop is left.
    for (let next = steps.next(); next.done !== true; next = steps.next()) {
      const step = next.value
      transaction ??= this.#begin()
      chunk.push(step)
      applyStep(transaction, step)
      if (chunk.length % operationStride === 0 && slice.over) await slice.yieldLoop()
      const room = this.#findRoom(transaction)
      if (transaction.weight < room && chunk.length < room * stepsPerOperation) continue
      const began = this.#clock.monotonic()
      await this.#commitChunk(chunk, transaction, refused)
      if (room <= this.#chunkWeight) this.#adaptWeight(this.#clock.monotonic() - began)
      recordSteps(chunk, written)
      chunk = []
      transaction = undefined
      await slice.yieldLoop()
      signal.throwIfAborted()
      if (this.#shouldPause()) return false
    }
    if (transaction !== undefined) await this.#commitChunk(chunk, transaction, refused)
    recordSteps(chunk, written)
    return true
  }

  /** The weight that the transaction may have. Many elements are cheap together, and objects that take the kernel long are not. */
  #findRoom({ hasSlow }: Transaction): number {
    if (hasSlow) return this.#chunkWeight
    return Math.max(this.#chunkWeight, Math.min(mostElements, this.committed.elements.size * shareOfTable))
  }

  #adaptWeight(tookMs: number): void {
    if (tookMs > slowMs) this.#chunkWeight = Math.max(fewestOperations, this.#chunkWeight / 2)
    else if (tookMs < slowMs / 3) this.#chunkWeight = Math.min(chunkOperations, this.#chunkWeight * 2)
  }

  async #commitChunk(
    steps: readonly Step[],
    transaction: Transaction,
    refused: Map<string, ProxyError>,
  ): Promise<void> {
    if (transaction.size > 0 || refused.size > 0) await this.#commitSteps(steps, transaction, refused)
    else await this.#markCommitted(transaction)
  }

  /** Commits the transaction of these steps. Entries that the kernel refuses, now or before, are left out and the rest is tried again. */
  async #commitSteps(steps: readonly Step[], built: Transaction, refused: Map<string, ProxyError>): Promise<void> {
    let transaction = refused.size === 0 ? built : this.#rebuild(steps, refused)
    while (transaction.size > 0 || !this.#sender.isEstablished) {
      const failed = await this.#sender.commit(transaction, { hasRefusals: refused.size > 0 })
      if (failed.size === 0) return
      addRefusals(refused, failed)
      transaction = this.#rebuild(steps, refused)
    }
    await this.#markCommitted(transaction)
  }

  /** Records what a transaction without operations changes: objects that fell out of use stay in the kernel until they are swept. */
  async #markCommitted(transaction: Transaction): Promise<void> {
    await runSliced(transaction.markCommitted(), this.#newSlice())
  }

  #rebuild(steps: readonly Step[], refused: Refusals): Transaction {
    const transaction = this.#begin()
    for (const step of steps) {
      const rest = omitRefused(step, refused)
      if (rest !== undefined) applyStep(transaction, rest)
    }
    return transaction
  }

  /** Begins a transaction with the repair of chains that the last observation found damaged. */
  #begin(): Transaction {
    const transaction = new Transaction(this.committed, this.#balanceChains)
    transaction.repairChains()
    return transaction
  }

  async #putAll(transaction: Transaction, entries: Iterable<NftEntry>, refused: Refusals): Promise<void> {
    const slice = this.#newSlice()
    let seen = 0
    for (const entry of entries) {
      if (entry.kind !== 'listener' && !refused.has(entry.id)) transaction.put(entry)
      if (++seen % operationStride === 0 && slice.over) await slice.yieldLoop()
    }
  }

  #newSlice(): TimeSlice {
    return new TimeSlice(this.#clock)
  }
}

function recordSteps(steps: readonly Step[], { put, drop }: Written): void {
  for (const step of steps) {
    if (step.step === 'put') put.push(step.entry)
    else if (step.step === 'drop') drop.push(step.entry)
    else if (step.step === 'replace') {
      put.push(...step.put)
      drop.push(...step.drop)
    }
  }
}

/** Throws if the kernel refuses an entry that is left out already: then something else is at fault. */
function addRefusals(refused: Map<string, ProxyError>, failed: Refusals): void {
  for (const [id, error] of failed) {
    if (refused.has(id)) throw error
    refused.set(id, error)
  }
}

function throwFirst(failed: Refusals): void {
  for (const error of failed.values()) throw error
}
