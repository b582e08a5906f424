// The input of one iptables-restore: encodes lines into a sink and counts rules and tables. It does not know what the rules mean.
//
// Text becomes bytes at once and leaves for the sink through one small buffer. As one long text, or as a buffer of its own for each
// piece, many megabytes would be copied twice, would not fit into any cache, and would make the garbage collector run.

import type { IptablesTableName } from './chains.ts'
import { countRules } from './restore-text.ts'

/** Receives the bytes of a text; a file in memory. */
export interface ByteSink {
  append(bytes: Uint8Array): void
  toString(): string
  close(): void
}

const bufferBytes = 256 * 1024
/** UTF-8 bytes per UTF-16 code unit, at most. */
const maxBytesPerUnit = 3

/** A buffer for inputs that are written one after the other. It is empty between two inputs. */
export const createRestoreBuffer = (): Buffer => Buffer.allocUnsafeSlow(bufferBytes)

export class RestoreInput<S extends ByteSink = ByteSink> {
  readonly sink: S
  /** Number of rules per table. */
  readonly rules: Record<IptablesTableName, number> = { filter: 0, nat: 0 }
  /** Number of tables. */
  commits = 0
  readonly #buffer: Buffer
  #used = 0
  #table: IptablesTableName = 'filter'

  /** No other input may use `buffer` until this one has been composed. */
  constructor(sink: S, buffer: Buffer) {
    this.sink = sink
    this.#buffer = buffer
  }

  begin(table: IptablesTableName): void {
    this.#table = table
    this.add(`*${table}\n`)
  }

  /** Adds whole lines. */
  add(lines: string): void {
    this.addCounted(lines, countRules(lines))
  }

  /** Adds whole lines, of which `rules` are rules. */
  addCounted(lines: string, rules: number): void {
    const maxBytes = maxBytesPerUnit * lines.length
    if (this.#used + maxBytes > this.#buffer.length) this.#flush()
    if (maxBytes > this.#buffer.length) this.sink.append(Buffer.from(lines))
    else this.#used += this.#buffer.write(lines, this.#used)
    this.rules[this.#table] += rules
  }

  /** Ends the table. The kernel changes it as a whole at this line. */
  commit(): void {
    this.add('COMMIT\n')
    this.#flush()
    this.commits++
  }

  toString(): string {
    return String(this.sink)
  }

  #flush(): void {
    if (this.#used > 0) this.sink.append(this.#buffer.subarray(0, this.#used))
    this.#used = 0
  }
}
