// The iptables rules: written whole in one restore, looked after by comparing what iptables-save says with what it said after that.

import { createHash } from 'node:crypto'
import type { Family } from '../../lib/ip.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { Held } from '../backend.ts'
import { atLeast, type IptablesPrograms, programName } from '../iptables-kit/programs.ts'
import { openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import type { IpvsRulesEntry } from './entries.ts'
import { chains, jumps, type RuleTableName, savedJump } from './rule-text.ts'

const doubtsAllowed = 5
const tableNames = ['nat', 'filter', 'mangle'] as const

/** What is ours in the tables, line by line. */
type Saved = Readonly<Record<RuleTableName, readonly string[]>>

interface Written {
  /** Of the entry. */
  readonly digest: string
  /** How many rules each chain has. */
  readonly shape: string
  /** What the tables then looked like; read at the next look, so that nobody has to wait for one more program. */
  looks: string | undefined
}

export class RuleTables {
  readonly #tools: IptablesPrograms
  readonly #sight: TableReader
  readonly #family: Family
  #written: Written | undefined
  /** How often in a row what was written had another shape than expected. */
  #doubts = 0
  /** Nobody changed any rule since this mark was taken. */
  #mark: string | undefined
  /** What was read last, and the mark of that moment. */
  #last: { readonly mark: string; readonly saved: Saved } | undefined

  constructor(tools: IptablesPrograms, family: Family) {
    this.#tools = tools
    this.#family = family
    this.#sight = openTableReader(tools, family)
  }

  async read(signal: AbortSignal): Promise<readonly Held[]> {
    const mark = await this.#sight.version()
    // To start a program costs more than all the rest of a look. The mark of the legacy flavour can miss a change.
    const exact = this.#tools.programs.flavour === 'nft'
    if (exact && this.#written !== undefined && mark === this.#mark) {
      this.#last = undefined
      return [{ id: 'rules', kind: 'rules', digest: this.#written.digest }]
    }
    // Mostly we are here because the check has just read them.
    const saved = exact && this.#last?.mark === mark ? this.#last.saved : await this.#save(signal)
    this.#last = undefined
    this.#mark = mark
    if (this.#asWritten(saved)) return [{ id: 'rules', kind: 'rules', digest: this.#written?.digest as string }]
    this.#last = { mark, saved }
    const some = tableNames.some((table) => saved[table].length > 0)
    return some ? [{ id: 'rules', kind: 'rules', digest: 'unknown' }] : []
  }

  async write(entry: IpvsRulesEntry, signal: AbortSignal): Promise<void> {
    const saved = this.#last?.saved ?? (await this.#save(signal))
    this.#last = undefined
    this.#written = undefined
    const randomFully = atLeast(this.#tools.programs.version, [1, 6, 2])
    const text = randomFully ? entry.text : entry.text.replaceAll(' --random-fully', '')
    await this.#tools.restore(withJumps(text, saved), signal)
    this.#mark = await this.#sight.version()
    this.#written = { digest: entry.digest, shape: shapeOf(text), looks: undefined }
  }

  /** What is not as it was left, in words; '' if all is. Reads the tables only if somebody changed any rule. */
  async check(signal: AbortSignal): Promise<string> {
    if (this.#written === undefined) return ''
    const mark = await this.#sight.version()
    if (mark === this.#mark && this.#written.looks !== undefined) return ''
    const saved = await this.#save(signal)
    if (this.#asWritten(saved)) {
      this.#mark = mark
      return ''
    }
    this.#mark = undefined
    this.#last = { mark, saved }
    return 'iptables rules of ours were changed'
  }

  close(): void {
    this.#sight.close()
  }

  #asWritten(saved: Saved): boolean {
    const written = this.#written
    if (written === undefined) return false
    const looks = looksOf(saved)
    if (written.looks !== undefined) return written.looks === looks
    // Programs print rules in their own words, so at first sight only the number of rules and the jumps tell.
    const linked = tableNames.every((table) => jumpLines(table).every((line) => saved[table].includes(line)))
    const expected = linked && shapeOf(textOf(saved)) === written.shape
    this.#doubts = expected ? 0 : this.#doubts + 1
    // A program that never prints as many rules as it was given must not make us write for ever.
    const accepted = expected || this.#doubts > doubtsAllowed
    written.looks = accepted ? looks : 'unexpected'
    return accepted
  }

  async #save(signal: AbortSignal): Promise<Saved> {
    // All tables at once: starting a program is most of the cost.
    const program = `${programName(this.#family)}${this.#tools.programs.suffix}-save`
    const { stdout } = await runProgram(program, [], { signal })
    return {
      nat: ownLines('nat', section(stdout, 'nat')),
      filter: ownLines('filter', section(stdout, 'filter')),
      mangle: ownLines('mangle', section(stdout, 'mangle')),
    }
  }
}

/** Our chains, their rules, and the jumps to them; counters left out. */
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
  jumps.filter((jump) => jump.table === table).map((jump) => savedJump(jump))

/** From `*table` to its COMMIT. */
function section(saved: string, table: RuleTableName): string {
  const start = saved.indexOf(`*${table}\n`)
  return start < 0 ? '' : saved.slice(start, saved.indexOf('COMMIT\n', start))
}

const textOf = (saved: Saved): string =>
  tableNames.map((table) => `*${table}\n${saved[table].join('\n')}\nCOMMIT\n`).join('')

/** How many rules each of our chains has. */
export const shapeOf = (text: string): string =>
  tableNames
    .flatMap((table) => {
      const lines = section(text, table).split('\n')
      return chains[table].map((chain) => lines.filter((line) => line.startsWith(`-A ${chain} `)).length)
    })
    .join(' ')

const looksOf = (saved: Saved): string => createHash('sha256').update(JSON.stringify(saved)).digest('base64url')

/** Adds what leads into our chains where it is missing, in the same restore. */
function withJumps(text: string, saved: Saved): string {
  return tableNames.reduce((all, table) => {
    const missing = jumpLines(table).filter((line) => !saved[table].includes(line))
    const lines = missing.map((line) => `${line.replace(/^-A (\S+)/, '-I $1 1')}\n`).join('')
    const [head, rest] = [all.indexOf(`*${table}\n`), all.indexOf('COMMIT\n', all.indexOf(`*${table}\n`))]
    return head < 0 ? all : all.slice(0, rest) + lines + all.slice(rest)
  }, text)
}
