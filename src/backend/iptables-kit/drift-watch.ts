// Notices that another program changed our chains, and reports it once until everything has been written again.
//
//                       a check finds a difference
//         +--------------------------------------------------+
//         |                                                  v
//    +----------+   beginWrite    +---------+   beginWrite   +---------+
//    | watching | --------------> | writing | <------------- | drifted |
//    |          | <-------------- |         | -------------> |         |
//    +----------+    endWrite     +---------+    endWrite    +---------+
//    checks after    abandonWrite   no checks    abandonWrite  no checks: the drift is reported
//    every change
//
//    close leads from every state to `closed`, which is never left.
//
// From `writing` the watch goes back to where it came from, with one exception: a full write repairs a drift. Then all chains are read
// once more. If they are as written, or differ only by what is tolerated, the watch goes on to `watching`; if not, the drift is reported
// again. A check in `watching` reads a version, and looks at all chains only if the version has changed. Where the kernel reports changes,
// a check follows a report; elsewhere checks are made all the time.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import type { DriftReason } from '../backend.ts'
import type { IptablesTableName } from './chains.ts'
import { countForeignJumps, describeDifference, findDifferences, findExtraUses } from './compare-uses.ts'
import { LookBudget } from './look-budget.ts'
import type { RuleSetHash } from './rule-hash.ts'
import type { TableReader } from './table-reader.ts'

export interface DriftWatchOptions {
  readonly reader: TableReader
  /** Uses of every chain that we wrote; the key is `nat KUBE-SERVICES`. */
  readonly expected: () => ReadonlyMap<string, number>
  /** What we wrote, for `TableReader.matches`. The watch may change `uses`. */
  readonly written?: () => { readonly rules: RuleSetHash; readonly uses: Map<string, number> }
  /** Entries that the legacy tables hold for what we wrote. */
  readonly legacyEntries: () => LegacyEntries
  /** Our own jumps in built-in chains. */
  readonly hooks: readonly { readonly table: string; readonly to: string }[]
  readonly onDrift: (culprit: string, reason: DriftReason) => void
  readonly clock: Clock
  readonly log: Logger
}

/** Entries that each legacy table holds for what we wrote. A constant may be missing: only differences count. */
export type LegacyEntries = Readonly<Record<IptablesTableName, number>>

/** A write of ours that is in the kernel. */
export interface FinishedWrite {
  /** Tables of the restores that succeeded. */
  readonly commits: number
  /** True if everything was written, which removes foreign rules from our chains. */
  readonly full: boolean
  /** False if a restore failed, so that `commits` does not account for all changes. */
  readonly clean: boolean
}

interface Watching {
  readonly name: 'watching'
  /** Version at which everything was as written; undefined if unknown, so that the next check looks at all chains. */
  readonly verified: string | undefined
}

interface Drifted {
  readonly name: 'drifted'
  /** Full writes in a row that did not repair it. */
  readonly failedRepairs: number
}

interface Writing {
  readonly name: 'writing'
  readonly from: Watching | Drifted
  /** Undefined until the version has been read. */
  readonly before: BeforeWrite | undefined
}

type WatchState = Watching | Writing | Drifted | { readonly name: 'closed' }

interface BeforeWrite {
  readonly version: string
  /** Undefined if others may have changed something, so that our entries are not all there. */
  readonly entries: LegacyEntries | undefined
}

interface Repair {
  readonly version: string
  /** True if nothing but our write happened. */
  readonly isOwn: boolean
  readonly failedRepairs: number
}

const unverified: Watching = { name: 'watching', verified: undefined }

/** Stands for a version that is unknown because reports were lost. */
const lostReports = 'unknown'

/** The time from a report of the kernel to the check, so that many changes lead to one. */
const reportedMs = 500
/** The time between checks where the kernel reports nothing. The families check at the same time, which wakes the process only once. */
const checkMs = 600
const postponedMs = 30_000

/**
 * Other programs may write all the time, or a kernel may count in an unexpected way: after this many full writes in a row that
 * repair nothing, the tables are accepted as they are.
 */
const maxFailedRepairs = 3

export class DriftWatch {
  readonly #options: DriftWatchOptions
  /** Every transition makes a new object, so an unfinished check sees that its state is over. */
  #state: WatchState = unverified
  #budget = new LookBudget()
  /** Uses of our chains by other programs, which no write of ours removes. */
  #tolerated: ReadonlyMap<string, number> = new Map()
  #timer: Timer | undefined
  /** True if the kernel reports changes; undefined before the first write. */
  #isReported: boolean | undefined
  /** The last version that the kernel reported while a check or a write was under way. */
  #reported: string | undefined

  constructor(options: DriftWatchOptions) {
    this.#options = options
  }

  /** True if something of ours is not as we wrote it. */
  get drifted(): boolean {
    const state = this.#state
    return state.name === 'drifted' || (state.name === 'writing' && state.from.name === 'drifted')
  }

  /** Puts off the next check, because everything is about to be read and written. */
  postpone(): void {
    this.#arm(postponedMs)
  }

  /** Call it before a write of ours, so that changes of others during the write are noticed. */
  async beginWrite(): Promise<void> {
    const from = this.#state
    if (from.name === 'closed') return
    this.#cancelTimer()
    this.#reported = undefined
    const begun: Writing = { name: 'writing', from: from.name === 'writing' ? from.from : from, before: undefined }
    this.#state = begun
    const { reader } = this.#options
    this.#isReported ??= reader.watchVersions?.((version) => this.#handleReport(version)) ?? false
    const version = await reader.readVersion()
    if (this.#state !== begun) return
    const isVerified = begun.from.name === 'watching' && begun.from.verified === version
    const entries = isVerified ? this.#options.legacyEntries() : undefined
    this.#state = { ...begun, before: { version, entries } }
  }

  /** Call it after a write that succeeded. If the tables cannot be read now, the next check looks at them. */
  async endWrite(write: FinishedWrite, signal: AbortSignal): Promise<void> {
    const state = this.#state
    if (state.name !== 'writing') return
    try {
      await this.#verify(state, write, signal)
    } catch (error) {
      this.abandonWrite()
      signal.throwIfAborted()
      this.#options.log.warn('Cannot check our iptables rules after a write', { error: describeError(error) })
    }
  }

  /** Call it after a write that failed: then nothing is known about the tables. */
  abandonWrite(): void {
    const state = this.#state
    if (state.name === 'writing' && state.from.name === 'drifted') this.#state = state.from
    else if (state.name === 'writing' || state.name === 'watching') this.#watch(undefined)
  }

  close(): void {
    this.#state = { name: 'closed' }
    this.#cancelTimer()
    this.#options.reader.close()
  }

  async #verify(state: Writing, write: FinishedWrite, signal: AbortSignal): Promise<void> {
    const { from, before } = state
    const version = await this.#options.reader.readVersion()
    if (this.#state !== state) return
    const isOwn = this.#isOwnChange(before, version, write)
    if (from.name === 'watching') this.#watch(isOwn ? version : undefined)
    else if (write.full) await this.#verifyRepair(state, { version, isOwn, failedRepairs: from.failedRepairs }, signal)
    else this.#state = from
  }

  /** True if nothing but our write happened since `before`. A change that another program made at the same time must not pass as ours. */
  #isOwnChange(before: BeforeWrite | undefined, version: string, { clean, full, commits }: FinishedWrite): boolean {
    if (!clean || before === undefined || (before.entries === undefined && !full)) return false
    const now = this.#options.legacyEntries()
    const old = before.entries
    const entries = old && { filter: now.filter - old.filter, nat: now.nat - old.nat }
    return this.#options.reader.isOwnChange(before.version, version, { commits, entries })
  }

  /**
   * Everything was written because something differed. Uses that chains have too many now come from jumps of other programs, unless
   * another program wrote at that very moment. Uses that are missing are a drift again.
   */
  async #verifyRepair(state: Writing, { version, isOwn, failedRepairs }: Repair, signal: AbortSignal): Promise<void> {
    const { reader, expected, hooks, log } = this.#options
    const { uses, jumps } = await reader.readUses(signal)
    const isUndisturbed = isOwn && version === (await reader.readVersion())
    if (this.#state !== state) return
    const extra = isUndisturbed ? findExtraUses(uses, expected()) : new Map<string, number>()
    this.#tolerated = jumps === undefined ? extra : countForeignJumps(jumps, hooks)
    const difference = describeDifference(uses, expected(), this.#tolerated)
    if (difference !== '' && failedRepairs < maxFailedRepairs) return this.#report(difference, failedRepairs + 1)
    if (difference !== '') {
      this.#tolerated = findDifferences(uses, expected())
      log.warn('Full writes do not make the iptables rules as wanted', { difference })
    }
    this.#watch(version)
  }

  #watch(verified: string | undefined): void {
    this.#state = { name: 'watching', verified }
    this.#checkLater(verified)
  }

  /** Waits for a report of the kernel if it has not reported a newer version than the verified one meanwhile. */
  #checkLater(verified: string | undefined): void {
    const reported = this.#reported ?? verified
    if (!this.#isReported) this.#arm(checkMs - (this.#options.clock.monotonic() % checkMs))
    else if (verified === undefined || reported !== verified) this.#arm(reportedMs)
    else this.#cancelTimer()
  }

  #handleReport(version = lostReports): void {
    this.#reported = version
    const state = this.#state
    if (state.name !== 'watching' || version === state.verified || this.#timer !== undefined) return
    this.#arm(reportedMs)
  }

  #report(difference: string, failedRepairs: number): void {
    this.#state = { name: 'drifted', failedRepairs }
    this.#options.onDrift(`another program (${difference})`, 'changed')
  }

  #arm(ms: number): void {
    const state = this.#state
    this.#cancelTimer()
    if (state.name !== 'watching') return
    this.#timer = this.#options.clock.after(ms, () => {
      this.#timer = undefined
      this.#reported = undefined
      this.#check(state).catch((error: unknown) => {
        this.#options.log.warn('Cannot check our iptables rules', { error: describeError(error) })
        if (this.#state === state) this.#arm(checkMs)
      })
    })
  }

  #cancelTimer(): void {
    this.#timer?.cancel()
    this.#timer = undefined
  }

  async #check(state: Watching): Promise<void> {
    const { reader, clock } = this.#options
    const version = await reader.readVersion()
    if (this.#state !== state) return
    if (version === state.verified) return this.#checkLater(version)
    const begunMs = clock.monotonic()
    const waitMs = this.#budget.waitMs(begunMs)
    if (waitMs > 0) return this.#arm(Math.max(checkMs, waitMs))
    const difference = await this.#look(state)
    this.#budget = this.#budget.spend(begunMs, clock.monotonic() - begunMs)
    if (this.#state !== state) return
    if (difference === '') this.#watch(version)
    else this.#report(difference, 0)
  }

  /** Describes what differs from what was written and is tolerated; '' if nothing does, or if the state is over. */
  async #look(state: Watching): Promise<string> {
    if ((await this.#matches()) || this.#state !== state) return ''
    const { uses } = await this.#options.reader.readUses()
    return describeDifference(uses, this.#options.expected(), this.#tolerated)
  }

  /** True if everything is as written and tolerated, where that can be found out at little cost. */
  async #matches(): Promise<boolean> {
    const { reader, written } = this.#options
    if (reader.matches === undefined || written === undefined) return false
    const { rules, uses } = written()
    for (const [chain, more] of this.#tolerated) uses.set(chain, (uses.get(chain) ?? 0) + more)
    return await reader.matches({ rules, uses })
  }
}
