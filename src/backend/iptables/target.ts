// Writes entries into the kernel's iptables tables, observes which chains exist, and reports drift.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { PacketCounters } from '../../sys/netlink/nfacct.ts'
import { MemoryFile } from '../../sys/process/memory-file.ts'
import { tcpIsLiberal } from '../../sys/tuning.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Target, Wanted } from '../backend.ts'
import { counters } from '../iptables-kit/chains.ts'
import type { DriftWatch } from '../iptables-kit/drift-watch.ts'
import { IptablesPrograms, isAtLeast, type ProgramSet } from '../iptables-kit/programs.ts'
import { type ChainSurvey, type ChainUses, openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import { createDriftWatch } from './drift.ts'
import { createStray, type IptablesEntry, type PortEntry } from './entries.ts'
import { ensureJumps } from './jumps.ts'
import { largeEndpoints } from './write/compose.ts'
import { type Part, type PartLimits, splitChanges } from './write/parts.ts'
import { RestoreWriter, type WriteResult } from './write/restore-writer.ts'
import { stage } from './write/stage.ts'
import { groupChanges } from './write/units.ts'
import { WrittenRules } from './write/written.ts'

export interface IptablesTargetOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly syncPeriodMs: number
}

const hourMs = 3_600_000

/** The time of iptables-nft-restore --noflush grows with the square of the number of chains (1.8.9). */
const nftChainsPerRestore = 1500

/** A part takes iptables-nft-restore some 40 ms, during which others wait. */
const nftPartLimits: PartLimits = { chains: 500, rules: 1000 }

export class IptablesTarget implements Target<IptablesEntry> {
  readonly #context: OpenContext
  readonly #programs: IptablesPrograms
  readonly #reader: TableReader
  readonly #watch: DriftWatch
  readonly #written = new WrittenRules()
  readonly #writer: RestoreWriter<MemoryFile>
  readonly #packetCounters = new PacketCounters()
  /** What `observe` found. If it is set, the next `apply` writes everything and makes sure of jumps and counters. */
  #observed: ChainSurvey | undefined
  #lastFullMs = 0
  /** What one part of a large change may have; undefined if changes are never split. */
  readonly #limits: PartLimits | undefined
  /** Ports of which a part is written. */
  readonly #incomplete = new Set<string>()

  constructor({ context, programs, syncPeriodMs }: IptablesTargetOptions) {
    const { family, log, clock } = context
    this.#context = context
    this.#programs = new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs: syncPeriodMs })
    this.#limits = programs.flavour === 'nft' ? nftPartLimits : undefined
    this.#reader = openTableReader(this.#programs, family)
    this.#watch = createDriftWatch(this.#written, this.#reader, context)
    this.#writer = new RestoreWriter({
      written: this.#written,
      chainsPerRestore: programs.flavour === 'nft' ? nftChainsPerRestore : Number.POSITIVE_INFINITY,
      createSink: () => new MemoryFile('rules'),
      restore: (input, signal) => this.#programs.restore(input, signal),
    })
  }

  /**
   * Returns service chains that we did not write. Rules carry no digest, so all other entries are in doubt and will be written. Entries
   * that we wrote and that are no longer wanted are known to `WrittenRules`.
   */
  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    this.#watch.postpone()
    this.#observed = await this.#reader.readChains(signal)
    const { serviceChains } = this.#observed
    if (serviceChains.checksum.equals(this.#written.chainChecksum)) return []
    const known = this.#written.chains()
    return serviceChains
      .names()
      .filter((chain) => !known.has(chain))
      .map(createStray)
  }

  async apply(changes: Changes<IptablesEntry>, signal: AbortSignal, wanted?: Wanted<IptablesEntry>): Promise<Applied> {
    if (this.#observed !== undefined || this.#limits === undefined) return this.#write(changes, signal)
    const split = (some: Changes<IptablesEntry>) =>
      splitChanges(some, (id) => this.#written.port(id), this.#limits as PartLimits)
    const own = split(changes)
    // Small changes do not wait for the removal of what is left of a large one.
    const isLarge = own.length > 1 || changes.put.length + changes.drop.length === 0
    const abandoned = isLarge && wanted !== undefined ? this.#findAbandoned(changes, wanted) : []
    const parts = abandoned.length === 0 ? own : [...own, ...split({ put: [], drop: abandoned })]
    const [only, ...others] = parts
    return only !== undefined && others.length === 0
      ? this.#write(only.changes(), signal)
      : this.#writeParts(parts, signal)
  }

  /** Writes until everything is written or another change waits. */
  async #writeParts(parts: readonly Part[], signal: AbortSignal): Promise<Applied> {
    const written = { put: [] as IptablesEntry[], drop: [] as Held[] }
    for (const [i, { id, changes, complete }] of parts.entries()) {
      if (id !== '') this.#incomplete.add(id)
      const { refused, figures = {} } = await this.#write(changes(), signal)
      if (complete.put.length + complete.drop.length > 0 && refused.length === 0) this.#incomplete.delete(id)
      written.put.push(...complete.put)
      written.drop.push(...complete.drop)
      const rest = parts.slice(i + 1)
      // What is refused is not complete: the lane gets it as it knows it.
      if (refused.length > 0) return this.#leaveOut(refused, rest, { written, figures })
      if (rest.length === 0) return { refused, figures, written }
      if (this.#context.shouldPause?.() === true) {
        return { refused, figures, written, resume: (next) => this.#writeParts(rest, next) }
      }
    }
    return { refused: [], written }
  }

  /** Reports a refused service, and goes on with the parts of the others in the next sync. */
  #leaveOut(
    refused: readonly RefusedEntry[],
    parts: readonly Part[],
    done: { readonly written: Changes<Held>; readonly figures: Readonly<Record<string, number>> },
  ): Applied {
    const ids = new Set(refused.map(({ id }) => id))
    const left = parts.filter(({ id }) => ids.has(id)).map(({ complete }) => complete)
    const put = [...done.written.put, ...left.flatMap((one) => one.put)]
    const drop = [...done.written.drop, ...left.flatMap((one) => one.drop)]
    const rest = parts.filter(({ id }) => !ids.has(id))
    const applied = { refused, figures: done.figures, written: { put, drop } }
    return rest.length === 0 ? applied : { ...applied, resume: (next) => this.#writeParts(rest, next) }
  }

  /** Ports that are written in part and no longer wanted: no change names them. */
  #findAbandoned({ put, drop }: Changes<IptablesEntry>, wanted: Wanted<IptablesEntry>): readonly PortEntry[] {
    const named = new Set([...put, ...drop].map(({ id }) => id))
    const ids = [...this.#incomplete].filter((id) => wanted.entry(id) === undefined && !named.has(id))
    for (const id of ids) if (this.#written.port(id) === undefined) this.#incomplete.delete(id)
    return ids.map((id) => this.#written.port(id)).filter((port) => port !== undefined)
  }

  async #write(changes: Changes<IptablesEntry>, signal: AbortSignal): Promise<Applied> {
    const observed = this.#observed
    const isFull = observed !== undefined
    if (!isFull && this.#changesNoRule(changes)) {
      this.#written.apply(stage(this.#written, groupChanges(changes).units, false))
      return { refused: [], figures: this.#figures({ filter: 0, nat: 0 }) }
    }
    const commits = this.#programs.commits
    try {
      await this.#watch.beginWrite()
      if (isFull) await this.#prepare(observed, signal)
      const result = await this.#writer.write(groupChanges(changes), { everything: isFull, signal })
      if (isFull) {
        this.#lastFullMs = this.#context.clock.monotonic()
        this.#incomplete.clear()
      }
      this.#observed = undefined
      const write = { commits: this.#programs.commits - commits, full: isFull, clean: result.failures === 0 }
      await this.#watch.endWrite(write, signal)
      return this.#report(result, isFull)
    } catch (error) {
      this.#watch.abandonWrite()
      // What was there before is refused without any change of ours: another program broke it, and waiting does not repair it.
      if (!isFull && error instanceof ProxyError && error.code === 'iptables-restore') {
        this.#context.onDrift(`another program (${error.message})`, 'refused')
      }
      throw error
    }
  }

  /** Also true once an hour, because a full write is cheap while a cluster is not large. */
  drifted(): boolean {
    const ageMs = this.#context.clock.monotonic() - this.#lastFullMs
    return this.#watch.drifted || (ageMs > hourMs && this.#written.endpoints <= largeEndpoints)
  }

  async close(): Promise<void> {
    this.#watch.close()
    this.#packetCounters.close()
  }

  /** True if only endpoints that are not reached from here came or went. */
  #changesNoRule({ put, drop }: Changes<IptablesEntry>): boolean {
    return (
      drop.length === 0 &&
      put.every((entry) => {
        const written = this.#written.entry(entry.id)
        if (entry.kind === 'base' || written?.kind !== 'port') return written?.digest === entry.digest
        return written.rules.hasSameRules(entry.rules)
      })
    )
  }

  #report({ refused, failures, rules, undeleted }: WriteResult, isFull: boolean): Applied {
    // The ledger does not know these chains. The next `observe` finds them.
    if (undeleted !== undefined) this.#context.onDrift(`another program (${undeleted.message})`, 'undeletable')
    const failed = failures > 0 ? { iptables_restore_failures: failures } : {}
    const partial = failures > 0 && !isFull ? { iptables_partial_restore_failures: failures } : {}
    return { refused, figures: { ...this.#figures(rules), ...failed, ...partial } }
  }

  async #prepare(found: ChainUses, signal: AbortSignal): Promise<void> {
    this.#written.features = {
      randomFully: isAtLeast(this.#programs.set.version, [1, 6, 2]),
      liberal: tcpIsLiberal(),
      counters: await this.#ensureCounters(),
    }
    await ensureJumps(this.#programs, found, signal)
  }

  /** Returns the packet counters that exist. Rules do without the others. */
  async #ensureCounters(): Promise<ReadonlySet<string>> {
    const made = new Set<string>()
    if (!(await this.#packetCounters.supported())) return made
    for (const name of Object.values(counters)) {
      try {
        await this.#packetCounters.ensure(name)
        made.add(name)
      } catch (error) {
        this.#context.log.warn('Cannot make a packet counter', { counter: name, error: describeError(error) })
      }
    }
    return made
  }

  #figures(lastRules: WriteResult['rules']): Readonly<Record<string, number>> {
    return {
      'iptables_total{filter}': this.#written.ruleCount('filter'),
      'iptables_total{nat}': this.#written.ruleCount('nat'),
      'iptables_last{filter}': lastRules.filter,
      'iptables_last{nat}': lastRules.nat,
    }
  }
}
