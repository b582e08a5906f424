// Input of iptables-restore on its way: bytes in pieces, and how many rules and tables they are. Knows no rule. No I/O.
//
// Each part becomes bytes at once: as one text of many megabytes they would be copied twice, and leave every cache on the way.

import type { Table } from './entries.ts'

const pieceBytes = 64 * 1024
/** Of a character. */
const mostBytes = 3

export class Paper {
  readonly pieces: Uint8Array[] = []
  /** Lines that are commands. */
  readonly rules: Record<Table, number> = { filter: 0, nat: 0 }
  /** Tables. */
  commits = 0
  #table: Table = 'filter'
  #piece = Buffer.alloc(0)
  #used = 0

  begin(table: Table): void {
    this.#flush()
    this.#table = table
    this.add(`*${table}\n`)
  }

  /** Whole lines. */
  add(lines: string): void {
    const most = mostBytes * lines.length
    if (this.#used + most > this.#piece.length) {
      this.#flush()
      this.#piece = Buffer.allocUnsafeSlow(Math.max(pieceBytes, most))
    }
    this.#used += this.#piece.write(lines, this.#used)
    if (lines.startsWith('-')) this.rules[this.#table]++
    for (let at = lines.indexOf('\n-'); at >= 0; at = lines.indexOf('\n-', at + 1)) this.rules[this.#table]++
  }

  commit(): void {
    this.add('COMMIT\n')
    this.#flush()
    this.commits++
  }

  toString(): string {
    return Buffer.concat([...this.pieces, this.#piece.subarray(0, this.#used)]).toString()
  }

  #flush(): void {
    if (this.#used === 0) return
    this.pieces.push(this.#piece.subarray(0, this.#used))
    this.#piece = this.#piece.subarray(this.#used)
    this.#used = 0
  }
}
