// Says what the tables hold if no other program changed them, and watches for drift. The state machine is iptables-kit/drift-watch.ts.

import type { OpenContext } from '../backend.ts'
import { type IptablesTableName, jumps } from '../iptables-kit/chains.ts'
import { DriftWatch } from '../iptables-kit/drift-watch.ts'
import { parseRule } from '../iptables-kit/restore-text.ts'
import { RuleSetHash } from '../iptables-kit/rule-hash.ts'
import type { TableReader } from '../iptables-kit/table-reader.ts'
import type { IptablesEntry } from './entries.ts'
import { adapt, adaptShared } from './features.ts'
import type { WrittenRules } from './write/written.ts'

export function createDriftWatch(written: WrittenRules, reader: TableReader, context: OpenContext): DriftWatch {
  const expected = new ExpectedUses(written)
  return new DriftWatch({
    reader,
    expected: () => expected.uses(),
    written: () => ({ rules: expected.serviceRules(), uses: expected.sharedUses() }),
    legacyEntries: () => written.legacyEntries(),
    hooks: jumps,
    onDrift: context.onDrift,
    clock: context.clock,
    log: context.log,
  })
}

/**
 * How often each chain is used: by each rule in it and by each rule that jumps to it, which is also how nf_tables counts. Uses and rules
 * are counted when they are first asked for and are kept up to date from then on: most of the time they are not asked for.
 */
export class ExpectedUses {
  readonly #written: WrittenRules
  #uses: Map<string, number> | undefined
  #serviceRules: RuleSetHash | undefined

  constructor(written: WrittenRules) {
    this.#written = written
    written.listen((entry, sign) => {
      if (this.#uses !== undefined) this.#addUses(this.#uses, entry, sign)
      if (this.#serviceRules !== undefined && entry.kind === 'port') entry.rules.hashRules(this.#serviceRules, sign)
    })
  }

  /** Uses of every chain; the key is `nat KUBE-SERVICES`. */
  uses(): ReadonlyMap<string, number> {
    if (this.#uses === undefined) {
      this.#uses = new Map()
      addHooks(this.#uses)
      for (const entry of this.#written.entries()) this.#addUses(this.#uses, entry, 1)
    }
    return this.#uses
  }

  /** Checksum of the rules in service chains. */
  serviceRules(): RuleSetHash {
    if (this.#serviceRules === undefined) {
      this.#serviceRules = new RuleSetHash()
      for (const { rules } of this.#written.ports()) rules.hashRules(this.#serviceRules, 1)
    }
    return this.#serviceRules
  }

  /** Uses by rules in all other chains. The caller may change the map. */
  sharedUses(): Map<string, number> {
    const uses = new Map<string, number>()
    addHooks(uses)
    for (const entry of this.#written.entries()) this.#addSharedUses(uses, entry, 1)
    return uses
  }

  #addUses(uses: Map<string, number>, entry: IptablesEntry, sign: 1 | -1): void {
    this.#addSharedUses(uses, entry, sign)
    if (entry.kind === 'port') addUsesByRules(uses, 'nat', entry.rules.own(), sign)
  }

  #addSharedUses(uses: Map<string, number>, entry: IptablesEntry, sign: 1 | -1): void {
    const { features } = this.#written
    if (entry.kind === 'base') {
      addUsesByRules(uses, entry.table, adapt(entry.digest, features), sign)
      return
    }
    addUsesByRules(uses, 'filter', entry.rules.filter(), sign)
    addUsesByRules(uses, 'nat', adaptShared(entry.rules, features), sign)
  }
}

function addHooks(uses: Map<string, number>): void {
  for (const { table, to } of jumps) addUse(uses, `${table} ${to}`, 1)
}

function addUsesByRules(uses: Map<string, number>, table: IptablesTableName, rules: string, sign: 1 | -1): void {
  for (let start = 0; start < rules.length; ) {
    const end = rules.indexOf('\n', start)
    const { chain, target } = parseRule(rules, start, end)
    addUse(uses, `${table} ${chain}`, sign)
    if (target.startsWith('KUBE-')) addUse(uses, `${table} ${target}`, sign)
    start = end + 1
  }
}

function addUse(uses: Map<string, number>, chain: string, by: number): void {
  const count = (uses.get(chain) ?? 0) + by
  if (count === 0) uses.delete(chain)
  else uses.set(chain, count)
}
