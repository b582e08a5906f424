// Finds our own chains, rules and jumps in what iptables-save prints, and adds missing jumps to the input of iptables-restore. Pure.

import { chains, jumps, printJump, type RuleTableName, ruleTables } from './rule-text.ts'

/** Our own lines of each table, without counters. */
export type SavedRules = Readonly<Record<RuleTableName, readonly string[]>>

/** `text` is what iptables-save prints of all tables. */
export const findOwnRules = (text: string): SavedRules => ({
  nat: ownLines('nat', section(text, 'nat')),
  filter: ownLines('filter', section(text, 'filter')),
  mangle: ownLines('mangle', section(text, 'mangle')),
})

/** Our chains, their rules, and the jumps to them, without counters. */
export function ownLines(table: RuleTableName, text: string): readonly string[] {
  const own = new Set(chains[table])
  const jump = new Set(jumpLines(table))
  return text
    .split('\n')
    .filter((line) => {
      const match = /^(?::|-A )(\S+)/.exec(line)
      return match !== null && (own.has(match[1] as string) || jump.has(line))
    })
    .map((line) => line.replace(/ \[\d+:\d+\]$/, ''))
}

export const jumpLines = (table: RuleTableName): readonly string[] =>
  jumps.filter((jump) => jump.table === table).map((jump) => printJump(jump))

export const hasAllJumps = (saved: SavedRules): boolean =>
  ruleTables.every((table) => jumpLines(table).every((line) => saved[table].includes(line)))

/** The number of rules in each of our chains, as text. `text` is the input of iptables-restore. */
export const countRulesInText = (text: string): string => countRulesInLines((table) => section(text, table).split('\n'))

export const countRulesInSaved = (saved: SavedRules): string => countRulesInLines((table) => saved[table])

const countRulesInLines = (linesOf: (table: RuleTableName) => readonly string[]): string =>
  ruleTables
    .flatMap((table) => {
      const lines = linesOf(table)
      return chains[table].map((chain) => lines.filter((line) => line.startsWith(`-A ${chain} `)).length)
    })
    .join(' ')

/** Adds the jumps that `saved` lacks, so that one restore writes everything. */
export function addMissingJumps(text: string, saved: SavedRules): string {
  return ruleTables.reduce((all, table) => {
    const missing = jumpLines(table).filter((line) => !saved[table].includes(line))
    const lines = missing.map((line) => `${line.replace(/^-A (\S+)/, '-I $1 1')}\n`).join('')
    const start = all.indexOf(`*${table}\n`)
    const commit = all.indexOf('COMMIT\n', start)
    return start < 0 ? all : all.slice(0, commit) + lines + all.slice(commit)
  }, text)
}

/** The lines from `*table` to its COMMIT. */
function section(text: string, table: RuleTableName): string {
  const start = text.indexOf(`*${table}\n`)
  return start < 0 ? '' : text.slice(start, text.indexOf('COMMIT\n', start))
}
