// Eyes on the kernel's tables: a mark that changes whenever anybody changes anything, and how much each chain is in use.

import type { Family } from '../../lib/ip.ts'
import { ChainTable } from '../../sys/netlink/chains.ts'
import { readTableSize } from '../../sys/xtables.ts'
import { parseRule } from './book.ts'
import { isOwnChain } from './chains.ts'
import type { Table } from './entries.ts'
import { Tally } from './tally.ts'
import type { Tools } from './tools.ts'

export interface Seen {
  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  readonly uses: ReadonlyMap<string, number>
  /** Rules of chains that are not ours and jump to ours, `nat -A …` as iptables-save prints them, where that comes for nothing. */
  readonly jumps: ReadonlySet<string> | undefined
}

export interface Surveyed extends Seen {
  /** Chains of service ports and endpoints; how much they are in use may not be told. */
  readonly own: OwnChainsSeen
}

export interface OwnChainsSeen {
  readonly tally: Tally
  /** Their names; dear. */
  names(): readonly string[]
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
  survey(signal?: AbortSignal): Promise<Surveyed>
  close(): void
}

const tables = ['filter', 'nat', 'mangle'] as const
/** Where the chain begins in the key of one in nat. */
const natKey = 'nat '.length

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
    async survey(signal) {
      const seen = await look(signal)
      const keys = () => [...seen.uses.keys()].filter((key) => key.startsWith('nat ') && isOwnChain(key, natKey))
      const tally = new Tally()
      for (const key of keys()) tally.add(key, natKey, key.length)
      return { ...seen, own: { tally, names: () => keys().map((key) => key.slice(natKey)) } }
    },
    close: () => chains.close(),
  }
}

/** A table can only be read whole; its size is told for nothing, and hardly any change leaves it as it is. */
function legacySight(tools: Tools, family: Family): Sight {
  const read = async <Own extends OwnChainsSaved | undefined>(signal: AbortSignal | undefined, own: Own) => {
    const counted = { uses: new Map<string, number>(), jumps: new Set<string>(), own, table: '' }
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
    look: (signal) => read(signal, undefined),
    survey: (signal) => read(signal, new OwnChainsSaved()),
    close: () => {},
  }
}

/** By table, of a mark. */
const entriesIn = (mark: string): readonly number[] => mark.split(' ').map(Number.parseFloat)

export interface Counted {
  readonly uses: Map<string, number>
  readonly jumps: Set<string>
  /** Gets the chains of service ports and endpoints, whose use is not counted then, as little as rules in any of our chains. */
  readonly own: OwnChainsSaved | undefined
  /** That the lines are in; '' at the beginning. */
  table: string
}

/** Chains of service ports and endpoints in saved tables. Names are not taken out before somebody asks for them. */
export class OwnChainsSaved implements OwnChainsSeen {
  readonly tally = new Tally()
  /** Pieces of the text that have some, and where the first and the last begin. */
  readonly #pieces: { readonly text: string; readonly first: number; last: number }[] = []

  /** The one whose name begins here. */
  add(text: string, start: number): void {
    this.tally.add(text, start, text.indexOf(' ', start))
    const piece = this.#pieces.at(-1)
    if (piece?.text === text) piece.last = start
    else this.#pieces.push({ text, first: start, last: start })
  }

  names(): readonly string[] {
    const names: string[] = []
    for (const { text, first, last } of this.#pieces) {
      for (let at = first; at <= last; at = text.indexOf('\n', at) + 2) {
        if (isOwnChain(text, at)) names.push(text.slice(at, text.indexOf(' ', at)))
        if (text.indexOf('\n', at) < 0) break
      }
    }
    return names
  }
}

/**
 * The counts that nf_tables keeps by itself, from saved tables, whole lines at a time. One pass: there may be 100,000 of them. What is
 * done for most lines is kept apart from the rest: V8 compiles it more than once, and that takes longer than what it does.
 */
export function countUses(saved: string, counted: Counted): void {
  const { own } = counted
  for (let start = 0; start < saved.length; ) {
    const newline = saved.indexOf('\n', start)
    const end = newline < 0 ? saved.length : newline
    const first = saved.charCodeAt(start)
    if (own === undefined) countLine(saved, start, end, counted)
    else if (first === colon && counted.table === 'nat' && isOwnChain(saved, start + 1)) own.add(saved, start + 1)
    else if (first !== dash || !isKube(saved, start + 3)) countLine(saved, start, end, counted)
    start = end + 1
  }
}

/** As `startsWith('KUBE-', at)`, without a call. */
const isKube = (text: string, at: number): boolean =>
  text.charCodeAt(at) === 0x4b &&
  text.charCodeAt(at + 1) === 0x55 &&
  text.charCodeAt(at + 2) === 0x42 &&
  text.charCodeAt(at + 3) === 0x45 &&
  text.charCodeAt(at + 4) === dash

function countLine(saved: string, start: number, end: number, counted: Counted): void {
  const first = saved.charCodeAt(start)
  if (first === asterisk) counted.table = saved.slice(start + 1, end)
  else if (first === colon) counted.uses.set(`${counted.table} ${saved.slice(start + 1, saved.indexOf(' ', start))}`, 0)
  else if (first === dash) countRule(saved, start, end, counted)
}

function countRule(saved: string, start: number, end: number, { uses, jumps, table }: Counted): void {
  const use = (name: string) => {
    const key = `${table} ${name}`
    uses.set(key, (uses.get(key) ?? 0) + 1)
  }
  const { chain, target } = parseRule(saved, start, end)
  use(chain)
  if (!target.startsWith('KUBE-')) return
  use(target)
  if (!chain.startsWith('KUBE-')) jumps.add(`${table} ${saved.slice(start, end)}`)
}

const asterisk = 0x2a
const colon = 0x3a
const dash = 0x2d
