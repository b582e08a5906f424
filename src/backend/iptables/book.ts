// What the kernel holds of ours, as far as we wrote it: texts of the shared chains in order, own chains, and counts. No I/O.
//
// For the watch it knows how much every chain is in use: a chain is used by each rule in it and by each rule that jumps to
// it, which is also how nf_tables counts. Every change can be taken back, since a text must be made before it is known to work.

import { jumps } from './chains.ts'
import { chainOf, type IptEntry, type Table } from './entries.ts'

export class Book {
  readonly shared: Readonly<Record<Table, OrderedTexts>> = { filter: new OrderedTexts(), nat: new OrderedTexts() }
  readonly #base = new Map<string, string>()
  /** Entries as written, by id. */
  readonly #entries = new Map<string, IptEntry>()
  readonly #uses = new Map<string, number>()
  readonly #lines: Record<Table, number> = { filter: 0, nat: 0 }
  #endpoints = 0

  constructor() {
    for (const { table, to } of jumps) this.#use(`${table} ${to}`, 1)
  }

  /** Chains of endpoints. */
  get endpoints(): number {
    return this.#endpoints
  }

  base(part: string): string {
    return this.#base.get(part) ?? ''
  }

  entry(id: string): IptEntry | undefined {
    return this.#entries.get(id)
  }

  entries(): Iterable<IptEntry> {
    return this.#entries.values()
  }

  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  uses(): ReadonlyMap<string, number> {
    return this.#uses
  }

  /** Rules that there are. */
  lines(table: Table): number {
    return this.#lines[table]
  }

  /** Returns what was there. */
  put(entry: IptEntry): IptEntry | undefined {
    const before = this.drop(entry.id)
    this.#entries.set(entry.id, entry)
    this.#count(entry, 1)
    if (entry.kind === 'base') this.#base.set(entry.id, entry.digest)
    else if (entry.kind === 'rules') this.shared[entry.table].put(entry.port, entry.digest)
    else if (isEndpoint(entry)) this.#endpoints++
    return before
  }

  drop(id: string): IptEntry | undefined {
    const entry = this.#entries.get(id)
    if (entry === undefined) return undefined
    this.#entries.delete(id)
    this.#count(entry, -1)
    if (entry.kind === 'base') this.#base.delete(id)
    else if (entry.kind === 'rules') this.shared[entry.table].drop(entry.port)
    else if (isEndpoint(entry)) this.#endpoints--
    return entry
  }

  #count({ table, digest }: IptEntry, sign: 1 | -1): void {
    for (const { chain, target } of parseRules(digest)) {
      this.#lines[table] += sign
      this.#use(`${table} ${chain}`, sign)
      if (target.startsWith('KUBE-')) this.#use(`${table} ${target}`, sign)
    }
  }

  #use(chain: string, by: number): void {
    const uses = (this.#uses.get(chain) ?? 0) + by
    if (uses === 0) this.#uses.delete(chain)
    else this.#uses.set(chain, uses)
  }
}

const isEndpoint = ({ id }: IptEntry): boolean => chainOf(id).startsWith('KUBE-SEP-')

/** Of lines `-A CHAIN … -j TARGET`; the target is '' if there is none. */
export function* parseRules(text: string): Iterable<{ readonly chain: string; readonly target: string }> {
  for (let start = 0; start < text.length; ) {
    const newline = text.indexOf('\n', start)
    const end = newline < 0 ? text.length : newline
    if (text.startsWith('-A ', start)) {
      const chain = text.slice(start + 3, text.indexOf(' ', start + 3))
      const at = text.lastIndexOf(' -j ', end)
      const targetEnd = text.indexOf(' ', at + 4)
      const target = at <= start ? '' : text.slice(at + 4, targetEnd < 0 || targetEnd > end ? end : targetEnd)
      yield { chain, target }
    }
    start = end + 1
  }
}

/** Texts by key, visited in the order of keys; the order is made anew only when keys came or went. */
export class OrderedTexts {
  readonly #texts = new Map<string, string>()
  #keys: readonly string[] | undefined

  put(key: string, text: string): void {
    if (!this.#texts.has(key)) this.#keys = undefined
    this.#texts.set(key, text)
  }

  drop(key: string): void {
    if (this.#texts.delete(key)) this.#keys = undefined
  }

  *[Symbol.iterator](): Iterator<readonly [string, string]> {
    this.#keys ??= [...this.#texts.keys()].sort()
    for (const key of this.#keys) yield [key, this.#texts.get(key) as string]
  }
}
