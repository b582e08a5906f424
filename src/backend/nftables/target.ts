// The nftables table of one family: adopts it, writes it in small transactions, sweeps what is no longer used, and guards it.
//
// 1. One socket writes. On kernels that know owners it owns the table: nobody else can change or flush it while we live, and it stays
//    when we die. Elsewhere notices tell of foreign changes.
// 2. The mirror holds what was committed, nothing else. A failed transaction changed nothing, neither there nor in the kernel.
// 3. Slots and chains that nothing chooses any more stay for a second: a packet may be between two look-ups.
// 4. A table of another proxy, or one that we cannot own in place, is exchanged for ours in one transaction: no packet sees a gap.
// 5. At the end ownership is given up in the same way, so that whoever comes next, be it kube-proxy, finds a table it can use.

import { ProxyError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import type { Timer } from '../../lib/time.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'
import * as errno from '../../sys/errno.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import { TABLE_OWNER, TABLE_PERSIST, type Table } from '../../sys/netlink/nft/nft-types.ts'
import type { MessageFailure } from '../../sys/netlink/socket.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Target, Wanted } from '../backend.ts'
import { affinityClients, dumpTable, expectedOf, type Kernel } from './adopt/dump.ts'
import { type ExpectedTable, isOurs, recogniseTable } from './adopt/recognise.ts'
import { tableName } from './base.ts'
import { CommittedState } from './commit/committed.ts'
import { type Encoded, EncodeError, encode } from './commit/encode.ts'
import { applyStep, listening, orderSteps, type Step, without } from './commit/order.ts'
import { Transaction } from './commit/transaction.ts'
import { TableGuard } from './drift.ts'
import type { NftEntry } from './entries.ts'
import type { NftablesFeatures } from './features.ts'
import { LoopbackListeners } from './listeners.ts'

/** Some milliseconds of ours and of the kernel's time each; the event loop has its turn in between. */
const chunkOperations = 1_000
/** As many may need no operation at all. */
const chunkSteps = 2_000
/** Steps between two looks at the clock. */
const stride = 20
const sweepMs = 1_100
/** How soon we notice that the owner of our table is gone. */
const ownerMs = 500
const transient: ReadonlySet<number> = new Set([
  errno.ERESTART,
  errno.EINTR,
  errno.EAGAIN,
  errno.EBUSY,
  errno.ENOMEM,
  errno.ENOBUFS,
])
const attempts = 5
/** So often in a row a sweep may fail before the whole table is exchanged: something that we do not see holds what must go. */
const failedSweeps = 3

/** Held in place of everything when the table is not ours: it goes when ours comes, in one exchange. */
const foreignTable: Held = { id: 'table foreign', kind: 'table', digest: '' }

export class NftTarget implements Target<NftEntry> {
  readonly #context: OpenContext
  readonly #flags: number
  readonly #nft: Kernel
  readonly #guard: TableGuard | undefined
  readonly #listeners: LoopbackListeners
  readonly #writer = new MessageWriter(1 << 16)
  readonly #mirror = new CommittedState()
  readonly #expected: ExpectedTable
  #wanted: Wanted<NftEntry> | undefined
  /** The mirror is what was observed and nothing was committed since: the kernel's word on an entry is about the entry. */
  #fresh = false
  #exchange = false
  /** Of the table to be exchanged. */
  #formerClients: ReadonlyMap<string, readonly string[]> = new Map()
  /** The table is there, and ours if it can be. */
  #taken = false
  #sweepTimer: Timer | undefined
  #failedSweeps = 0
  #ownerTimer: Timer | undefined
  /** One transaction at a time: syncs, sweeps and the last one. */
  readonly #turns = new Mutex()
  #closed = false

  constructor(context: OpenContext, nft: Kernel, features: NftablesFeatures) {
    this.#context = context
    this.#nft = nft
    this.#expected = expectedOf(context.node)
    const owned = features.owner && features.persist
    this.#flags = owned ? TABLE_OWNER | TABLE_PERSIST : 0
    this.#listeners = new LoopbackListeners(context)
    if (!owned) this.#guard = new TableGuard(nft.port, context)
  }

  drifted(): boolean {
    return this.#stuck || (this.#guard?.drifted ?? false)
  }

  observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#turns.run(async () => {
      this.#guard?.reset()
      this.#fresh = true
      this.#exchange = false
      this.#taken = false
      const table = (await this.#nft.tables({ signal })).find((one) => this.#isIt(one))
      if (table === undefined) {
        this.#mirror.clear()
        return this.#listeners.held()
      }
      const dump = await dumpTable(this.#nft, this.#expected, signal)
      const usable = isOurs(dump) && this.#ownable(table) && !this.#stuck
      const held = usable ? await recogniseTable(dump, this.#expected, this.#mirror, this.#stint()) : undefined
      if (held === undefined) {
        this.#mirror.clear()
        this.#exchange = true
        this.#formerClients = await affinityClients(this.#nft, this.#context.family, signal)
        return [foreignTable, ...this.#listeners.held()]
      }
      return [...held, ...this.#listeners.held()]
    })
  }

  apply(changes: Changes<NftEntry>, signal: AbortSignal, wanted: Wanted<NftEntry>): Promise<Applied> {
    return this.#turns.run(async () => {
      this.#wanted = wanted
      const refused: RefusedEntry[] = []
      if (this.#exchange) await this.#exchangeTable(changes.put, refused)
      else await this.#applyInChunks(changes, refused, signal)
      refused.push(...(await this.#listeners.apply(await runSliced(listening(changes), this.#stint()))))
      this.#armSweep()
      return { refused }
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#sweepTimer?.cancel()
    this.#ownerTimer?.cancel()
    await this.#turns
      .run(() => this.#release())
      .catch((error) =>
        this.#context.log.warn('our table could not be released: kube-proxy cannot use it as it is', { error }),
      )
    await this.#listeners.close()
    this.#guard?.close()
    this.#nft.close()
  }

  // ---- Reading. ----

  #isIt({ family, name }: Pick<Table, 'family' | 'name'>): boolean {
    return family === this.#context.family && name === tableName
  }

  /** The kernel cannot make a table persistent that is not. */
  #ownable({ flags = 0 }: Table): boolean {
    return (flags & TABLE_PERSIST) === (this.#flags & TABLE_PERSIST)
  }

  // ---- Writing. ----

  async #applyInChunks({ put, drop }: Changes<NftEntry>, refused: RefusedEntry[], signal: AbortSignal): Promise<void> {
    // Listeners, and what stands for a foreign table, are no step.
    const stint = this.#stint()
    const { first, second } = await runSliced(orderSteps(put, drop), stint)
    let draft: Transaction | undefined
    for (const steps of [first, second]) {
      let chunk: Step[] = []
      for (const step of steps) {
        draft ??= this.#draft()
        chunk.push(step)
        applyStep(draft, step)
        if (chunk.length % stride === 0 && stint.over) await stint.yieldLoop()
        if (draft.size < chunkOperations && chunk.length < chunkSteps) continue
        if (draft.size > 0) await this.#transact(chunk, draft, refused)
        chunk = []
        draft = undefined
        await stint.yieldLoop()
        signal.throwIfAborted()
      }
      if (draft === undefined || draft.size === 0) continue
      await this.#transact(chunk, draft, refused)
      draft = undefined
    }
    // Even with nothing to write: what the last look found damaged, and the table of a predecessor that must become ours.
    if (this.#mirror.stale.size > 0 || !this.#taken) await this.#transact([], this.#draft(), refused)
  }

  /** A draft that begins with what the last look found damaged. */
  #draft(): Transaction {
    const draft = new Transaction(this.#mirror, this.#context.node)
    for (const [name, chain] of this.#mirror.stale) draft.putChain(`chain ${name}`, chain)
    return draft
  }

  /** Commits the draft of a chunk; entries that the kernel refuses, now or before, are left out and the rest is tried again. */
  async #transact(chunk: readonly Step[], drafted: Transaction, refused: RefusedEntry[]): Promise<void> {
    const out = new Set(refused.map(({ id }) => id))
    for (let draft = out.size > 0 ? this.#redraft(chunk, out) : drafted; draft.size > 0 || !this.#taken; ) {
      const failed = await this.#commit(draft, { replace: false, refusals: refused.length > 0 })
      if (failed.size === 0) return
      this.#blame(failed, refused, out)
      draft = this.#redraft(chunk, out)
    }
  }

  #redraft(chunk: readonly Step[], out: ReadonlySet<string>): Transaction {
    const draft = this.#draft()
    for (const step of chunk) {
      const left = without(step, out)
      if (left !== undefined) applyStep(draft, left)
    }
    return draft
  }

  /** Everything in one transaction, whatever its size: a table of which only a part is there would be a gap. */
  async #exchangeTable(put: readonly NftEntry[], refused: RefusedEntry[]): Promise<void> {
    const out = new Set<string>()
    for (;;) {
      this.#mirror.clear()
      const draft = this.#draft()
      await this.#putAll(draft, put, out)
      draft.remember(this.#formerClients)
      const failed = await this.#commit(draft, { replace: true, refusals: refused.length > 0 })
      if (failed.size === 0) break
      this.#blame(failed, refused, out)
    }
    this.#exchange = false
    this.#failedSweeps = 0
  }

  async #putAll(draft: Transaction, entries: Iterable<NftEntry>, out: ReadonlySet<string>): Promise<void> {
    const stint = this.#stint()
    let seen = 0
    for (const entry of entries) {
      if (entry.kind !== 'listener' && !out.has(entry.id)) draft.put(entry)
      if (++seen % stride === 0 && stint.over) await stint.yieldLoop()
    }
  }

  #blame(failed: ReadonlyMap<string, ProxyError>, refused: RefusedEntry[], out: Set<string>): void {
    for (const [id, error] of failed) {
      if (out.has(id)) throw error
      out.add(id)
      refused.push({ id, error })
    }
  }

  /** Entries the kernel refused, by id; throws if the fault is not with single entries. */
  async #commit(draft: Transaction, how: Commit): Promise<ReadonlyMap<string, ProxyError>> {
    const { family } = this.#context
    const { replace, flags = this.#flags } = how
    const shapeOf = (set: string) => (set.startsWith('affinity-') ? 'affinity' : this.#expected.sets.get(set)?.shape)
    let single = false
    for (let attempt = 1; ; attempt++) {
      let encoded: Encoded
      try {
        const table = { family, flags, replace, single, settled: this.#taken }
        const walk = encode(this.#writer, draft.operations(), shapeOf, table)
        encoded = await runSliced(walk, this.#stint())
      } catch (error) {
        if (!(error instanceof EncodeError)) throw error
        return new Map([[error.entry, error]])
      }
      const { failures, overflow } = await this.#nft.commit(this.#writer, encoded.last)
      const first = failures[0]
      if (first === undefined && !overflow) {
        await runSliced(draft.markCommitted(), this.#stint())
        this.#mirror.stale.clear()
        this.#fresh = false
        this.#taken = true
        return new Map()
      }
      if (first === undefined || overflow)
        throw new ProxyError('nftables', 'too many errors to tell which entries failed')
      if (!failures.some((failure) => transient.has(failure.errno))) {
        if (single) return this.#failures(failures, encoded, how)
        // Once more, with a message for each element, to learn whose fault it is.
        single = true
        continue
      }
      if (attempt === attempts) throw this.#nft.failure('commit', first)
      await new Promise<void>((resolve) => this.#context.clock.after(2 ** attempt, resolve))
    }
  }

  #failures(
    failures: readonly MessageFailure[],
    encoded: Encoded,
    { refusals = false }: Commit,
  ): ReadonlyMap<string, ProxyError> {
    const byEntry = new Map<string, ProxyError>()
    for (const failure of failures) {
      const entry = encoded.entryOf(failure.sequence)
      const error = this.#nft.failure(entry === undefined ? 'commit' : `write ${entry}`, failure)
      if (failure.errno === errno.EPERM) {
        this.#awaitOwner()
        throw new ProxyError('nftables-owned', 'another process owns our table: is a second proxy running?', {
          cause: error,
        })
      }
      // Absent or present against what we believe: look first, before anybody is blamed. Unless it is for what was refused before.
      if (entry === undefined || (!this.#fresh && !refusals && confused.has(failure.errno))) throw error
      if (!byEntry.has(entry)) byEntry.set(entry, error)
    }
    return byEntry
  }

  /** The owner may be our predecessor, about to end: the table is ours as soon as it is nobody's. */
  #awaitOwner(): void {
    this.#ownerTimer?.cancel()
    if (this.#closed) return
    this.#ownerTimer = this.#context.clock.after(ownerMs, () => {
      this.#turns
        .run(() => this.#nft.tables())
        .then(
          (tables) => {
            const owned = tables.some((table) => this.#isIt(table) && ((table.flags ?? 0) & TABLE_OWNER) !== 0)
            if (owned) this.#awaitOwner()
            else if (!this.#closed) this.#context.onDue?.()
          },
          () => this.#awaitOwner(),
        )
    })
  }

  #stint(): TimeSlice {
    return new TimeSlice(this.#context.clock)
  }

  // ---- Sweeping. ----

  /** In a steady rhythm, however often something changes: what is retired in one turn goes in the next. */
  #armSweep(): void {
    if (this.#closed || this.#sweepTimer !== undefined || !this.#mirror.anyRetired) return
    this.#sweepTimer = this.#context.clock.after(sweepMs, () => {
      this.#sweepTimer = undefined
      this.#turns
        .run(() => this.#sweep())
        .then(
          () => {
            this.#failedSweeps = 0
          },
          (error) => {
            this.#context.log.v(2, 'sweeping unused slots and chains failed; trying again', { error })
            if (++this.#failedSweeps === failedSweeps) this.#context.onDue?.()
          },
        )
        .finally(() => this.#armSweep())
    })
  }

  get #stuck(): boolean {
    return this.#failedSweeps >= failedSweeps
  }

  async #sweep(): Promise<void> {
    if (this.#closed) return
    const stint = this.#stint()
    for (;;) {
      const draft = new Transaction(this.#mirror, this.#context.node)
      const retired = this.#mirror.retired(chunkOperations)
      draft.sweep(retired)
      if (draft.size === 0) {
        this.#mirror.swept(retired)
        break
      }
      const failed = await this.#commit(draft, { replace: false })
      for (const error of failed.values()) throw error
      await stint.yieldLoop()
    }
    this.#mirror.age()
  }

  /** The same table again, but nobody's: what has an owner, or had one, kube-proxy cannot use. */
  async #release(): Promise<void> {
    if (this.#flags === 0 || this.#wanted === undefined || !this.#taken) return
    const draft = new Transaction(new CommittedState(), this.#context.node)
    await this.#putAll(draft, this.#wanted.entries(), new Set())
    draft.remember(await affinityClients(this.#nft, this.#context.family))
    const failed = await this.#commit(draft, { replace: true, flags: 0 })
    for (const error of failed.values()) throw error
  }
}

interface Commit {
  readonly replace: boolean
  readonly flags?: number
  /** Something of the same changes was refused already: what is missing now may be missing for that reason. */
  readonly refusals?: boolean
}

const confused: ReadonlySet<number> = new Set([errno.ENOENT, errno.EEXIST])
