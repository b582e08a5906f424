// The entries that we wrote and that the kernel holds unless another program changed them, with counts of rules and chains. Pure.

import { SetHash } from '../../../lib/set-hash.ts'
import type { IptablesTableName } from '../../iptables-kit/chains.ts'
import type { LegacyEntries } from '../../iptables-kit/drift-watch.ts'
import { countRules } from '../../iptables-kit/restore-text.ts'
import type { BaseEntry, IptablesEntry, PortEntry } from '../entries.ts'
import { adapt, countLeftOut, haveSameFeatures, type IptablesFeatures } from '../features.ts'

/** Called with sign 1 for each entry that comes and -1 for each that goes; a changed entry goes and comes. */
export type WrittenListener = (entry: IptablesEntry, sign: 1 | -1) => void

/** What a write changes. */
export interface WrittenChange {
  readonly put: readonly IptablesEntry[]
  /** Ids. */
  readonly drop: readonly string[]
  /** All ports after the change, in order. */
  readonly ports: readonly PortEntry[]
}

export class WrittenRules {
  /** Checksum of the names of all service chains. */
  readonly chainChecksum = new SetHash()
  readonly #base = new Map<string, BaseEntry>()
  readonly #ports = new Map<string, PortEntry>()
  /** Ports in order; undefined after one came or went. */
  #sorted: readonly PortEntry[] | undefined
  #features: IptablesFeatures = { randomFully: false, liberal: false, counters: new Set() }
  readonly #ruleCounts: Record<IptablesTableName, number> = { filter: 0, nat: 0 }
  #chainCount = 0
  #endpoints = 0
  #listener: WrittenListener = () => {}

  /** What this machine can do. Rules are counted without what it cannot do. */
  get features(): IptablesFeatures {
    return this.#features
  }

  set features(features: IptablesFeatures) {
    if (haveSameFeatures(features, this.#features)) return
    const entries = [...this.entries()]
    for (const { id } of entries) this.drop(id)
    this.#features = features
    for (const entry of entries) this.put(entry)
  }

  /** Endpoints of all service ports, reached from here or not. */
  get endpoints(): number {
    return this.#endpoints
  }

  get size(): number {
    return this.#base.size + this.#ports.size
  }

  get base(): ReadonlyMap<string, BaseEntry> {
    return this.#base
  }

  entry(id: string): IptablesEntry | undefined {
    return this.#ports.get(id) ?? this.#base.get(id)
  }

  port(id: string): PortEntry | undefined {
    return this.#ports.get(id)
  }

  *entries(): Iterable<IptablesEntry> {
    yield* this.#base.values()
    yield* this.#ports.values()
  }

  /** All ports, ordered by id. */
  ports(): readonly PortEntry[] {
    this.#sorted ??= [...this.#ports.values()].sort(compareIds)
    return this.#sorted
  }

  ruleCount(table: IptablesTableName): number {
    return this.#ruleCounts[table]
  }

  /** Entries that the legacy tables hold for what we wrote: one per rule, and two per service chain, where it begins and ends. */
  legacyEntries(): LegacyEntries {
    return { filter: this.#ruleCounts.filter, nat: this.#ruleCounts.nat + 2 * this.#chainCount }
  }

  /** Names of all service chains. */
  chains(): ReadonlySet<string> {
    const all = new Set<string>()
    for (const { rules } of this.#ports.values()) for (const chain of rules.chains()) all.add(chain)
    return all
  }

  /** Applies a change that the kernel has accepted. */
  apply({ put, drop, ports }: WrittenChange): void {
    for (const id of drop) this.drop(id)
    for (const entry of put) this.put(entry)
    this.#sorted = ports
  }

  put(entry: IptablesEntry): void {
    const before = this.entry(entry.id)
    if (before?.digest === entry.digest) return
    if (before !== undefined) this.#count(before, -1)
    if (entry.kind === 'base') this.#base.set(entry.id, entry)
    else {
      this.#ports.set(entry.id, entry)
      this.#sorted = undefined
    }
    this.#count(entry, 1)
  }

  drop(id: string): void {
    const entry = this.entry(id)
    if (entry === undefined) return
    if (entry.kind === 'base') this.#base.delete(id)
    else {
      this.#ports.delete(id)
      this.#sorted = undefined
    }
    this.#count(entry, -1)
  }

  listen(listener: WrittenListener): void {
    this.#listener = listener
  }

  #count(entry: IptablesEntry, sign: 1 | -1): void {
    if (entry.kind === 'base') this.#ruleCounts[entry.table] += sign * countRules(adapt(entry.digest, this.#features))
    else {
      const { rules } = entry
      this.#ruleCounts.filter += sign * rules.filterCount
      this.#ruleCounts.nat += sign * (rules.sharedCount + rules.ownCount - countLeftOut(rules, this.#features))
      this.#chainCount += sign * rules.chainCount
      this.#endpoints += sign * entry.endpoints
      rules.hashChains(this.chainChecksum, sign)
    }
    this.#listener(entry, sign)
  }
}

export function compareIds(a: PortEntry, b: PortEntry): number {
  if (a.id === b.id) return 0
  return a.id < b.id ? -1 : 1
}
