// Input of iptables-restore on its way to the program, and how many rules and tables it is. Knows no rule. No I/O but by its sheet.
//
// Texts become bytes at once and leave for the sheet, always through the same memory: as one text, or as bytes of their own, many
// megabytes would be copied twice, leave every cache on the way, and make the collector run.

import type { IptablesTableName } from '../iptables/entries.ts'

const bufferBytes = 256 * 1024
/** Of a character. */
const mostBytes = 3

/** Nothing stays on it between two papers. */
const buffer = Buffer.allocUnsafeSlow(bufferBytes)

/** Where a text goes. */
export interface ByteSink {
  append(bytes: Uint8Array): void
  toString(): string
  close(): void
}

export class RestoreInput<S extends ByteSink = ByteSink> {
  readonly sheet: S
  /** Lines that are commands. */
  readonly rules: Record<IptablesTableName, number> = { filter: 0, nat: 0 }
  /** Tables. */
  commits = 0
  #table: IptablesTableName = 'filter'
  #used = 0

  constructor(sheet: S) {
    this.sheet = sheet
  }

  begin(table: IptablesTableName): void {
    this.#table = table
    this.add(`*${table}\n`)
  }

  /** Whole lines. */
  add(lines: string): void {
    this.addCounted(lines, countRules(lines))
  }

  /** Whole lines, of which so many are commands. */
  addCounted(lines: string, rules: number): void {
    const most = mostBytes * lines.length
    if (this.#used + most > bufferBytes) this.#flush()
    if (most > bufferBytes) this.sheet.append(Buffer.from(lines))
    else this.#used += buffer.write(lines, this.#used)
    this.rules[this.#table] += rules
  }

  commit(): void {
    this.add('COMMIT\n')
    this.#flush()
    this.commits++
  }

  toString(): string {
    return String(this.sheet)
  }

  #flush(): void {
    if (this.#used > 0) this.sheet.append(buffer.subarray(0, this.#used))
    this.#used = 0
  }
}

/** Lines that are commands. */
export function countRules(lines: string): number {
  let rules = lines.startsWith('-') ? 1 : 0
  for (let at = lines.indexOf('\n-'); at >= 0; at = lines.indexOf('\n-', at + 1)) rules++
  return rules
}
