// What the kernel holds of ours, as far as we wrote it: texts of the shared chains in order, own chains, and counts. No I/O.
//
// For the watch it knows how much every chain is in use: a chain is used by each rule in it and by each rule that jumps to
// it, which is also how nf_tables counts. Every change can be taken back, since a text must be made before it is known to work.

import { jumps } from './chains.ts'
import { type IptEntry, isEndpoint, type Table } from './entries.ts'

export class Book {
  readonly shared: Readonly<Record<Table, OrderedTexts>> = { filter: new OrderedTexts(), nat: new OrderedTexts() }
  readonly #base = new Map<string, string>()
  /** Entries as written, by id. */
  readonly #entries = new Map<string, IptEntry>()
  /** Counted when first asked for, and kept from then on: most of the time nobody asks. */
  #uses: Map<string, number> | undefined
  readonly #lines: Record<Table, number> = { filter: 0, nat: 0 }
  #chains = 0
  #endpoints = 0

  /** Of all service ports, reached from here or not. */
  get endpoints(): number {
    return this.#endpoints
  }

  base(part: string): string {
    return this.#base.get(part) ?? ''
  }

  get size(): number {
    return this.#entries.size
  }

  entries(): Iterable<IptEntry> {
    return this.#entries.values()
  }

  /** `nat KUBE-SERVICES` to how many rules are in it and jump to it. */
  uses(): ReadonlyMap<string, number> {
    if (this.#uses === undefined) {
      this.#uses = new Map()
      for (const { table, to } of jumps) use(this.#uses, `${table} ${to}`, 1)
      for (const entry of this.#entries.values()) countUses(this.#uses, entry, 1)
    }
    return this.#uses
  }

  /** Rules that there are. */
  lines(table: Table): number {
    return this.#lines[table]
  }

  /** What a legacy table holds of ours: one part for a rule, and two for a chain of a service, where it begins and where it ends. */
  parts(): Readonly<Record<Table, number>> {
    return { filter: this.#lines.filter, nat: this.#lines.nat + 2 * this.#chains }
  }

  /** Returns what was there. */
  put(entry: IptEntry): IptEntry | undefined {
    const before = this.#entries.get(entry.id)
    if (before?.digest === entry.digest) return before
    if (before !== undefined) this.drop(entry.id)
    this.#entries.set(entry.id, entry)
    this.#lines[entry.table] += countLines(entry)
    if (entry.kind === 'chain') this.#chains++
    if (this.#uses !== undefined) countUses(this.#uses, entry, 1)
    if (entry.kind === 'base') this.#base.set(entry.id, entry.digest)
    else if (entry.kind === 'count') this.#endpoints += Number(entry.digest)
    else if (entry.kind === 'rules') this.shared[entry.table].put(entry.port, entry.digest)
    else if (isEndpoint(entry)) this.#endpoints++
    return before
  }

  drop(id: string): IptEntry | undefined {
    const entry = this.#entries.get(id)
    if (entry === undefined) return undefined
    this.#entries.delete(id)
    this.#lines[entry.table] -= countLines(entry)
    if (entry.kind === 'chain') this.#chains--
    if (this.#uses !== undefined) countUses(this.#uses, entry, -1)
    if (entry.kind === 'base') this.#base.delete(id)
    else if (entry.kind === 'count') this.#endpoints -= Number(entry.digest)
    else if (entry.kind === 'rules') this.shared[entry.table].drop(entry.port)
    else if (isEndpoint(entry)) this.#endpoints--
    return entry
  }
}

function countLines(entry: IptEntry): number {
  if (isEndpoint(entry)) return 2
  const text = entry.digest
  let count = 0
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) count++
  return count
}

function countUses(uses: Map<string, number>, entry: IptEntry, sign: 1 | -1): void {
  const { table, digest, id } = entry
  if (entry.kind === 'count') return
  if (isEndpoint(entry)) {
    use(uses, id, 2 * sign)
    use(uses, 'nat KUBE-MARK-MASQ', sign)
    return
  }
  for (let start = 0; start < digest.length; ) {
    const end = digest.indexOf('\n', start)
    const { chain, target } = parseRule(digest, start, end)
    use(uses, `${table} ${chain}`, sign)
    if (target.startsWith('KUBE-')) use(uses, `${table} ${target}`, sign)
    start = end + 1
  }
}

function use(uses: Map<string, number>, chain: string, by: number): void {
  const count = (uses.get(chain) ?? 0) + by
  if (count === 0) uses.delete(chain)
  else uses.set(chain, count)
}

/** Of the line `-A CHAIN … -j TARGET` between `start` and `end`; the target is '' if there is none. */
export function parseRule(
  text: string,
  start: number,
  end: number,
): { readonly chain: string; readonly target: string } {
  const chain = text.slice(start + 3, text.indexOf(' ', start + 3))
  const at = text.lastIndexOf(' -j ', end)
  if (at <= start) return { chain, target: '' }
  const space = text.indexOf(' ', at + 4)
  return { chain, target: text.slice(at + 4, space < 0 || space > end ? end : space) }
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
