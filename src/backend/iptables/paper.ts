// Input of iptables-restore on its way: bytes in pieces, and how many rules and tables they are. Knows no rule. No I/O.
//
// One text of many megabytes, made of hundreds of thousands of parts, costs twice as much as small ones: it leaves every cache on
// its way from parts to text and from text to bytes.

import type { Table } from './entries.ts'

const pieceChars = 64 * 1024

export class Paper {
  readonly pieces: Uint8Array[] = []
  /** Lines that are commands. */
  readonly rules: Record<Table, number> = { filter: 0, nat: 0 }
  /** Tables. */
  commits = 0
  #table: Table = 'filter'
  #piece = ''

  begin(table: Table): void {
    this.#flush()
    this.#table = table
    this.add(`*${table}\n`)
  }

  /** Whole lines. */
  add(lines: string): void {
    this.#piece += lines
    if (this.#piece.length > pieceChars) this.#flush()
  }

  commit(): void {
    this.add('COMMIT\n')
    this.#flush()
    this.commits++
  }

  toString(): string {
    return Buffer.concat(this.pieces).toString() + this.#piece
  }

  #flush(): void {
    const piece = this.#piece
    if (piece === '') return
    this.#piece = ''
    this.pieces.push(Buffer.from(piece))
    if (piece.startsWith('-')) this.rules[this.#table]++
    for (let at = piece.indexOf('\n-'); at >= 0; at = piece.indexOf('\n-', at + 1)) this.rules[this.#table]++
  }
}
