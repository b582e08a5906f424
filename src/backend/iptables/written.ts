// What the kernel holds of ours, as far as we wrote it: the base, and service ports in order. No I/O.
//
// For the watch it knows how much every chain is in use: a chain is used by each rule in it and by each rule that jumps to
// it, which is also how nf_tables counts. Every change can be taken back, since a text must be made before it is known to work.

import { SetHash } from '../../lib/set-hash.ts'
import { counters, type IptablesTableName, jumps } from '../iptables-kit/chains.ts'
import { countRules, declarationTail, parseRule } from '../iptables-kit/restore-text.ts'
import { RuleSetHash } from '../iptables-kit/rule-hash.ts'
import { type BasePart, chainsOf, filterOf, type IptEntry, ownOf, sharedOf } from './entries.ts'
import { adapt, type IptablesFeatures, sameFeatures } from './features.ts'

export class WrittenRules {
  readonly #base = new Map<string, IptEntry>()
  readonly #ports = new Map<string, IptEntry>()
  /** Ports in order; made anew only when some came or went. */
  #sorted: IptEntry[] | undefined
  /** Chains of service ports. */
  readonly chainChecksum = new SetHash()
  #features: IptablesFeatures = { randomFully: false, liberal: false, counters: new Set() }
  /** Counted when first asked for, and kept from then on: most of the time nobody asks. */
  #uses: Map<string, number> | undefined
  /** Rules in chains of service ports, likewise. */
  #rules: RuleSetHash | undefined
  readonly #lines: Record<IptablesTableName, number> = { filter: 0, nat: 0 }
  #chains = 0
  #endpoints = 0

  /** What this machine can do: rules are told without the rest. */
  get features(): IptablesFeatures {
    return this.#features
  }

  set features(features: IptablesFeatures) {
    if (sameFeatures(features, this.#features)) return
    const entries = [...this.#base.values(), ...this.#ports.values()]
    for (const { id } of entries) this.drop(id)
    this.#features = features
    this.#uses = undefined
    for (const entry of entries) this.put(entry)
  }

  /** Of all service ports, reached from here or not. */
  get endpoints(): number {
    return this.#endpoints
  }

  get size(): number {
    return this.#base.size + this.#ports.size
  }

  base(part: BasePart): string {
    return adapt(this.#base.get(part)?.digest ?? '', this.#features)
  }

  entry(id: string): IptEntry | undefined {
    return this.#ports.get(id) ?? this.#base.get(id)
  }

  *entries(): Iterable<IptEntry> {
    yield* this.#base.values()
    yield* this.#ports.values()
  }

  /** In order. */
  ports(): readonly IptEntry[] {
    this.#sorted ??= [...this.#ports.values()].sort(byId)
    return this.#sorted
  }

  /** A port's rules in the shared chains of nat. */
  shared(port: IptEntry): string {
    const text = sharedOf(port)
    return this.lacking(port) > 0 ? adapt(text, this.#features) : text
  }

  /** How many of a port's rules in the shared chains are left out, as this machine lacks what they need. */
  lacking({ countedRules }: IptEntry): number {
    return countedRules === 0 || this.#features.counters.has(counters.localhost) ? 0 : countedRules
  }

  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  uses(): ReadonlyMap<string, number> {
    if (this.#uses === undefined) {
      this.#uses = new Map()
      for (const { table, to } of jumps) use(this.#uses, `${table} ${to}`, 1)
      for (const entry of this.entries()) this.#countUses(this.#uses, entry, 1)
    }
    return this.#uses
  }

  /** Rules in chains of service ports: in which chain each is, and where it leads. */
  rules(): RuleSetHash {
    if (this.#rules === undefined) {
      this.#rules = new RuleSetHash()
      for (const entry of this.#ports.values()) addRules(this.#rules, entry, 1)
    }
    return this.#rules
  }

  /** As `uses`, of rules in all other chains only. */
  sharedUses(): Map<string, number> {
    const uses = new Map<string, number>()
    for (const { table, to } of jumps) use(uses, `${table} ${to}`, 1)
    for (const entry of this.#base.values()) this.#countUses(uses, entry, 1)
    for (const entry of this.#ports.values()) {
      countUses(uses, 'filter', filterOf(entry), 1)
      countUses(uses, 'nat', this.shared(entry), 1)
    }
    return uses
  }

  /** Rules that there are. */
  ruleCount(table: IptablesTableName): number {
    return this.#lines[table]
  }

  /** What a legacy table holds of ours: one part for a rule, and two for a chain of a service, where it begins and where it ends. */
  legacyEntries(): Readonly<Record<IptablesTableName, number>> {
    return { filter: this.#lines.filter, nat: this.#lines.nat + 2 * this.#chains }
  }

  /** Chains of service ports. */
  chains(): Set<string> {
    const all = new Set<string>()
    for (const entry of this.#ports.values()) for (const chain of chainsOf(entry)) all.add(chain)
    return all
  }

  /** Returns what was there. */
  put(entry: IptEntry): IptEntry | undefined {
    const entries = entry.kind === 'base' ? this.#base : this.#ports
    const before = entries.get(entry.id)
    if (before?.digest === entry.digest) return before
    if (before !== undefined) this.#count(before, -1)
    entries.set(entry.id, entry)
    this.#count(entry, 1)
    if (before === undefined) this.#sorted = undefined
    else if (this.#sorted !== undefined && entry.kind === 'port') this.#sorted[indexOf(this.#sorted, entry.id)] = entry
    return before
  }

  drop(id: string): IptEntry | undefined {
    const entry = this.entry(id)
    if (entry === undefined) return undefined
    if (entry.kind === 'base') this.#base.delete(id)
    else {
      this.#ports.delete(id)
      this.#sorted = undefined
    }
    this.#count(entry, -1)
    return entry
  }

  #count(entry: IptEntry, sign: 1 | -1): void {
    if (entry.kind === 'port') {
      this.#lines.filter += sign * entry.filterRules
      this.#lines.nat += sign * (entry.sharedRules + entry.ownRules - this.lacking(entry))
    } else this.#lines[tableOf(entry)] += sign * countRules(adapt(entry.digest, this.#features))
    this.#chains += sign * entry.chains
    for (let at = 0; at < entry.declared; ) {
      const end = entry.digest.indexOf('\n', at)
      this.chainChecksum.add(entry.digest, at + 1, end - declarationTail, sign)
      at = end + 1
    }
    this.#endpoints += sign * entry.endpoints
    if (this.#uses !== undefined) this.#countUses(this.#uses, entry, sign)
    if (this.#rules !== undefined) addRules(this.#rules, entry, sign)
  }

  #countUses(uses: Map<string, number>, entry: IptEntry, sign: 1 | -1): void {
    if (entry.kind === 'base') {
      countUses(uses, tableOf(entry), adapt(entry.digest, this.#features), sign)
      return
    }
    countUses(uses, 'filter', filterOf(entry), sign)
    countUses(uses, 'nat', this.shared(entry), sign)
    countUses(uses, 'nat', ownOf(entry, false), sign)
  }
}

const byId = (a: IptEntry, b: IptEntry): number => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)

/** Of the port with this id, which must be there. */
function indexOf(sorted: readonly IptEntry[], id: string): number {
  let low = 0
  for (let high = sorted.length; low < high; ) {
    const middle = (low + high) >> 1
    if ((sorted[middle] as IptEntry).id < id) low = middle + 1
    else high = middle
  }
  return low
}

/** Of a part of the base. */
const tableOf = ({ id }: IptEntry): IptablesTableName => (id.startsWith('nat') ? 'nat' : 'filter')

function addRules(tally: RuleSetHash, { digest, shared, own }: IptEntry, sign: 1 | -1): void {
  for (let start = shared; start < own; ) {
    const end = digest.indexOf('\n', start)
    tally.add(digest, start, end, sign)
    start = end + 1
  }
}

function countUses(uses: Map<string, number>, table: IptablesTableName, rules: string, sign: 1 | -1): void {
  for (let start = 0; start < rules.length; ) {
    const end = rules.indexOf('\n', start)
    const { chain, target } = parseRule(rules, start, end)
    use(uses, `${table} ${chain}`, sign)
    if (target.startsWith('KUBE-')) use(uses, `${table} ${target}`, sign)
    start = end + 1
  }
}

function use(uses: Map<string, number>, chain: string, by: number): void {
  const count = (uses.get(chain) ?? 0) + by
  if (count === 0) uses.delete(chain)
  else uses.set(chain, count)
}
