// The input of iptables-restore as text, in kube-proxy's order; and what its complaints about that text mean. Pure.
//
// One restore per write, with --noflush: a `:CHAIN` line makes and empties a chain, chains that are not named stay as they
// are, and each table changes at its COMMIT, all at once. The shared chains are always written whole; chains of services
// only where they changed. A line that is refused is found again by its number.

import { canary, type KubeJump, kubeletFirewall, savedJump, sharedChains } from '../iptables-kit/chains.ts'
import type { RestoreInput } from '../iptables-kit/restore-input.ts'
import { chainOfRule, declaration, declarations, deletion, linesOf } from '../iptables-kit/restore-text.ts'
import { chainsOf, declarationsOf, filterOf, type IptEntry, natOf, ownOf } from './entries.ts'
import type { WrittenRules } from './written.ts'

/** Above this many endpoints their rules go without comments, which make up half of the text. */
export const largeEndpoints = 1000

export interface RestoreDraft {
  /** All that is to be there. */
  readonly book: WrittenRules
  readonly own: OwnChains
  /** Chains to delete. */
  readonly stale: readonly string[]
}

/** Chains of service ports that are to be written. */
export interface OwnChains {
  /** In order; as they are in the book. */
  readonly entries: readonly IptEntry[]
  /** Only these chains of them, by id; undefined: all of all. */
  readonly some: ReadonlyMap<string, ReadonlySet<string>> | undefined
  /** Without the comments of endpoints. */
  readonly large: boolean
}

export function compose(paper: RestoreInput, { book, own, stale }: RestoreDraft): void {
  const head = book.base('filter head')
  paper.begin('filter')
  paper.add(declarations(sharedChains.filter))
  if (head !== '') paper.add(declarations([kubeletFirewall]))
  paper.add(head)
  addFilterRules(paper, book)
  paper.add(book.base('filter tail'))
  paper.commit()
  paper.begin('nat')
  paper.add(declarations(sharedChains.nat))
  addDeclarations(paper, own)
  paper.add(declarations(stale))
  paper.add(book.base('nat head'))
  addNatRules(paper, book, own)
  for (const chain of stale) paper.add(deletion(chain))
  paper.add(book.base('nat tail'))
  paper.commit()
}

// Each of these loops is a function by itself, as they are what V8 compiles.

function addFilterRules(paper: RestoreInput, book: WrittenRules): void {
  for (const entry of book.ports()) if (entry.filterRules > 0) paper.addCounted(filterOf(entry), entry.filterRules)
}

function addDeclarations(paper: RestoreInput, own: OwnChains): void {
  for (const entry of own.entries) paper.addCounted(declarationsIn(entry, own), 0)
}

function addNatRules(paper: RestoreInput, book: WrittenRules, own: OwnChains): void {
  const whole = own.some === undefined && own.large
  let next = 0
  for (const entry of book.ports()) {
    const lacking = book.lacking(entry)
    const isWritten = own.entries[next]?.id === entry.id
    if (isWritten) next++
    if (isWritten && whole && lacking === 0) {
      paper.addCounted(natOf(entry), entry.sharedRules + entry.ownRules)
      continue
    }
    if (entry.sharedRules > lacking) paper.addCounted(book.shared(entry), entry.sharedRules - lacking)
    if (isWritten) paper.add(rulesIn(entry, own))
  }
}

/** Chains of services alone, with the one shared chain that they jump to. */
export function composeChains(paper: RestoreInput, book: WrittenRules, own: OwnChains): void {
  paper.begin('nat')
  paper.add(declaration('KUBE-MARK-MASQ'))
  addDeclarations(paper, own)
  for (const line of book.base('nat head').match(/^-A KUBE-MARK-MASQ .*\n/gm) ?? []) paper.add(line)
  for (const entry of own.entries) paper.add(rulesIn(entry, own))
  paper.commit()
}

export function composeDeletions(paper: RestoreInput, chains: readonly string[]): void {
  paper.begin('nat')
  paper.add(declarations(chains))
  for (const chain of chains) paper.add(deletion(chain))
  paper.commit()
}

/** The canaries, shared chains and jumps that are missing; '' if none is. A chain that exists must not be named: that would empty it. */
export function composeJumps(missing: readonly KubeJump[], absent: (table: string, chain: string) => boolean): string {
  let out = ''
  for (const table of ['mangle', 'nat', 'filter']) {
    const own = missing.filter((jump) => jump.table === table)
    const chains = [canary, ...own.map(({ to }) => to)].filter((chain) => absent(table, chain))
    if (own.length + chains.length === 0) continue
    const jumps = own.map((jump) => `${savedJump(jump).replace('-A', '-I')}\n`)
    out += `*${table}\n${declarations([...new Set(chains)])}${jumps.join('')}COMMIT\n`
  }
  return out
}

function declarationsIn(entry: IptEntry, { some }: OwnChains): string {
  if (some === undefined) return declarationsOf(entry)
  const chains = some.get(entry.id)
  return declarations(chainsOf(entry).filter((chain) => chains?.has(chain)))
}

function rulesIn(entry: IptEntry, { some, large }: OwnChains): string {
  const rules = ownOf(entry, !large)
  if (some === undefined) return rules
  const chains = some.get(entry.id)
  return linesOf(rules)
    .filter((line) => chains?.has(chainOfRule(line)))
    .join('')
}
