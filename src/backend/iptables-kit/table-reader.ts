// Eyes on the kernel's tables: a mark that changes whenever anybody changes anything, and how much each chain is in use.

import type { Family } from '../../lib/ip.ts'
import { SetHash } from '../../lib/set-hash.ts'
import { readTableSize } from '../../sys/legacy-table-size.ts'
import { ChainTable } from '../../sys/netlink/nft/chain-uses.ts'
import type { IptablesTableName } from '../iptables/entries.ts'
import { parseRule } from '../iptables/written.ts'
import { canary, isOwnChain, kubeletFirewall } from './chains.ts'
import type { IptablesPrograms } from './programs.ts'

export interface ChainUses {
  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  readonly uses: ReadonlyMap<string, number>
  /** Rules of chains that are not ours and jump to ours, `nat -A …` as iptables-save prints them, where that comes for nothing. */
  readonly jumps: ReadonlySet<string> | undefined
}

export interface ChainSurvey extends ChainUses {
  /** Chains of service ports and endpoints; how much they are in use may not be told. */
  readonly own: OwnChainsSeen
}

export interface OwnChainsSeen {
  readonly tally: SetHash
  /** Their names; dear. */
  names(): readonly string[]
}

/** What one write of ours did. */
export interface OwnChanges {
  readonly commits: number
  /** By how many there are more of them now, as `Book.parts`; undefined if what was there before is not known. */
  readonly parts: Readonly<Record<IptablesTableName, number>> | undefined
}

/** What we wrote. */
export interface ExpectedRules {
  /** Rules in chains of service ports, as `Book.rules`. */
  readonly rules: SetHash
  /** Uses by rules in all other chains, as `Book.sharedUses`, those of others that are tolerated included. */
  readonly uses: ReadonlyMap<string, number>
}

export interface TableReader {
  /** Costs next to nothing. Equal marks: nobody changed anything in between. */
  version(): Promise<string>
  /** Whether nothing but `own` lies between two marks. */
  onlyOwn(before: string, after: string, own: OwnChanges): boolean
  readUses(signal?: AbortSignal): Promise<ChainUses>
  /** Whether all is there as expected, where that is cheaper to tell than by a look; if not, only a look can tell why. */
  matches?(expected: ExpectedRules): Promise<boolean>
  /** As `look`, for who wants to know which chains there are, and how built-in chains use them. */
  readChains(signal?: AbortSignal): Promise<ChainSurvey>
  close(): void
}

const tables = ['filter', 'nat', 'mangle'] as const
/** Where the chain begins in the key of one in nat. */
const natKey = 'nat '.length

export const openTableReader = (tools: IptablesPrograms, family: Family): TableReader =>
  tools.programs.flavour === 'nft' ? nftTableReader(family) : legacyTableReader(tools, family)

/** The generation counts every transaction, so ours can be told from those of others. Chains come with their use. */
function nftTableReader(family: Family): TableReader {
  const chains = new ChainTable()
  const readUses = async (signal?: AbortSignal) => ({
    uses: await chains.list(family, { signal }),
    jumps: undefined,
  })
  return {
    version: async () => String(await chains.generation()),
    onlyOwn: (before, after, { commits }) => Number(after) === Number(before) + commits,
    readUses,
    async readChains(signal) {
      const seen = await readUses(signal)
      const keys = () => [...seen.uses.keys()].filter((key) => key.startsWith('nat ') && isOwnChain(key, natKey))
      const tally = new SetHash()
      for (const key of keys()) tally.add(key, natKey, key.length)
      return { ...seen, own: { tally, names: () => keys().map((key) => key.slice(natKey)) } }
    },
    close: () => chains.close(),
  }
}

/** A table can only be read whole; its size is told for nothing, and hardly any change leaves it as it is. */
function legacyTableReader(tools: IptablesPrograms, family: Family): TableReader {
  const read = async <Own extends OwnChainsSaved | undefined>(signal: AbortSignal | undefined, own: Own) => {
    const counted = { uses: new Map<string, number>(), jumps: new Set<string>(), own, table: '' }
    await tools.saveAll((lines) => countUses(lines, counted), signal)
    return counted
  }
  return {
    version: async () =>
      tables
        .map((table) => readTableSize(family, table))
        .map(({ entries, bytes }) => `${entries}/${bytes}`)
        .join(' '),
    onlyOwn: (before, after, { parts }) => {
      if (parts === undefined) return false
      const [was, is] = [entriesIn(before), entriesIn(after)]
      return tables.every((table, i) => is[i] === (was[i] as number) + (table === 'mangle' ? 0 : parts[table]))
    },
    readUses: (signal) => read(signal, undefined),
    async matches({ rules, uses: wanted }) {
      const own = new OwnChainsSaved(new SetHash())
      const { uses } = await read(undefined, own)
      return own.rules?.equals(rules) === true && sameUses(uses, wanted)
    },
    readChains: (signal) => read(signal, new OwnChainsSaved()),
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
  readonly tally = new SetHash()
  /** Of rules in these chains, if these are to be counted as well. */
  readonly rules: SetHash | undefined
  /** Lines of the text that declare some. */
  readonly #runs: { readonly text: string; readonly start: number; readonly end: number }[] = []

  constructor(rules?: SetHash) {
    this.rules = rules
  }

  /** The run of their declarations that begins at `start`; returns where it ends. */
  addRun(text: string, start: number): number {
    const { tally } = this
    let at = start
    while (text.charCodeAt(at) === colon && isOwnChain(text, at + 1)) {
      tally.add(text, at + 1, text.indexOf(' ', at))
      at = lineEnd(text, at) + 1
      if (at >= text.length) break
    }
    if (at > start) this.#runs.push({ text, start, end: at })
    return at
  }

  names(): readonly string[] {
    const names: string[] = []
    for (const { text, start, end } of this.#runs) {
      for (let at = start; at < end; at = lineEnd(text, at) + 1) names.push(text.slice(at + 1, text.indexOf(' ', at)))
    }
    return names
  }
}

/**
 * The counts that nf_tables keeps by itself, from saved tables, whole lines at a time. One pass: there may be 200,000 of them. Runs of
 * lines of one kind, which are nearly all, have small loops of their own: what V8 compiles, often more than once, cost more than it did.
 */
export function countUses(saved: string, counted: Counted): void {
  for (let start = 0; start < saved.length; ) {
    const next = skipOwn(saved, start, counted)
    if (next > start) {
      start = next
      continue
    }
    const end = lineEnd(saved, start)
    countLine(saved, start, end, counted)
    start = end + 1
  }
}

/** Where the run of lines ends that begins here and needs no closer look; `start` if there is none. */
function skipOwn(saved: string, start: number, { own, table }: Counted): number {
  if (own === undefined) return start
  const first = saved.charCodeAt(start)
  if (first === colon) return table === 'nat' ? own.addRun(saved, start) : start
  if (first !== dash) return start
  if (own.rules === undefined) return skipRules(saved, start)
  return table === 'nat' ? tallyRules(saved, start, own.rules) : start
}

/** Rules in chains of ours and of our kin. */
function skipRules(saved: string, start: number): number {
  let at = start
  while (saved.startsWith('-A KUBE-', at)) at = lineEnd(saved, at) + 1
  return at
}

function tallyRules(saved: string, start: number, rules: SetHash): number {
  let at = start
  while (saved.startsWith('-A KUBE-', at) && isOwnChain(saved, at + 3)) {
    const end = lineEnd(saved, at)
    rules.addRule(saved, at, end)
    at = end + 1
  }
  return at
}

function lineEnd(text: string, start: number): number {
  const newline = text.indexOf('\n', start)
  return newline < 0 ? text.length : newline
}

/** Of chains that are expected, and of those that nobody expects in our name. */
function sameUses(uses: ReadonlyMap<string, number>, wanted: ReadonlyMap<string, number>): boolean {
  for (const table of tables) if (!uses.has(`${table} ${canary}`)) return false
  for (const [chain, use] of wanted) {
    const found = uses.get(chain) ?? 0
    // Kubelet writes its chain, too.
    if (chain.endsWith(` ${kubeletFirewall}`) ? found < use : found !== use) return false
  }
  for (const [chain, use] of uses) {
    if (use > 0 && chain.startsWith('nat ') && isOwnChain(chain, natKey) && !wanted.has(chain)) return false
  }
  return true
}

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
