// What userspace mode expects in the iptables tables: so that a DriftWatch notices changes by other programs, and missing hooks are found.

import type { OpenContext } from '../backend.ts'
import { canary } from '../iptables-kit/chains.ts'
import { DriftWatch, type LegacyEntries } from '../iptables-kit/drift-watch.ts'
import type { IptablesPrograms } from '../iptables-kit/programs.ts'
import type { ChainUses, TableReader } from '../iptables-kit/table-reader.ts'
import { canaryTables, hookArguments, hooks, type PortalHook } from './portal-chains.ts'
import type { MissingHooks } from './restore.ts'

export class PortalDrift {
  readonly watch: DriftWatch
  /** Rules in each of our chains plus jumps to it, as written; the key is `nat KUBE-PORTALS-HOST`. */
  #expected: ReadonlyMap<string, number> = new Map()

  constructor(reader: TableReader, { onDrift, clock, log }: OpenContext) {
    const expected = () => this.#expected
    const legacyEntries = () => countEntries(this.#expected)
    this.watch = new DriftWatch({ reader, expected, legacyEntries, hooks, onDrift, clock, log })
  }

  /** `text` is the input of an iptables-restore that has succeeded. */
  expect(text: string): void {
    this.#expected = countUses(text)
  }
}

/** Finds hooks and canaries that the tables lack. A chain without uses has no hook; for other chains the program must be asked. */
export async function findMissingHooks(
  { uses }: ChainUses,
  programs: IptablesPrograms,
  signal: AbortSignal,
): Promise<MissingHooks> {
  const missing: PortalHook[] = []
  for (const hook of hooks) {
    const isUsed = (uses.get(`${hook.table} ${hook.to}`) ?? 0) > 0
    const rule = [hook.from, '-t', hook.table, ...hookArguments(hook)]
    if (!isUsed || !(await programs.succeeds(['-C', ...rule], signal))) missing.push(hook)
  }
  return { hooks: missing, canaries: canaryTables.filter((table) => !uses.has(`${table} ${canary}`)) }
}

/** The rules in a chain and the hooks that jump to it count as uses. */
export function countUses(text: string): ReadonlyMap<string, number> {
  const uses = new Map<string, number>()
  const count = (chain: string) => uses.set(chain, (uses.get(chain) ?? 0) + 1)
  for (const { table, to } of hooks) count(`${table} ${to}`)
  let table = ''
  for (const line of text.split('\n')) {
    if (line.startsWith('*')) table = line.slice(1)
    else if (line.startsWith('-A ')) count(`${table} ${line.slice(3, line.indexOf(' ', 3))}`)
  }
  return uses
}

/** The number of chains and hooks is constant, so the rules are the difference between two writes. */
function countEntries(uses: ReadonlyMap<string, number>): LegacyEntries {
  const entries = { filter: 0, nat: 0 }
  for (const [chain, count] of uses) entries[chain.startsWith('nat ') ? 'nat' : 'filter'] += count
  return entries
}
