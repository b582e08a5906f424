// The nftables table of one family: adopts it, writes it in small transactions, sweeps what is no longer used, and guards it.
//
// 1. One socket writes. On kernels that know owners it owns the table: nobody else can change or flush it while we live, and it stays
//    when we die. Elsewhere notices tell of foreign changes.
// 2. The mirror holds what was committed, nothing else. A failed transaction changed nothing, neither there nor in the kernel.
// 3. Slots and chains that nothing chooses any more stay for a second: a packet may be between two look-ups.
// 4. A table of another proxy, or one that we cannot own in place, is exchanged for ours in one transaction: no packet sees a gap.
// 5. At the end ownership is given up in the same way, so that whoever comes next, be it kube-proxy, finds a table it can use.

import { ProxyError } from '../../lib/errors.ts'
import { formatIp } from '../../lib/ip.ts'
import type { Timer } from '../../lib/time.ts'
import type { NodeView } from '../../model/types.ts'
import * as errno from '../../sys/errno.ts'
import { TABLE_OWNER, TABLE_PERSIST, type Table } from '../../sys/netlink/nft/types.ts'
import type { Nftables } from '../../sys/netlink/nftables.ts'
import type { Failure } from '../../sys/netlink/socket.ts'
import { MessageWriter } from '../../sys/netlink/writer.ts'
import type { Applied, Changes, Held, OpenContext, Refusal, Target, Wanted } from '../backend.ts'
import { base, tableName } from './base.ts'
import { Draft } from './draft.ts'
import { type Encoded, encode } from './encode.ts'
import type { ChainSpec, NftEntry, SetSpec } from './entries.ts'
import type { Features } from './features.ts'
import { Guard } from './guard.ts'
import { Listeners } from './listeners.ts'
import { Mirror } from './mirror.ts'
import { type Dump, type Expected, isOurs, observeTable } from './observe.ts'

/** Some 10 ms of the kernel's time; the event loop has its turn in between. */
const chunkOperations = 1500
const sweepMs = 1_100
const transient: ReadonlySet<number> = new Set([errno.ERESTART, errno.EINTR, errno.EAGAIN, errno.EBUSY, 12])
const attempts = 5

/** Held in place of everything when the table is not ours: it goes when ours comes, in one exchange. */
const foreignTable: Held = { id: 'table foreign', kind: 'table', digest: '' }

export class NftTarget implements Target<NftEntry> {
  readonly #context: OpenContext
  readonly #flags: number
  readonly #nft: Nftables
  readonly #guard: Guard | undefined
  readonly #listeners: Listeners
  readonly #writer = new MessageWriter(1 << 16)
  readonly #mirror = new Mirror()
  readonly #expected: Expected
  #wanted: Wanted<NftEntry> | undefined
  /** The mirror is what was observed and nothing was committed since: the kernel's word on an entry is about the entry. */
  #fresh = false
  #exchange = false
  /** Of the table to be exchanged. */
  #formerClients: ReadonlyMap<string, readonly string[]> = new Map()
  /** The table is there, and ours if it can be. */
  #taken = false
  #timer: Timer | undefined
  /** One transaction at a time: syncs, sweeps and the last one. */
  #turn: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(context: OpenContext, nft: Nftables, features: Features) {
    this.#context = context
    this.#nft = nft
    this.#expected = expectedOf(context.node)
    this.#flags = features.owner ? TABLE_OWNER | TABLE_PERSIST : 0
    this.#listeners = new Listeners(context)
    if (!features.owner) this.#guard = new Guard(nft.port, context)
  }

  drifted(): boolean {
    return this.#guard?.drifted ?? false
  }

  observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#exclusively(async () => {
      this.#guard?.reset()
      this.#fresh = true
      this.#exchange = false
      this.#taken = false
      const table = (await this.#nft.tables({ signal })).find((one) => this.#isIt(one))
      if (table === undefined) {
        this.#mirror.clear()
        return this.#listeners.held()
      }
      const dump = await this.#dump(signal)
      if (!isOurs(dump) || !this.#ownable(table)) {
        this.#mirror.clear()
        this.#exchange = true
        this.#formerClients = await this.#clients(signal)
        return [foreignTable, ...this.#listeners.held()]
      }
      return [...observeTable(dump, this.#expected, this.#mirror), ...this.#listeners.held()]
    })
  }

  apply(changes: Changes<NftEntry>, wanted: Wanted<NftEntry>, signal: AbortSignal): Promise<Applied> {
    return this.#exclusively(async () => {
      this.#wanted = wanted
      const refused: Refusal[] = []
      const put = changes.put.filter((entry) => entry.kind !== 'listener')
      const drop = changes.drop.filter((held) => held.kind !== 'listener' && held.kind !== 'table')
      if (this.#exchange) await this.#exchangeTable(put, refused)
      else await this.#applyInChunks(put, drop, refused, signal)
      refused.push(...(await this.#listeners.apply(changes)))
      this.#armSweep()
      return { refused }
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#timer?.cancel()
    await this.#exclusively(() => this.#release()).catch((error) =>
      this.#context.log.warn('the table stays owned by nobody; kube-proxy will not be able to take it over', { error }),
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

  async #dump(signal: AbortSignal): Promise<Dump> {
    const { family } = this.#context
    const sets = await this.#nft.sets(family, tableName, { signal })
    const known = this.#expected.sets
    const elements = new Map<string, Awaited<ReturnType<Nftables['elements']>>>()
    for (const { name } of sets) {
      if (known.has(name)) elements.set(name, await this.#nft.elements(family, tableName, name, { signal }))
    }
    const chains = await this.#nft.chains(family, tableName, { signal })
    return { sets, elements, chains, rules: await this.#nft.rules(family, tableName, { signal }) }
  }

  /** Clients that affinity sets remember: they stay with their endpoints when the table is exchanged. */
  async #clients(signal?: AbortSignal): Promise<ReadonlyMap<string, readonly string[]>> {
    const { family } = this.#context
    const clients = new Map<string, readonly string[]>()
    for (const { name } of await this.#nft.sets(family, tableName, { signal })) {
      if (!name.startsWith('affinity-')) continue
      const members = await this.#nft.elements(family, tableName, name, { signal })
      clients.set(
        name,
        members.map(({ key }) => formatIp(key)),
      )
    }
    return clients
  }

  // ---- Writing. ----

  async #applyInChunks(
    put: readonly NftEntry[],
    drop: readonly Held[],
    refused: Refusal[],
    signal: AbortSignal,
  ): Promise<void> {
    const steps = stepsOf(put, drop)
    for (let next = 0, first = true; first || next < steps.length; first = false) {
      signal.throwIfAborted()
      const chunk: Step[] = []
      const draft = this.#draft()
      while (next < steps.length && draft.size < chunkOperations) {
        const step = steps[next++] as Step
        take(draft, step)
        chunk.push(step)
      }
      await this.#transact(chunk, draft, refused)
      if (next < steps.length) await new Promise<void>((resolve) => setImmediate(resolve))
    }
  }

  /** A draft that begins with what the last look found damaged. */
  #draft(): Draft {
    const draft = new Draft(this.#mirror, this.#context.node)
    for (const [name, chain] of this.#mirror.stale) draft.putChain(`chain ${name}`, chain)
    return draft
  }

  /** Commits the draft of a chunk; entries that the kernel refuses are left out and the rest is tried again. */
  async #transact(chunk: readonly Step[], drafted: Draft, refused: Refusal[]): Promise<void> {
    const out = new Set<string>()
    // Even with nothing to write, the table of a predecessor must become ours.
    for (let draft = drafted; draft.size > 0 || !this.#taken; ) {
      const failed = await this.#commit(draft, { replace: false })
      if (failed.size === 0) return
      this.#blame(failed, refused, out)
      draft = this.#draft()
      for (const step of chunk) if (!out.has((step.put ?? step.drop).id)) take(draft, step)
    }
  }

  /** Everything in one transaction, whatever its size: a table of which only a part is there would be a gap. */
  async #exchangeTable(put: readonly NftEntry[], refused: Refusal[]): Promise<void> {
    const out = new Set<string>()
    for (;;) {
      this.#mirror.clear()
      const draft = this.#draft()
      for (const entry of inOrder(put)) if (!out.has(entry.id)) draft.put(entry)
      draft.remember(this.#formerClients)
      const failed = await this.#commit(draft, { replace: true })
      if (failed.size === 0) break
      this.#blame(failed, refused, out)
    }
    this.#exchange = false
  }

  #blame(failed: ReadonlyMap<string, ProxyError>, refused: Refusal[], out: Set<string>): void {
    for (const [id, error] of failed) {
      if (out.has(id)) throw error
      out.add(id)
      refused.push({ id, error })
    }
  }

  /** Entries the kernel refused, by id; throws if the fault is not with single entries. */
  async #commit(
    draft: Draft,
    { replace, flags = this.#flags }: { replace: boolean; flags?: number },
  ): Promise<ReadonlyMap<string, ProxyError>> {
    const { family } = this.#context
    const shapeOf = (set: string) => (set.startsWith('affinity-') ? 'affinity' : this.#expected.sets.get(set)?.shape)
    for (let attempt = 1; ; attempt++) {
      const encoded = encode(this.#writer, draft.operations(), shapeOf, { family, flags, replace })
      const { failures, overflow } = await this.#nft.commit(this.#writer, encoded.last)
      const first = failures[0]
      if (first === undefined && !overflow) {
        draft.commit()
        this.#mirror.stale.clear()
        this.#fresh = false
        this.#taken = true
        return new Map()
      }
      if (first === undefined || overflow)
        throw new ProxyError('nftables', 'too many errors to tell which entries failed')
      if (!transient.has(first.errno)) return this.#failures(failures, encoded)
      if (attempt === attempts) throw this.#nft.failure('commit', first)
      await new Promise<void>((resolve) => this.#context.clock.after(2 ** attempt, resolve))
    }
  }

  #failures(failures: readonly Failure[], encoded: Encoded): ReadonlyMap<string, ProxyError> {
    const byEntry = new Map<string, ProxyError>()
    for (const failure of failures) {
      const entry = encoded.entryOf(failure.sequence)
      const error = this.#nft.failure(entry === undefined ? 'commit' : `write ${entry}`, failure)
      if (failure.errno === errno.EPERM) {
        throw new ProxyError('nftables-owned', 'another process owns our table: is a second proxy running?', {
          cause: error,
        })
      }
      // Absent or present against what we believe: look first, before anybody is blamed.
      if (entry === undefined || (!this.#fresh && confused.has(failure.errno))) throw error
      byEntry.set(entry, error)
    }
    return byEntry
  }

  // ---- Sweeping. ----

  #armSweep(): void {
    this.#timer?.cancel()
    if (this.#closed || !this.#mirror.anyRetired) return
    this.#timer = this.#context.clock.after(sweepMs, () => {
      this.#exclusively(() => this.#sweep()).catch((error) => {
        this.#context.log.v(2, 'sweeping unused slots and chains failed; trying again', { error })
        this.#armSweep()
      })
    })
  }

  async #sweep(): Promise<void> {
    if (this.#closed) return
    const draft = new Draft(this.#mirror, this.#context.node)
    draft.sweep(this.#mirror.retired())
    if (draft.size > 0) {
      const failed = await this.#commit(draft, { replace: false })
      for (const error of failed.values()) throw error
    }
    this.#mirror.swept()
  }

  /** The same table again, but nobody's: what has an owner, or had one, kube-proxy cannot use. */
  async #release(): Promise<void> {
    if (this.#flags === 0 || this.#wanted === undefined || this.#exchange) return
    const draft = new Draft(new Mirror(), this.#context.node)
    const entries = [...this.#wanted.entries()].filter((entry) => entry.kind !== 'listener')
    for (const entry of inOrder(entries)) draft.put(entry)
    draft.remember(await this.#clients())
    const failed = await this.#commit(draft, { replace: true, flags: 0 })
    for (const error of failed.values()) throw error
  }

  #exclusively<T>(run: () => Promise<T>): Promise<T> {
    const next = this.#turn.then(run)
    this.#turn = next.catch(() => {})
    return next
  }
}

type Step = { readonly put: NftEntry; readonly drop?: undefined } | { readonly put?: undefined; readonly drop: Held }

function take(draft: Draft, step: Step): void {
  if (step.put === undefined) draft.drop(step.drop)
  else draft.put(step.put)
}

/** What is new comes before what goes, so that there is never less than before; but ranges may not overlap the old ones. */
function stepsOf(put: readonly NftEntry[], drop: readonly Held[]): readonly Step[] {
  const range = ({ id }: Held) => id.startsWith('firewall-allowed ')
  const [structure, rest] = [put.filter(isStructure), put.filter((entry) => !isStructure(entry))]
  return [
    ...inOrder(structure).map((entry) => ({ put: entry })),
    ...drop.filter(range).map((held) => ({ drop: held })),
    ...inOrder(rest.filter(range)).map((entry) => ({ put: entry })),
    ...inOrder(rest.filter((entry) => !range(entry))).map((entry) => ({ put: entry })),
    ...inOrder(drop.filter((held) => !range(held)))
      .reverse()
      .map((held) => ({ drop: held })),
  ]
}

const isStructure = ({ kind }: Held): boolean => kind === 'set' || kind === 'chain'

const order = ['set', 'chain', 'element', 'frontend']

/** What refers to another comes after it. */
const inOrder = <H extends Held>(list: readonly H[]): H[] =>
  [...list].sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind))

const confused: ReadonlySet<number> = new Set([errno.ENOENT, errno.EEXIST])

/** The base with every set it may ever have. */
function expectedOf(node: NodeView): Expected {
  const sets = new Map<string, SetSpec>()
  const chains = new Map<string, ChainSpec>()
  for (const entry of base({ ...node, nodePorts: { ...node.nodePorts, all: false } })) {
    if (entry.kind === 'set') sets.set(entry.set.name, entry.set)
    else if (entry.kind === 'chain') chains.set(entry.chain.name, entry.chain)
  }
  return { node, sets, chains }
}
