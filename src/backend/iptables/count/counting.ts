// Keeps the counts of endpoints exact over writes: reads what a write would delete, and writes what it counted with the new rules.
//
// The chain of an endpoint counts connections. What may happen to the chain, and how its count survives:
// 1. The endpoint goes: the chain lingers (lingering-chains.ts). A sweep reads it, keeps the count in a table of its own (carried-table.ts)
//    and deletes it. While the chain exists, the table keeps the count under the name of the chain: a process that finds both knows that
//    they are one.
// 2. The chain is written again, since everything is written or its rules change: its count is read before and restored with the rule.
//    Connections between the reading and the commit are not counted.
// 3. The service goes: the count goes, too.

import { describeError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import type { Logger } from '../../../lib/log.ts'
import type { Clock } from '../../../lib/time.ts'
import { stride, TimeSlice } from '../../../lib/yielding.ts'
import type { Protocol } from '../../../model/types.ts'
import type { Changes, PortCounters, TrafficCounts } from '../../backend.ts'
import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { type IptablesEntry, type PortEntry, portNameOf } from '../entries.ts'
import type { WrittenRules } from '../write/written.ts'
import { type CarriedSum, type CarriedTable, sumName } from './carried-table.ts'
import { EndpointCounts } from './endpoint-counts.ts'
import { type KeptChanges, LingeringChains } from './lingering-chains.ts'
import type { ChainCounters, ChainReading } from './read-chains.ts'
import { StrayOwners } from './stray-owners.ts'

export interface CountingOptions {
  readonly family: Family
  readonly clock: Clock
  readonly log: Logger
  readonly written: WrittenRules
  readonly counters: ChainCounters
  readonly table: Pick<CarriedTable, 'read' | 'write' | 'close'>
  /** Lists the rules of one chain of nat. */
  readonly listRules: (chain: string, signal: AbortSignal) => Promise<readonly string[]>
}

/** A write whose counts are kept. */
export interface CountedWrite {
  readonly kept: KeptChanges
  /** Chains that the write deletes although their ports stay, with the ids of these ports. */
  leaving: ReadonlyMap<string, string>
}

type Exclusively = <T>(work: () => Promise<T>) => Promise<T>

/** A reading during which counts moved is repeated so often. */
const attempts = 3

export class EndpointCounting {
  readonly lingering: LingeringChains
  /** Transactions of nf_tables that were committed so far. */
  commits = 0
  readonly #options: CountingOptions
  readonly #counts = new EndpointCounts()
  /** Grows whenever counts move from one place to another. */
  #moves = 0
  #isLoaded = false
  /** True if the table could not be written: this is reported once. */
  #isTableMissing = false

  constructor(options: CountingOptions) {
    this.#options = options
    this.lingering = new LingeringChains(options.written)
  }

  /** Plans a write of changes: chains of endpoints that go linger. */
  keep(changes: Changes<IptablesEntry>): CountedWrite {
    const kept = this.lingering.keep(changes, this.#options.clock.monotonic())
    return { kept, leaving: new Map() }
  }

  /** Plans a write that deletes chains at once: everything is written, or the port goes. */
  keepNone(changes: Changes<IptablesEntry>): CountedWrite {
    return { kept: { changes, ports: new Map() }, leaving: new Map() }
  }

  /** Plans a write that deletes chains which linger and have been read. */
  sweep(chains: ReadonlyMap<string, string>, reading: ChainReading): CountedWrite {
    const leaving = new Map([...chains].filter(([chain, port]) => this.lingering.has(port, chain)))
    for (const chain of leaving.keys()) this.#counts.observe(chain, reading.get(chain) ?? 0)
    return { kept: this.lingering.release(leaving), leaving }
  }

  /** The number from which a chain counts that is written now. */
  readonly countOf = (chain: string): number => this.#counts.of(chain)

  /** Call it just before a write. */
  async begin(write: CountedWrite, signal: AbortSignal): Promise<void> {
    if (write.leaving.size > 0) {
      this.#moves++
      this.#forgetLostPorts()
      await this.#keepInTable(write.leaving)
    }
    const rewritten = this.#findRewritten(write.kept.changes)
    if (rewritten.length === 0) return
    this.#moves++
    await this.#observe(() => this.#options.counters.readSome(rewritten, signal))
    for (const chain of rewritten) this.#counts.beginAgain(chain)
  }

  /** Call it just before everything is written. */
  async beginFull(write: CountedWrite, signal: AbortSignal): Promise<void> {
    this.#moves++
    const reading = await this.#observe(() => this.#options.counters.readAll(signal))
    await this.#load(reading)
    const ports = write.kept.changes.put.filter((entry) => entry.kind === 'port')
    write.leaving = await this.#findLeaving(ports, signal)
    // Also without any: the table must not keep the count of a chain under its name if the chain is made again.
    await this.#keepInTable(write.leaving)
  }

  /** Call it after a write that succeeded. `isDeleted`: whether a chain that it was to delete is gone. */
  async end(write: CountedWrite, isFull: boolean, isDeleted: (chain: string) => boolean): Promise<void> {
    const { written } = this.#options
    if (isFull) this.lingering.clear()
    else this.lingering.settle(write.kept)
    for (const { id } of write.kept.changes.drop) if (written.port(id) === undefined) this.#counts.forgetPort(id)
    if (write.leaving.size === 0) return
    for (const [chain, port] of write.leaving) {
      if (written.port(port)?.rules.declares(chain) === true) continue
      this.#counts.carry(chain, port, isDeleted(chain))
    }
    this.#moves++
    await this.#keepInTable(new Map())
  }

  /** Reads all counts. `exclusively` keeps writes away from the sums: while one ends, a count may be in neither of its two places. */
  async read(exclusively: Exclusively = (work) => work()): Promise<readonly PortCounters[]> {
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const moves = this.#moves
      const reading = await this.#options.counters.readAll()
      if (moves !== this.#moves) continue
      for (const [chain, packets] of reading) this.#counts.observe(chain, packets)
      break
    }
    return exclusively(() => this.#report())
  }

  close(): void {
    this.#options.counters.close()
    this.#options.table.close()
  }

  async #observe(read: () => Promise<ChainReading>): Promise<ChainReading> {
    try {
      const reading = await read()
      for (const [chain, packets] of reading) this.#counts.observe(chain, packets)
      return reading
    } catch (error) {
      this.#options.log.warn('Cannot read what endpoints have counted', { error: describeError(error) })
      return new Map()
    }
  }

  /** Reads the table: at first for its sums, later to see whether it is still there. */
  async #load(reading: ChainReading): Promise<void> {
    this.#isTableMissing = false
    try {
      const sums = await this.#options.table.read()
      if (this.#isLoaded) return
      this.#isLoaded = true
      // A chain that exists has its own count.
      for (const { name, port, count } of sums) if (!reading.has(name)) this.#counts.addCarried(port, count)
    } catch (error) {
      this.#reportTable(error)
    }
  }

  /** Sums that were read from the table may be of ports that went while no proxy ran. */
  #forgetLostPorts(): void {
    const { written } = this.#options
    for (const [port] of [...this.#counts.carried()])
      if (written.port(port) === undefined) this.#counts.forgetPort(port)
  }

  /** Writes the sums of all ports, and what chains have counted that are about to be deleted. */
  async #keepInTable(leaving: ReadonlyMap<string, string>): Promise<void> {
    if (this.#isTableMissing) return
    const sums: CarriedSum[] = [...this.#counts.carried()].map(([port, count]) => ({
      name: sumName(port),
      port,
      count,
    }))
    for (const [chain, port] of leaving) sums.push({ name: chain, port, count: this.#counts.of(chain) })
    try {
      if (await this.#options.table.write(sums.filter(({ count }) => count > 0))) this.commits++
    } catch (error) {
      this.#reportTable(error)
    }
  }

  #reportTable(error: unknown): void {
    if (!this.#isTableMissing) {
      this.#options.log.warn('Cannot keep counts of endpoints that are gone in nf_tables: a restart forgets them', {
        error: describeError(error),
      })
    }
    this.#isTableMissing = true
  }

  /** Chains of endpoints that exist and get other rules: only affinity changes these. Forgets what chains had that are made again. */
  #findRewritten({ put }: Changes<IptablesEntry>): readonly string[] {
    return put.flatMap((entry) => {
      const old = this.#options.written.port(entry.id)
      if (entry.kind === 'base' || old?.digest === entry.digest) return []
      const known = new Set(old?.rules.chains())
      const chains = entry.rules.chains().filter(isEndpointChain)
      for (const chain of chains) if (!known.has(chain)) this.#counts.forget(chain)
      return old === undefined || hasAffinity(old) === hasAffinity(entry)
        ? []
        : chains.filter((chain) => known.has(chain))
    })
  }

  /** Finds chains that have counted and that no port has any more, with the ports that they belonged to. */
  async #findLeaving(ports: readonly PortEntry[], signal: AbortSignal): Promise<ReadonlyMap<string, string>> {
    const slice = new TimeSlice(this.#options.clock)
    const wanted = new Set<string>()
    for (const [i, { rules }] of ports.entries()) {
      if (i % stride === 0 && slice.over) await slice.yieldLoop()
      for (const chain of rules.chains()) if (isEndpointChain(chain)) wanted.add(chain)
    }
    for (const chain of wanted) this.#counts.beginAgain(chain)
    const gone = this.#counts.chains().filter((chain) => !wanted.has(chain) && this.#counts.of(chain) > 0)
    if (gone.length === 0) return new Map()
    const { written, listRules } = this.#options
    return new StrayOwners({ written, listRules, slice }).find(gone, ports, signal)
  }

  async #report(): Promise<readonly PortCounters[]> {
    const { written, clock, family } = this.#options
    const slice = new TimeSlice(clock)
    const found: PortCounters[] = []
    for (const entry of written.ports()) {
      if (found.length % stride === 0 && slice.over) await slice.yieldLoop()
      const endpoints = new Map<string, TrafficCounts>()
      let connections = this.#counts.carriedOf(entry.id)
      for (const [chain, endpoint] of entry.rules.destinations()) {
        const count = this.#counts.of(chain)
        connections += count
        if (!this.lingering.has(entry.id, chain)) endpoints.set(endpoint, { connections: count })
      }
      const protocol = entry.id.slice(entry.id.lastIndexOf('/') + 1) as Protocol
      found.push({ family, port: portNameOf(entry), protocol, connections, endpoints })
    }
    return found
  }
}

const hasAffinity = ({ rules }: PortEntry): boolean => rules.includes(' --set ')
