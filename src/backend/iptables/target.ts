// Puts entries into the kernel's iptables tables through the programs, observes which chains are there, and notices tampering.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { PacketCounters } from '../../sys/netlink/nfacct.ts'
import { MemoryFile } from '../../sys/process/memory-file.ts'
import { tcpIsLiberal } from '../../sys/tuning.ts'
import type { Applied, Changes, Held, OpenContext, Target } from '../backend.ts'
import { counters, jumpArguments, jumps, type KubeJump, savedJump } from '../iptables-kit/chains.ts'
import { DriftWatch } from '../iptables-kit/drift-watch.ts'
import { atLeast, IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { type ChainSurvey, type ChainUses, openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import { type IptEntry, sameRules, strayChain } from './entries.ts'
import { composeJumps, largeEndpoints } from './restore.ts'
import { isEntry, RestoreWriter, type Unit } from './writer.ts'
import { WrittenRules } from './written.ts'

export interface IptablesTargetOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly syncPeriodMs: number
}

const hourMs = 3_600_000

export class IptablesTarget implements Target<IptEntry> {
  readonly #context: OpenContext
  readonly #tools: IptablesPrograms
  readonly #sight: TableReader
  readonly #watch: DriftWatch
  readonly #book = new WrittenRules()
  readonly #writer: RestoreWriter<MemoryFile>
  readonly #packets = new PacketCounters()
  /** What observe saw: set means that the next apply writes everything, and makes sure of jumps and counters. */
  #seen: ChainSurvey | undefined
  #lastFull = 0

  constructor({ context, programs, syncPeriodMs }: IptablesTargetOptions) {
    const { family, log, clock } = context
    this.#context = context
    this.#tools = new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs: syncPeriodMs })
    this.#sight = openTableReader(this.#tools, family)
    this.#writer = new RestoreWriter({
      book: this.#book,
      // The time of iptables-nft-restore --noflush grows with the square of its chains (1.8.9).
      chainsPerRestore: programs.flavour === 'nft' ? 1500 : Number.POSITIVE_INFINITY,
      sheet: () => new MemoryFile('rules'),
      restore: (paper, signal) => this.#tools.restore(paper, signal),
    })
    this.#watch = new DriftWatch({
      reader: this.#sight,
      expected: () => this.#book.uses(),
      written: () => ({ rules: this.#book.rules(), uses: this.#book.sharedUses() }),
      legacyEntries: () => this.#book.legacyEntries(),
      hooks: jumps,
      onDrift: context.onDrift,
      clock,
      log,
    })
  }

  /**
   * Chains of services that we did not write. Rules carry no digest, so everything else is in doubt and will be written; and whatever
   * we wrote that nobody wants any more is in the book.
   */
  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    this.#watch.postpone()
    this.#seen = await this.#sight.readChains(signal)
    const { serviceChains } = this.#seen
    if (serviceChains.checksum.equals(this.#book.chainChecksum)) return []
    const known = this.#book.chains()
    const strays = serviceChains.names().filter((chain) => !known.has(chain))
    return strays.map(strayChain)
  }

  async apply(changes: Changes<IptEntry>, signal: AbortSignal): Promise<Applied> {
    const seen = this.#seen
    const full = seen !== undefined
    if (!full && changes.drop.length === 0 && changes.put.every((entry) => this.#isAsWritten(entry))) {
      // Only endpoints that are not reached from here came or went.
      for (const entry of changes.put) this.#book.put(entry)
      return { refused: [], figures: this.#figures(0, 0) }
    }
    const commits = this.#tools.commits
    try {
      await this.#watch.beginWrite()
      if (full) await this.#prepare(seen, signal)
      const { refused, failures, lines, left } = await this.#writer.write(unitsOf(changes), signal)
      if (full) this.#lastFull = this.#context.clock.monotonic()
      this.#seen = undefined
      await this.#watch.endWrite({ commits: this.#tools.commits - commits, full, clean: failures === 0 }, signal)
      // The ledger knows nothing of these chains; whoever holds on to them, the next survey finds them.
      if (left !== undefined) this.#context.onDrift(`another program (${left.message})`)
      const counted = failures > 0 ? { iptables_restore_failures: failures } : {}
      const partial = failures > 0 && !full ? { iptables_partial_restore_failures: failures } : {}
      return { refused, figures: { ...this.#figures(lines.filter, lines.nat), ...counted, ...partial } }
    } catch (error) {
      this.#watch.abandonWrite()
      // What was there before is refused without any change of ours: somebody broke it, and waiting will not mend it.
      if (!full && error instanceof ProxyError && error.code === 'iptables-restore') {
        this.#context.onDrift(`another program (${error.message})`)
      }
      throw error
    }
  }

  /** Also true once an hour, as a full write costs little while clusters are not large. */
  drifted(): boolean {
    const age = this.#context.clock.monotonic() - this.#lastFull
    return this.#watch.drifted || (age > hourMs && this.#book.endpoints <= largeEndpoints)
  }

  async close(): Promise<void> {
    this.#watch.close()
    this.#packets.close()
  }

  #isAsWritten(entry: IptEntry): boolean {
    const written = this.#book.entry(entry.id)
    return written !== undefined && sameRules(written, entry)
  }

  async #prepare(seen: ChainUses, signal: AbortSignal): Promise<void> {
    this.#book.features = {
      randomFully: atLeast(this.#tools.set.version, [1, 6, 2]),
      liberal: tcpIsLiberal(),
      counters: await this.#ensureCounters(),
    }
    this.#writer.startAnew()
    await this.#ensureJumps(seen, signal)
  }

  /** Counters that cannot be made are done without. */
  async #ensureCounters(): Promise<ReadonlySet<string>> {
    const made = new Set<string>()
    if (!(await this.#packets.supported())) return made
    for (const name of Object.values(counters)) {
      try {
        await this.#packets.ensure(name)
        made.add(name)
      } catch (error) {
        this.#context.log.warn('cannot count packets', { counter: name, error: describeError(error) })
      }
    }
    return made
  }

  /** Chains and jumps that are missing, all in one restore. A chain that does not exist or is not in use needs no question. */
  async #ensureJumps({ uses, jumps: found }: ChainUses, signal: AbortSignal): Promise<void> {
    const missing: KubeJump[] = []
    const known = new Set(found ?? [])
    const listed = new Set<string>()
    for (const one of jumps) {
      const line = `${one.table} ${savedJump(one)}`
      const used = (uses.get(`${one.table} ${one.to}`) ?? 0) > 0
      // One question about a chain spares one for each of its jumps.
      if (used && !known.has(line) && !listed.has(`${one.table} ${one.from}`)) {
        listed.add(`${one.table} ${one.from}`)
        for (const rule of await this.#tools.listRules(one.table, one.from, signal)) known.add(`${one.table} ${rule}`)
      }
      if (known.has(line)) continue
      const rule = [one.from, '-t', one.table, ...jumpArguments(one)]
      if (!used || !(await this.#tools.succeeds(['-C', ...rule], signal))) missing.push(one)
    }
    const text = composeJumps(missing, (table, chain) => !uses.has(`${table} ${chain}`))
    if (text !== '') await this.#tools.restore(text, signal)
  }

  #figures(filter: number, nat: number): Readonly<Record<string, number>> {
    return {
      'iptables_total{filter}': this.#book.ruleCount('filter'),
      'iptables_total{nat}': this.#book.ruleCount('nat'),
      'iptables_last{filter}': filter,
      'iptables_last{nat}': nat,
    }
  }
}

/** By service, the base first; chains that nobody known has left are a unit of their own. */
export function unitsOf({ put, drop }: Changes<IptEntry>): readonly Unit[] {
  const base = { kind: 'base' as const, service: '', put: [] as IptEntry[], drop: [] as Held[] }
  const leftovers = { kind: 'leftovers' as const, service: '', put: [], drop: [] as Held[] }
  type Service = { kind: 'service'; service: string; put: IptEntry[]; drop: Held[] }
  const units = new Map<string, Service>()
  let last: Service | undefined
  const of = (entry: IptEntry) => {
    if (entry.kind === 'base') return base
    // Those of a service mostly follow each other.
    if (entry.service === last?.service) return last
    let unit = units.get(entry.service)
    if (unit === undefined) {
      unit = { kind: 'service', service: entry.service, put: [], drop: [] }
      units.set(entry.service, unit)
    }
    last = unit
    return unit
  }
  for (const entry of put) of(entry).put.push(entry)
  for (const held of drop) (isEntry(held) ? of(held) : leftovers).drop.push(held)
  return [base, ...units.values(), ...(leftovers.drop.length > 0 ? [leftovers] : [])]
}
