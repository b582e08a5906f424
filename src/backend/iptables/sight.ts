// Eyes on the kernel's tables: a mark that changes whenever anybody changes anything, and how much each chain is in use.

import type { Family } from '../../lib/ip.ts'
import { ChainTable } from '../../sys/netlink/chains.ts'
import { readTableSize } from '../../sys/xtables.ts'
import { parseRules } from './book.ts'
import type { Tools } from './tools.ts'

export interface Seen {
  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  readonly uses: ReadonlyMap<string, number>
  /** Rules of built-in chains as iptables-save prints them, where that comes for nothing. */
  readonly jumps: ReadonlySet<string>
}

export interface Sight {
  /** Costs next to nothing. Equal marks: nobody changed anything in between. */
  mark(): Promise<string>
  /** By how much our own changes move the mark on; undefined if that cannot be told. */
  after(mark: string, commits: number): string | undefined
  look(signal?: AbortSignal): Promise<Seen>
  close(): void
}

const tables = ['filter', 'nat', 'mangle'] as const

export const openSight = (tools: Tools, family: Family): Sight =>
  tools.programs.flavour === 'nft' ? nftSight(family) : legacySight(tools, family)

/** The generation counts every transaction, so ours can be told from those of others. Chains come with their use. */
function nftSight(family: Family): Sight {
  const chains = new ChainTable()
  return {
    mark: async () => String(await chains.generation()),
    after: (mark, commits) => String(Number(mark) + commits),
    look: async (signal) => ({ uses: await chains.list(family, { signal }), jumps: new Set() }),
    close: () => chains.close(),
  }
}

/** A table can only be read whole; its size is told for nothing, and hardly any change leaves it as it is. */
function legacySight(tools: Tools, family: Family): Sight {
  return {
    mark: async () =>
      tables
        .map((table) => readTableSize(family, table))
        .map(({ entries, bytes }) => `${entries}/${bytes}`)
        .join(' '),
    after: () => undefined,
    look: async (signal) => {
      const uses = new Map<string, number>()
      const jumps = new Set<string>()
      for (const table of tables) countUses(table, await tools.save(table, signal), uses, jumps)
      return { uses, jumps }
    },
    close: () => {},
  }
}

/** The counts that nf_tables keeps by itself, from a saved table. */
export function countUses(table: string, saved: string, uses: Map<string, number>, jumps: Set<string>): void {
  const use = (chain: string, by: number) => uses.set(`${table} ${chain}`, (uses.get(`${table} ${chain}`) ?? 0) + by)
  for (const [, chain] of saved.matchAll(/^:(\S+) /gm)) use(chain as string, 0)
  for (const { chain, target } of parseRules(saved)) {
    use(chain, 1)
    if (target.startsWith('KUBE-')) use(target, 1)
  }
  for (const [line, target] of saved.matchAll(/^-A [A-Z]+ .*-j (KUBE-\S+)$/gm))
    if (target) jumps.add(`${table} ${line}`)
}
