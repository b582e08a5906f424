// Writes entries into the kernel's iptables tables, observes which chains exist, and reports drift.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import { PacketCounters } from '../../sys/netlink/nfacct.ts'
import { MemoryFile } from '../../sys/process/memory-file.ts'
import { tcpIsLiberal } from '../../sys/tuning.ts'
import type { Applied, Changes, Held, OpenContext, PortCounters, RefusedEntry, Target, Wanted } from '../backend.ts'
import { counters } from '../iptables-kit/chains.ts'
import type { DriftWatch } from '../iptables-kit/drift-watch.ts'
import { IptablesPrograms, isAtLeast, type ProgramSet } from '../iptables-kit/programs.ts'
import { type ChainSurvey, type ChainUses, openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import { CarriedTable } from './count/carried-table.ts'
import { type CountedWrite, EndpointCounting } from './count/counting.ts'
import { type ChainReading, openChainCounters } from './count/read-chains.ts'
import { ChainSweeper } from './count/sweeper.ts'
import { createDriftWatch } from './drift.ts'
import { createStray, type IptablesEntry, type PortEntry } from './entries.ts'
import { ensureJumps } from './jumps.ts'
import { largeEndpoints } from './write/compose.ts'
import { ChainDeletion } from './write/delete-chains.ts'
import { type Part, type PartLimits, splitChanges } from './write/parts.ts'
import { RestoreWriter, type WriteResult } from './write/restore-writer.ts'
import { stage } from './write/stage.ts'
import { groupChanges } from './write/units.ts'
import { WrittenRules } from './write/written.ts'

export interface IptablesTargetOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly syncPeriodMs: number
  /** Whether connections are counted. */
  readonly counters: boolean
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
  readonly #deletion: ChainDeletion
  /** What `observe` found. If it is set, the next `apply` writes everything and makes sure of jumps and counters. */
  #observed: ChainSurvey | undefined
  #lastFullMs = 0
  /** What one part of a large change may have; undefined if changes are never split. */
  readonly #limits: PartLimits | undefined
  /** Ports of which a part is written. */
  readonly #incomplete = new Set<string>()
  /** A sweep of chains is the only write that no sync asks for. */
  readonly #mutex = new Mutex()
  readonly #counting: EndpointCounting | undefined
  readonly #sweeper: ChainSweeper | undefined

  constructor({ context, programs, syncPeriodMs, counters: isCounting }: IptablesTargetOptions) {
    const { family, log, clock } = context
    this.#context = context
    this.#programs = new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs: syncPeriodMs })
    this.#limits = programs.flavour === 'nft' ? nftPartLimits : undefined
    this.#reader = openTableReader(this.#programs, family)
    this.#watch = createDriftWatch(this.#written, this.#reader, context)
    this.#deletion = new ChainDeletion(family)
    this.#writer = new RestoreWriter({
      written: this.#written,
      chainsPerRestore: programs.flavour === 'nft' ? nftChainsPerRestore : Number.POSITIVE_INFINITY,
      createSink: () => new MemoryFile('rules'),
      restore: (input, signal) => this.#programs.restore(input, signal),
      deleteChains: programs.flavour === 'nft' ? (chains) => this.#deletion.delete(chains) : undefined,
    })
    if (!isCounting) return
    const chainCounters = openChainCounters(this.#programs, family)
    this.#counting = new EndpointCounting({
      ...{ family, clock, log, written: this.#written, counters: chainCounters, table: new CarriedTable(family) },
      listRules: (chain, signal) => this.#programs.listRules('nat', chain, signal),
    })
    this.#sweeper = new ChainSweeper({
      ...{ context, lingering: this.#counting.lingering, counters: chainCounters },
      remove: (chains, reading) => this.#mutex.run(() => this.#removeChains(chains, reading)),
    })
  }

  /**
   * Returns service chains that we did not write. Rules carry no digest, so all other entries are in doubt and will be written. Entries
   * that we wrote and that are no longer wanted are known to `WrittenRules`.
   */
  observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#mutex.run(() => this.#observe(signal))
  }

  async #observe(signal: AbortSignal): Promise<readonly Held[]> {
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

  apply(changes: Changes<IptablesEntry>, signal: AbortSignal, wanted?: Wanted<IptablesEntry>): Promise<Applied> {
    return this.#mutex.run(() => this.#apply(changes, signal, wanted))
  }

  async #apply(
    changes: Changes<IptablesEntry>,
    signal: AbortSignal,
    wanted: Wanted<IptablesEntry> | undefined,
  ): Promise<Applied> {
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
    for (const [i, { id, changes, complete, isRemoval }] of parts.entries()) {
      if (id !== '') this.#incomplete.add(id)
      const counted = isRemoval ? this.#counting?.keepNone(changes()) : undefined
      const { refused, figures = {} } = await this.#write(counted?.kept.changes ?? changes(), signal, counted)
      if (complete.put.length + complete.drop.length > 0 && refused.length === 0) this.#incomplete.delete(id)
      written.put.push(...complete.put)
      written.drop.push(...complete.drop)
      const rest = parts.slice(i + 1)
      // What is refused is not complete: the lane gets it as it knows it.
      if (refused.length > 0) return this.#leaveOut(refused, rest, { written, figures })
      if (rest.length === 0) return { refused, figures, written }
      if (this.#context.shouldPause?.() === true) {
        return { refused, figures, written, resume: this.#resumeWith(rest) }
      }
    }
    return { refused: [], written }
  }

  #resumeWith(parts: readonly Part[]): (signal: AbortSignal) => Promise<Applied> {
    return (signal) => this.#mutex.run(() => this.#writeParts(parts, signal))
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
    return rest.length === 0 ? applied : { ...applied, resume: this.#resumeWith(rest) }
  }

  /** Ports that are written in part and no longer wanted: no change names them. */
  #findAbandoned({ put, drop }: Changes<IptablesEntry>, wanted: Wanted<IptablesEntry>): readonly PortEntry[] {
    const named = new Set([...put, ...drop].map(({ id }) => id))
    const ids = [...this.#incomplete].filter((id) => wanted.entry(id) === undefined && !named.has(id))
    for (const id of ids) if (this.#written.port(id) === undefined) this.#incomplete.delete(id)
    return ids.map((id) => this.#written.port(id)).filter((port) => port !== undefined)
  }

  /** `counted` says what becomes of chains that have counted. By default they linger, unless everything is written. */
  async #write(wanted: Changes<IptablesEntry>, signal: AbortSignal, counted?: CountedWrite): Promise<Applied> {
    const observed = this.#observed
    const isFull = observed !== undefined
    const write = counted ?? (isFull ? this.#counting?.keepNone(wanted) : this.#counting?.keep(wanted))
    const changes = write?.kept.changes ?? wanted
    if (!isFull && this.#changesNoRule(changes)) {
      this.#written.apply(stage(this.#written, groupChanges(changes).units, false))
      if (write !== undefined) await this.#counting?.end(write, false, () => true)
      return { refused: [], figures: this.#figures({ filter: 0, nat: 0 }) }
    }
    try {
      return await this.#writeChanges(changes, write, signal)
    } catch (error) {
      this.#watch.abandonWrite()
      // What was there before is refused without any change of ours: another program broke it, and waiting does not repair it.
      if (!isFull && error instanceof ProxyError && error.code === 'iptables-restore') {
        this.#context.onDrift(`another program (${error.message})`, 'refused')
      }
      throw error
    }
  }

  async #writeChanges(
    changes: Changes<IptablesEntry>,
    write: CountedWrite | undefined,
    signal: AbortSignal,
  ): Promise<Applied> {
    const commits = this.#countCommits()
    const observed = this.#observed
    const isFull = observed !== undefined
    const deletesOnly = !isFull && write !== undefined && write.leaving.size > 0
    await this.#watch.beginWrite()
    if (isFull) await this.#prepare(observed, signal)
    if (write !== undefined) await this.#counting?.[isFull ? 'beginFull' : 'begin'](write, signal)
    const counts = this.#counting === undefined ? {} : { countOf: this.#counting.countOf }
    const options = { everything: isFull, deletesOnly, signal, ...counts }
    const result = await this.#writer.write(groupChanges(changes), options)
    const kept = new Set(result.refused.map(({ id }) => id))
    const isDeleted = (chain: string) => result.undeleted === undefined && !kept.has(createStray(chain).id)
    if (write !== undefined) await this.#counting?.end(write, isFull, isDeleted)
    if (isFull) {
      this.#lastFullMs = this.#context.clock.monotonic()
      this.#incomplete.clear()
    }
    this.#observed = undefined
    const finished = { commits: this.#countCommits() - commits, full: isFull, clean: result.failures === 0 }
    await this.#watch.endWrite(finished, signal)
    this.#sweeper?.schedule()
    return this.#report(result, isFull)
  }

  /** Transactions of nf_tables that this target has committed so far. */
  #countCommits(): number {
    return this.#programs.commits + this.#deletion.commits + (this.#counting?.commits ?? 0)
  }

  /** Deletes chains that linger and have been read. */
  async #removeChains(chains: ReadonlyMap<string, string>, reading: ChainReading): Promise<void> {
    // If everything is about to be written, these chains go as well.
    if (this.#observed !== undefined || this.#counting === undefined) return
    const write = this.#counting.sweep(chains, reading)
    if (write.leaving.size === 0) return
    await this.#write(write.kept.changes, new AbortController().signal, write)
  }

  /** Reads what was counted for every service port. */
  async readCounters(): Promise<readonly PortCounters[]> {
    return (await this.#counting?.read((work) => this.#mutex.run(work))) ?? []
  }

  /** Also true once an hour, because a full write is cheap while a cluster is not large. */
  drifted(): boolean {
    const ageMs = this.#context.clock.monotonic() - this.#lastFullMs
    return this.#watch.drifted || (ageMs > hourMs && this.#written.endpoints <= largeEndpoints)
  }

  async close(): Promise<void> {
    this.#sweeper?.close()
    // A sweep that runs is awaited: a legacy program that is killed may leave the table without its counters.
    await this.#mutex.run(async () => this.#counting?.close())
    this.#watch.close()
    this.#packetCounters.close()
    this.#deletion.close()
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
