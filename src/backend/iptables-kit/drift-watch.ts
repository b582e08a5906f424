// Notices that somebody else changed our chains: a cheap look twice a second, a thorough one only if anybody changed anything.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { SetHash } from '../../lib/set-hash.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import type { IptablesTableName } from '../iptables/entries.ts'
import { parseRule } from '../iptables/written.ts'
import { canary, kubeletFirewall } from './chains.ts'
import type { ChainUses, TableReader } from './table-reader.ts'

export interface DriftWatchOptions {
  readonly sight: TableReader
  /** What we wrote, as `Book.uses`. */
  readonly expected: () => ReadonlyMap<string, number>
  /** What we wrote, for `Sight.matches`. */
  readonly written?: () => { readonly rules: SetHash; readonly uses: Map<string, number> }
  /** Our own rules in chains that are not ours. */
  readonly hooks: readonly { readonly table: string; readonly to: string }[]
  /** As `Book.parts`. */
  readonly parts: () => Readonly<Record<IptablesTableName, number>>
  readonly onDrift: (culprit: string) => void
  readonly clock: Clock
  readonly log: Logger
}

/** A look costs 20 µs in the nft flavour, 30 µs in the other. */
const periodMs = 500
const restMs = 30_000
/** Thorough looks take at most this share of the time in the long run, however busy other writers are. */
const lookShare = 0.05
/** But so many may follow each other: the one that finds a drift must not wait because there was another just before, as after a write. */
const looksInRow = 3

/** How things were before a write of our own. */
export interface Before {
  readonly mark: string
  /** What we had written; undefined if others may have changed something. */
  readonly parts: Readonly<Record<IptablesTableName, number>> | undefined
}

/** More than these need not be told. */
const named = 3

/**
 * Others may write all the time, or a kernel may count otherwise than we think: after so many full writes in a row that do not help
 * things are taken as they are.
 */
const patience = 3

export class DriftWatch {
  readonly #options: DriftWatchOptions
  /** The mark under which all was as we wrote it; undefined: unknown, so the next look is a thorough one. */
  #mark: string | undefined
  /** Jumps of others to our chains, which no rewriting of ours takes away. */
  #tolerated: ReadonlyMap<string, number> = new Map()
  #timer: Timer | undefined
  #writing = false
  /** Writes begun: what was seen across one means nothing. */
  #writes = 0
  /** Told, and not repaired yet. */
  #told = false
  /** Full writes in a row that did not help. */
  #doubts = 0
  /** How long the last thorough look took. */
  #lookMs = 0
  /** What looks took and the time since has not made up for. */
  #debtMs = 0
  #reckonedAt = 0
  #closed = false

  constructor(options: DriftWatchOptions) {
    this.#options = options
  }

  /** Something of ours is not as we wrote it. */
  get drifted(): boolean {
    return this.#told
  }

  /** Everything is about to be read and written: what a look would find is of no use. Should that not happen, looks go on later. */
  rest(): void {
    if (!this.#told) this.#arm(restMs)
  }

  /** Before a write of our own, so that foreign changes during it can be told. */
  async pause(): Promise<Before> {
    this.#writing = true
    this.#writes++
    this.#timer?.cancel()
    const mark = await this.#options.sight.version()
    return { mark, parts: mark === this.#mark ? this.#options.parts() : undefined }
  }

  /**
   * After a write: `before` as `pause` returned it, undefined if the write was not as planned. A full write took away all that
   * was not ours in our chains.
   */
  async resume(before: Before | undefined, commits: number, full: boolean, signal: AbortSignal): Promise<void> {
    const mark = await this.#options.sight.version()
    const certain = this.#isOwn(before, mark, commits, full)
    this.#mark = certain ? mark : undefined
    if (full && this.#told) {
      this.#mark = mark
      await this.#adopt(certain, signal)
    }
    this.#writing = false
    this.#arm(periodMs)
  }

  /** Nothing but our write happened, and all is as it should be; a change of others in the same moment must not pass for ours. */
  #isOwn(before: Before | undefined, mark: string, commits: number, full: boolean): boolean {
    if (before === undefined || (before.parts === undefined && !full)) return false
    const now = this.#options.parts()
    const was = before.parts
    const parts = was && { filter: now.filter - was.filter, nat: now.nat - was.nat }
    return this.#options.sight.onlyOwn(before.mark, mark, { commits, parts })
  }

  /** After a write that failed: nothing is known. */
  abandon(): void {
    this.#mark = undefined
    this.#writing = false
    this.#arm(periodMs)
  }

  close(): void {
    this.#closed = true
    this.#timer?.cancel()
    this.#options.sight.close()
  }

  /**
   * After everything was written because something differed, what chains still have too much comes of others' jumps, unless
   * somebody wrote in that very moment. What is missing is a drift once more.
   */
  async #adopt(undisturbed: boolean, signal: AbortSignal): Promise<void> {
    const { sight, expected } = this.#options
    const mark = this.#mark
    const seen = await sight.readUses(signal)
    const certain = undisturbed && mark === (await sight.version())
    const extra = certain ? this.#extraIn(seen) : new Map<string, number>()
    this.#tolerated = seen.jumps === undefined ? extra : this.#foreignIn(seen.jumps)
    const found = this.#compare(seen)
    if (found !== '' && this.#doubts < patience) {
      this.#doubts++
      this.#tell(found)
      return
    }
    if (found !== '') {
      this.#tolerated = new Map([...expected()].map(([chain, use]) => [chain, (seen.uses.get(chain) ?? use) - use]))
      this.#options.log.warn('rules do not become what was written', { found })
    }
    this.#doubts = 0
    this.#told = false
  }

  #arm(ms: number): void {
    if (this.#closed) return
    this.#timer?.cancel()
    this.#timer = this.#options.clock.after(ms, () => {
      this.#check().catch((error: unknown) => {
        // The next look tries again.
        this.#options.log.warn('cannot look after our rules', { error: describeError(error) })
        this.#arm(periodMs)
      })
    })
  }

  async #check(): Promise<void> {
    const { sight, clock } = this.#options
    if (this.#told) return
    const writes = this.#writes
    const isVoid = () => this.#writing || writes !== this.#writes || this.#closed
    const mark = await sight.version()
    if (isVoid()) return
    if (mark === this.#mark) return this.#arm(periodMs)
    const wait = this.#waitMs()
    if (wait > 0) return this.#arm(Math.max(periodMs, wait))
    const begun = clock.monotonic()
    const found = (await this.#matches()) || isVoid() ? '' : this.#compare(await sight.readUses())
    this.#lookMs = clock.monotonic() - begun
    this.#debtMs += this.#lookMs
    if (isVoid()) return
    if (found !== '') return this.#tell(found)
    this.#mark = mark
    this.#arm(periodMs)
  }

  /** Until there may be another thorough look. */
  #waitMs(): number {
    const now = this.#options.clock.monotonic()
    this.#debtMs = Math.max(0, this.#debtMs - (now - this.#reckonedAt) * lookShare)
    this.#reckonedAt = now
    return (this.#debtMs - (looksInRow - 1) * this.#lookMs) / lookShare
  }

  /** Whether all is as written, and tolerated, where that can be told at little cost. */
  async #matches(): Promise<boolean> {
    const { sight, written } = this.#options
    if (sight.matches === undefined || written === undefined) return false
    const { rules, uses } = written()
    for (const [chain, more] of this.#tolerated) uses.set(chain, (uses.get(chain) ?? 0) + more)
    return await sight.matches({ rules, uses })
  }

  #tell(found: string): void {
    this.#mark = undefined
    this.#told = true
    this.#options.onDrift(`another program (${found})`)
  }

  /** Jumps of others to our chains, counted from the rules themselves. */
  #foreignIn(jumps: ReadonlySet<string>): Map<string, number> {
    const foreign = new Map<string, number>()
    const count = (chain: string, by: number) => foreign.set(chain, (foreign.get(chain) ?? 0) + by)
    for (const jump of jumps) count(`${jump.slice(0, jump.indexOf(' '))} ${targetOf(jump)}`, 1)
    for (const { table, to } of this.#options.hooks) count(`${table} ${to}`, -1)
    // Fewer than there should be is no reason to want fewer.
    return new Map([...foreign].filter(([, jumps]) => jumps > 0))
  }

  #extraIn({ uses }: ChainUses): Map<string, number> {
    const extra = new Map<string, number>()
    for (const [chain, wanted] of this.#options.expected()) {
      const more = (uses.get(chain) ?? wanted) - wanted
      if (more > 0) extra.set(chain, more)
    }
    return extra
  }

  /** '' if all is as it should be. */
  #compare({ uses }: ChainUses): string {
    const found: string[] = []
    const complain = (text: string) => found.push(text)
    for (const table of ['filter', 'nat', 'mangle']) {
      if (!uses.has(`${table} ${canary}`)) complain(`${table} ${canary} is gone`)
    }
    for (const [chain, own] of this.#options.expected()) {
      const wanted = own + (this.#tolerated.get(chain) ?? 0)
      const use = uses.get(chain)
      // Kubelet writes its chain, too; only what is missing there is our business.
      const missing = use === undefined || (chain.endsWith(` ${kubeletFirewall}`) ? use < wanted : use !== wanted)
      if (!missing) continue
      complain(use === undefined ? `${chain} is gone` : `${chain} has ${use} rules and jumps instead of ${wanted}`)
      if (found.length > named) break
    }
    return found.length > named ? `${found.slice(0, named).join(', ')} and more` : found.join(', ')
  }
}

const targetOf = (jump: string): string => parseRule(jump, 0, jump.length).target
