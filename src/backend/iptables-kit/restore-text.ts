// The text format of iptables-save and iptables-restore: lines, rules, declarations, and the lines that an error message names. Pure.

const declarationEnd = ' - [0:0]\n'

/** Line that makes a chain, or empties it if it exists. */
export const formatDeclaration = (chain: string): string => `:${chain}${declarationEnd}`

/** Length of a declaration between the chain's name and the newline. */
export const declarationTail = declarationEnd.length - 1

export const formatDeclarations = (chains: readonly string[]): string => chains.map(formatDeclaration).join('')

/** Line that deletes a chain, which must be empty and must not be jumped to. */
export const formatDeletion = (chain: string): string => `-X ${chain}\n`

/** The lines of a text, each with its newline. */
export function linesOf(text: string): readonly string[] {
  const lines: string[] = []
  for (let start = 0; start < text.length; ) {
    const end = text.indexOf('\n', start) + 1
    lines.push(text.slice(start, end))
    start = end
  }
  return lines
}

/** Number of lines that are commands, such as `-A` and `-X`. */
export function countRules(lines: string): number {
  let rules = lines.startsWith('-') ? 1 : 0
  for (let at = lines.indexOf('\n-'); at >= 0; at = lines.indexOf('\n-', at + 1)) rules++
  return rules
}

/** Number of tables that a text changes. */
export const countCommits = (text: string): number => text.split('\nCOMMIT').length - 1

/** The chain that the rule `-A CHAIN …` is in. */
export const chainOfRule = (line: string): string => line.slice(3, line.indexOf(' ', 3))

export interface ParsedRule {
  readonly chain: string
  /** '' for a rule without a target. */
  readonly target: string
}

/** Parses the line `-A CHAIN … -j TARGET …` between `start` and `end`. */
export function parseRule(text: string, start: number, end: number): ParsedRule {
  const chain = text.slice(start + 3, text.indexOf(' ', start + 3))
  const targetStart = findTarget(text, start, end)
  return { chain, target: text.slice(targetStart, findWordEnd(text, targetStart, end)) }
}

/** Where the target of the rule between `start` and `end` begins; `end` if the rule has none. */
export function findTarget(text: string, start: number, end: number): number {
  const at = text.lastIndexOf(' -j ', end)
  return at <= start ? end : at + ' -j '.length
}

/** Where the word that begins at `start` ends; at most `end`. */
export function findWordEnd(text: string, start: number, end: number): number {
  const space = text.indexOf(' ', start)
  return space < 0 || space > end ? end : space
}

/**
 * The lines of `text` that a failed restore may complain about. Empty if its error message names no line, or names COMMIT. The nft
 * flavour reports a missing chain one line late (iptables 1.8.9), so the line before is suspect, too.
 */
export function suspectLines(stderr: string, text: string): readonly string[] {
  const match = /line:? (\d+)/.exec(stderr)
  if (match === null) return []
  const number = Number(match[1])
  const lines = text.split('\n', number)
  const suspects = [lines[number - 1] ?? '', lines[number - 2] ?? ''].map((line) => line.replace(/^\[\d+:\d+\] /, ''))
  return suspects.filter((line) => /^(?:-A|-X|:)/.test(line))
}
