// The iptables rules: written whole in one restore, looked after by comparing what iptables-save says with what it said after that.

import { createHash } from 'node:crypto'
import type { Family } from '../../lib/ip.ts'
import { run } from '../../sys/exec.ts'
import type { Held } from '../backend.ts'
import { openSight, type Sight } from '../iptables/sight.ts'
import { atLeast, programName, type Tools } from '../iptables/tools.ts'
import type { RulesEntry } from './entries.ts'
import { chains, jumps, savedJump, type Table } from './rules.ts'

const tableNames = ['nat', 'filter', 'mangle'] as const

/** What is ours in the tables, line by line. */
type Saved = Readonly<Record<Table, readonly string[]>>

export class Tables {
  readonly #tools: Tools
  readonly #sight: Sight
  readonly #family: Family
  /** Digest of the rules that were written, and what the tables then looked like. */
  #written: { readonly digest: string; readonly looks: string } | undefined
  /** Nobody changed any rule since this mark was taken. */
  #mark: string | undefined
  #saved: Saved | undefined

  constructor(tools: Tools, family: Family) {
    this.#tools = tools
    this.#family = family
    this.#sight = openSight(tools, family)
  }

  async read(signal: AbortSignal): Promise<readonly Held[]> {
    const mark = await this.#sight.mark()
    // To start a program costs more than all the rest of a look. The mark of the legacy flavour can miss a change.
    if (this.#written !== undefined && mark === this.#mark && this.#tools.programs.flavour === 'nft') {
      this.#saved = undefined
      return [{ id: 'rules', kind: 'rules', digest: this.#written.digest }]
    }
    const saved = await this.#save(signal)
    this.#saved = saved
    this.#mark = mark
    const whole = this.#written !== undefined && this.#written.looks === looksOf(saved)
    if (whole) return [{ id: 'rules', kind: 'rules', digest: this.#written?.digest as string }]
    const some = tableNames.some((table) => saved[table].length > 0)
    return some ? [{ id: 'rules', kind: 'rules', digest: 'unknown' }] : []
  }

  async write(entry: RulesEntry, signal: AbortSignal): Promise<void> {
    const saved = this.#saved ?? (await this.#save(signal))
    this.#saved = undefined
    this.#written = undefined
    const randomFully = atLeast(this.#tools.programs.version, [1, 6, 2])
    const text = randomFully ? entry.text : entry.text.replaceAll(' --random-fully', '')
    await this.#tools.restore(withJumps(text, saved), signal)
    this.#mark = await this.#sight.mark()
    this.#written = { digest: entry.digest, looks: looksOf(await this.#save(signal)) }
  }

  /** What is not as it was left, in words; '' if all is. Reads the tables only if somebody changed any rule. */
  async check(signal: AbortSignal): Promise<string> {
    if (this.#written === undefined) return ''
    const mark = await this.#sight.mark()
    if (mark === this.#mark) return ''
    if (looksOf(await this.#save(signal)) !== this.#written.looks) return 'iptables rules of ours were changed'
    this.#mark = mark
    return ''
  }

  close(): void {
    this.#sight.close()
  }

  async #save(signal: AbortSignal): Promise<Saved> {
    // All tables at once: starting a program is most of the cost.
    const program = `${programName(this.#family)}${this.#tools.programs.suffix}-save`
    const { stdout } = await run(program, [], { signal })
    return {
      nat: ownLines('nat', section(stdout, 'nat')),
      filter: ownLines('filter', section(stdout, 'filter')),
      mangle: ownLines('mangle', section(stdout, 'mangle')),
    }
  }
}

/** Our chains, their rules, and the jumps to them; counters left out. */
export function ownLines(table: Table, text: string): readonly string[] {
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

export const jumpLines = (table: Table): readonly string[] =>
  jumps.filter((jump) => jump.table === table).map((jump) => savedJump(jump))

/** From `*table` to its COMMIT. */
function section(saved: string, table: Table): string {
  const start = saved.indexOf(`*${table}\n`)
  return start < 0 ? '' : saved.slice(start, saved.indexOf('COMMIT\n', start))
}

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
