// Keeps the last records as lines of JSON, bounded in number and in bytes. A line is one flat string: thousands of records are cheap for the
// garbage collector, and the file on disk has the same lines. No I/O.

import type { HistoryRecord } from './history-record.ts'

export interface RingLimits {
  readonly maxRecords: number
  readonly maxBytes: number
}

/** Dropped lines at the front of the list after which the list is copied. */
const compactAfter = 1_024

export class HistoryRing {
  readonly #limits: RingLimits
  #lines: string[] = []
  /** Lines before this one are dropped. */
  #first = 0
  #bytes = 0

  constructor(limits: RingLimits) {
    this.#limits = limits
  }

  get size(): number {
    return this.#lines.length - this.#first
  }

  /** Characters of all lines: bytes, as far as they are ASCII. */
  get bytes(): number {
    return this.#bytes
  }

  /** Adds a line, and drops the oldest lines that have no room. A line that is too long for the ring alone is not kept. */
  push(line: string): void {
    const { maxRecords, maxBytes } = this.#limits
    this.#lines.push(line)
    this.#bytes += line.length
    while (this.size > 0 && (this.size > maxRecords || this.#bytes > maxBytes)) {
      this.#bytes -= (this.#lines[this.#first] as string).length
      // The list itself keeps what it has: shifting would move all lines.
      this.#lines[this.#first++] = ''
    }
    if (this.#first < compactAfter || this.#first * 2 < this.#lines.length) return
    this.#lines = this.#lines.slice(this.#first)
    this.#first = 0
  }

  /** The records, newest first, parsed while the caller iterates. */
  *newestFirst(): Iterable<HistoryRecord> {
    // A copy: lines may be added while the caller pauses.
    const lines = this.#lines.slice(this.#first)
    for (let i = lines.length - 1; i >= 0; i--) yield JSON.parse(lines[i] as string) as HistoryRecord
  }

  oldest(): HistoryRecord | undefined {
    const line = this.#lines[this.#first]
    return line === undefined ? undefined : (JSON.parse(line) as HistoryRecord)
  }
}
