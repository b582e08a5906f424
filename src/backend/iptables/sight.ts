// Eyes on the kernel's tables: a mark that changes whenever anybody changes anything, and how much each chain is in use.

import type { Family } from '../../lib/ip.ts'
import { ChainTable } from '../../sys/netlink/chains.ts'
import { readTableSize } from '../../sys/xtables.ts'
import { parseRule } from './book.ts'
import type { Table } from './entries.ts'
import type { Tools } from './tools.ts'

export interface Seen {
  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  readonly uses: ReadonlyMap<string, number>
  /** Rules of chains that are not ours and jump to ours, `nat -A …` as iptables-save prints them, where that comes for nothing. */
  readonly jumps: ReadonlySet<string> | undefined
}

/** What one write of ours did. */
export interface OwnChanges {
  readonly commits: number
  /** By how many there are more of them now, as `Book.parts`; undefined if what was there before is not known. */
  readonly parts: Readonly<Record<Table, number>> | undefined
}

export interface Sight {
  /** Costs next to nothing. Equal marks: nobody changed anything in between. */
  mark(): Promise<string>
  /** Whether nothing but `own` lies between two marks. */
  onlyOwn(before: string, after: string, own: OwnChanges): boolean
  look(signal?: AbortSignal): Promise<Seen>
  /** As `look`, for who wants to know which chains there are, and how built-in chains use them. */
  survey(signal?: AbortSignal): Promise<Seen>
  close(): void
}

const tables = ['filter', 'nat', 'mangle'] as const

export const openSight = (tools: Tools, family: Family): Sight =>
  tools.programs.flavour === 'nft' ? nftSight(family) : legacySight(tools, family)

/** The generation counts every transaction, so ours can be told from those of others. Chains come with their use. */
function nftSight(family: Family): Sight {
  const chains = new ChainTable()
  const look = async (signal?: AbortSignal) => ({
    uses: await chains.list(family, { signal }),
    jumps: undefined,
  })
  return {
    mark: async () => String(await chains.generation()),
    onlyOwn: (before, after, { commits }) => Number(after) === Number(before) + commits,
    look,
    survey: look,
    close: () => chains.close(),
  }
}

/** A table can only be read whole; its size is told for nothing, and hardly any change leaves it as it is. */
function legacySight(tools: Tools, family: Family): Sight {
  const read = async (signal: AbortSignal | undefined, own: boolean) => {
    const counted: Counted = { uses: new Map(), jumps: new Set(), own, table: '' }
    await tools.saveAll((lines) => countUses(lines, counted), signal)
    return counted
  }
  return {
    mark: async () =>
      tables
        .map((table) => readTableSize(family, table))
        .map(({ entries, bytes }) => `${entries}/${bytes}`)
        .join(' '),
    onlyOwn: (before, after, { parts }) => {
      if (parts === undefined) return false
      const [was, is] = [entriesIn(before), entriesIn(after)]
      return tables.every((table, i) => is[i] === (was[i] as number) + (table === 'mangle' ? 0 : parts[table]))
    },
    look: (signal) => read(signal, true),
    survey: (signal) => read(signal, false),
    close: () => {},
  }
}

/** By table, of a mark. */
const entriesIn = (mark: string): readonly number[] => mark.split(' ').map(Number.parseFloat)

export interface Counted {
  readonly uses: Map<string, number>
  readonly jumps: Set<string>
  /** Rules in our own chains count, too; otherwise they are passed over. */
  readonly own: boolean
  /** That the lines are in; '' at the beginning. */
  table: string
}

/** The counts that nf_tables keeps by itself, from saved tables, whole lines at a time. One pass: there may be 100,000 of them. */
export function countUses(saved: string, counted: Counted): void {
  const { uses, jumps, own } = counted
  let { table } = counted
  const use = (chain: string, by: number) => {
    const key = `${table} ${chain}`
    uses.set(key, (uses.get(key) ?? 0) + by)
  }
  for (let start = 0; start < saved.length; ) {
    const newline = saved.indexOf('\n', start)
    const end = newline < 0 ? saved.length : newline
    const first = saved.charCodeAt(start)
    if (first === asterisk) table = saved.slice(start + 1, end)
    else if (first === colon) uses.set(`${table} ${saved.slice(start + 1, saved.indexOf(' ', start))}`, 0)
    else if (first === dash && (own || !saved.startsWith('KUBE-', start + 3))) {
      const { chain, target } = parseRule(saved, start, end)
      use(chain, 1)
      if (target.startsWith('KUBE-')) {
        use(target, 1)
        if (!chain.startsWith('KUBE-')) jumps.add(`${table} ${saved.slice(start, end)}`)
      }
    }
    start = end + 1
  }
  counted.table = table
}

const asterisk = 0x2a
const colon = 0x3a
const dash = 0x2d
