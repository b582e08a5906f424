// Writes changes in one restore; if the kernel refuses, finds out whose rules it does not want, and gets all others in.
//
// 1. All changes go in one restore (in several where a program cannot cope with that). Only when that fails, services are
//    looked at one by one.
// 2. If the programs name a line, all but the services it may be of go in at once, and those services one by one.
//    Else it must be sure first that it is a change that is refused: the base and what was there before must go in without them.
//    If they do not, somebody broke what was there, and only writing everything anew helps: that is the caller's.
// 3. A line number makes a suspect, not a culprit: it is sentenced only if it fails alone. Where no line is told (the legacy
//    flavour fails at COMMIT), halves are tried. Every success is written for good, so this ends.
// 4. A refused service keeps what it had, its old rules, its old chains, and the chains those jump to, until everything is
//    written anew.

import { ProxyError } from '../../lib/errors.ts'
import type { Held, Refusal } from '../backend.ts'
import type { Book } from './book.ts'
import { chainOf, type IptEntry, isEndpoint } from './entries.ts'
import type { Paper } from './paper.ts'
import {
  adapt,
  compose,
  composeChains,
  composeDeletions,
  type Features,
  largeEndpoints,
  suspectLines,
} from './restore.ts'

/** The changes of the base, of one service, or what nobody known has left. */
export interface Unit {
  readonly kind: 'base' | 'service' | 'leftovers'
  /** '' unless a service's. */
  readonly service: string
  readonly put: readonly IptEntry[]
  readonly drop: readonly Held[]
}

export interface WriterOptions {
  readonly book: Book
  /** More chains than these are written in several restores. */
  readonly chainsPerRestore: number
  readonly restore: (paper: Paper, signal: AbortSignal) => Promise<void>
}

export interface Written {
  readonly refused: readonly Refusal[]
  /** Restores that failed. */
  readonly failures: number
  /** Lines in the last restore, by table. */
  readonly lines: { readonly filter: number; readonly nat: number }
}

/** A restore that the programs or the kernel refused. */
class Refused extends Error {
  readonly suspects: readonly string[]
  constructor(cause: ProxyError, suspects: readonly string[]) {
    super(cause.message, { cause })
    this.suspects = suspects
  }
}

export class Writer {
  features: Features = { randomFully: false, liberal: false, counters: new Set() }
  readonly #options: WriterOptions
  /** Chains that nobody wants any more, but that could not be deleted; by the service that still uses them. */
  readonly #lingering = new Map<string, string>()
  #refused: Refusal[] = []
  #failures = 0
  /** The last restore failed. */
  #half = false
  #anew = false
  #lines = { filter: 0, nat: 0 }

  constructor(options: WriterOptions) {
    this.#options = options
  }

  /** The next write is of everything: what is not among it is forgotten. */
  startAnew(): void {
    this.#lingering.clear()
    this.#anew = true
  }

  /** Throws with code `iptables-restore` if what is refused is not in these units. */
  async write(units: readonly Unit[], signal: AbortSignal): Promise<Written> {
    this.#refused = []
    this.#failures = 0
    await this.#writeAll(units, signal)
    // Each table changes by itself: filter may have taken what nat refused.
    const half = this.#half ? await this.#try([], signal) : undefined
    if (half !== undefined) throw failed(half)
    return { refused: this.#refused, failures: this.#failures, lines: this.#lines }
  }

  async #writeAll(all: readonly Unit[], signal: AbortSignal): Promise<void> {
    const failure = await this.#try(all, signal)
    if (failure === undefined) return
    const base = all.filter(({ kind }) => kind === 'base')
    const rest = all.filter(({ kind }) => kind !== 'base')
    if (await this.#setApart(all, this.#suspects(rest, failure), signal)) return
    const unrelated = await this.#try(base, signal)
    if (unrelated !== undefined) throw failed(unrelated)
    await this.#isolate(rest, failure, signal)
  }

  /** All others go in at once: of these nobody notices anything. False if that does not help. */
  async #setApart(all: readonly Unit[], suspects: readonly Unit[], signal: AbortSignal): Promise<boolean> {
    if (suspects.length === 0) return false
    const others = all.filter((unit) => !suspects.includes(unit))
    if ((await this.#try(others, signal)) !== undefined) return false
    for (const suspect of suspects) await this.#judge(suspect, signal)
    return true
  }

  #suspects(units: readonly Unit[], failure: Refused): readonly Unit[] {
    return units.filter((unit) => failure.suspects.some((line) => mentions(unit, line, this.#lingering)))
  }

  async #isolate(all: readonly Unit[], first: Refused, signal: AbortSignal): Promise<void> {
    let rest = all
    for (let failure: Refused | undefined = first; failure !== undefined; ) {
      const suspects = this.#suspects(rest, failure)
      if (suspects.length === 0) return this.#halve(rest, signal)
      for (const suspect of suspects) await this.#judge(suspect, signal)
      rest = rest.filter((unit) => !suspects.includes(unit))
      failure = rest.length === 0 ? undefined : await this.#try(rest, signal)
    }
  }

  async #halve(units: readonly Unit[], signal: AbortSignal): Promise<void> {
    if (units.length <= 1) {
      for (const unit of units) await this.#judge(unit, signal)
      return
    }
    const middle = units.length >> 1
    for (const half of [units.slice(0, middle), units.slice(middle)]) {
      const again = await this.#try(half, signal)
      if (again !== undefined) await this.#isolate(half, again, signal)
    }
  }

  /** Alone, then without deleting anything; if that fails, too, the service is refused. */
  async #judge(unit: Unit, signal: AbortSignal): Promise<void> {
    const failure = await this.#try([unit], signal)
    if (failure === undefined) return
    const stale = unit.drop.filter(isChain)
    if (stale.length > 0) {
      const kept = { ...unit, drop: unit.drop.filter((held) => !isChain(held)) }
      if ((await this.#try([kept], signal)) === undefined) {
        const error = refusal(`chains of ${unit.service || 'no service'} cannot be deleted`, failure)
        for (const { id } of stale) this.#refused.push({ id, error })
        return
      }
    }
    const error = refusal(`the rules of ${unit.service || 'a leftover'} are refused`, failure)
    for (const { id } of unit.put) this.#refused.push({ id, error })
    for (const { id } of stale) this.#lingering.set(chainOf(id), unit.service)
  }

  /** One restore, or several for very many chains. Undefined if all worked; then the book says so. */
  async #try(units: readonly Unit[], signal: AbortSignal): Promise<Refused | undefined> {
    const undo = this.#stage(units)
    const lines = { filter: 0, nat: 0 }
    for (const paper of this.#papers(units)) {
      try {
        signal.throwIfAborted()
        await this.#options.restore(paper, signal)
      } catch (error) {
        undo()
        if (!(error instanceof ProxyError) || error.code !== 'exec' || error.fields.exitCode === undefined) throw error
        this.#failures++
        this.#half = true
        return new Refused(error, suspectLines(String(error.fields.stderr), String(paper)))
      }
      lines.filter += paper.rules.filter
      lines.nat += paper.rules.nat
    }
    for (const { service } of units) {
      for (const [chain, user] of this.#lingering) if (user === service) this.#lingering.delete(chain)
    }
    this.#lines = lines
    this.#half = false
    return undefined
  }

  /** Enters the units in the book; the returned function takes them out again. */
  #stage(units: readonly Unit[]): () => void {
    const { book } = this.#options
    const before: (readonly [string, IptEntry | undefined])[] = []
    for (const unit of units) {
      for (const { id } of unit.drop) before.push([id, book.drop(id)])
      for (const entry of unit.put) {
        const adapted = this.#adapted(entry)
        const old = book.put(adapted)
        // Most of a full write is what was there before.
        if (old?.digest !== adapted.digest) before.push([entry.id, old])
      }
    }
    if (this.#anew) this.#forgetOthers(units)
    return () => {
      for (const [id, entry] of before.reverse()) {
        if (entry === undefined) book.drop(id)
        else book.put(entry)
      }
    }
  }

  #forgetOthers(units: readonly Unit[]): void {
    const { book } = this.#options
    this.#anew = false
    let count = 0
    for (const { put } of units) count += put.length
    // Mostly there are none.
    if (count === book.size) return
    const ids = new Set(units.flatMap(({ put }) => put.map(({ id }) => id)))
    for (const { id } of [...book.entries()]) if (!ids.has(id)) book.drop(id)
  }

  #adapted(entry: IptEntry): IptEntry {
    if (entry.kind === 'chain') return entry
    const digest = adapt(entry.digest, this.features)
    return digest === entry.digest ? entry : { ...entry, digest }
  }

  /**
   * Where there are too many chains for one restore, they are written before anything jumps to them, all of a service port at
   * once; and deleted after nothing does any more, those that jump before those they jump to.
   */
  *#papers(units: readonly Unit[]): Iterable<Paper> {
    const { book, chainsPerRestore } = this.#options
    const { chains, stale } = this.#chainsOf(units)
    const large = book.endpoints > largeEndpoints
    const many = chunks(chains, ([, entries]) => entries.length, chainsPerRestore)
    const head = book.base('nat head')
    if (many.length > 1) for (const some of many) yield composeChains({ head, chains: new Map(some), large })
    const old = chunks(stale, () => 1, chainsPerRestore)
    yield compose({
      base: {
        filter: { head: book.base('filter head'), tail: book.base('filter tail') },
        nat: { head, tail: book.base('nat tail') },
      },
      shared: book.shared,
      chains: new Map(many.length > 1 ? [] : chains),
      stale: old.length > 1 ? [] : stale,
      large,
    })
    if (old.length > 1) for (const some of old) yield composeDeletions(some)
  }

  #chainsOf(units: readonly Unit[]) {
    const chains = new Map<string, IptEntry[]>()
    const stale = new Set<string>()
    for (const { put, drop, service } of units) {
      // Those of a port follow each other.
      for (let start = 0, end = 0; start < put.length; start = Math.max(end, start + 1)) {
        const { kind, port } = put[start] as IptEntry
        if (kind !== 'chain') continue
        for (end = start + 1; put[end]?.kind === 'chain' && put[end]?.port === port; ) end++
        const run = put.slice(start, end)
        chains.set(port, chains.get(port)?.concat(run) ?? run)
      }
      for (const held of drop) if (isChain(held)) stale.add(chainOf(held.id))
      for (const [chain, user] of this.#lingering) if (user === service) stale.add(chain)
    }
    const jumping = (chain: string) => (isEndpoint({ id: `nat ${chain}` }) ? 1 : 0)
    return {
      chains: [...chains.keys()].sort().map((port) => [port, sorted(chains.get(port) ?? [])] as const),
      stale: [...stale].sort((a, b) => jumping(a) - jumping(b)),
    }
  }
}

/** EXT, FW, SVC, SVL, SEP. They mostly are. */
function sorted(entries: readonly IptEntry[]): readonly IptEntry[] {
  let last = 0
  for (const entry of entries) {
    const rank = rankOf(entry)
    if (rank < last) return entries.toSorted((a, b) => rankOf(a) - rankOf(b))
    last = rank
  }
  return entries
}

/** By what follows `nat KUBE-`. */
function rankOf({ id }: IptEntry): number {
  const first = id.charCodeAt(9)
  if (first !== letters.S) return first === letters.E ? 0 : 1
  if (id.charCodeAt(10) === letters.E) return 4
  return id.charCodeAt(11) === letters.C ? 2 : 3
}

const letters = { C: 0x43, E: 0x45, S: 0x53 } as const

/** As few runs of neighbours as go, each of at most `limit` in weight or of a single one. */
function chunks<T>(all: readonly T[], weight: (one: T) => number, limit: number): readonly T[][] {
  const runs: T[][] = []
  let left = 0
  for (const one of all) {
    const own = weight(one)
    if (runs.length === 0 || own > left) {
      runs.push([])
      left = limit
    }
    runs.at(-1)?.push(one)
    left -= own
  }
  return runs
}

const isChain = ({ kind }: Held): boolean => kind === 'chain'

function mentions(unit: Unit, line: string, lingering: ReadonlyMap<string, string>): boolean {
  const chain = /^(?:-X |-A |:)(\S+)/.exec(line)?.[1] as string
  if (lingering.get(chain) === unit.service) return true
  if (unit.drop.some(({ id }) => chainOf(id) === chain)) return true
  return unit.put.some(({ id, digest }) => chainOf(id) === chain || digest.includes(line))
}

const failed = ({ message, cause }: Refused): ProxyError =>
  new ProxyError('iptables-restore', message, { cause, fields: cause instanceof ProxyError ? cause.fields : {} })

const refusal = (what: string, { message, cause }: Refused): ProxyError =>
  new ProxyError('iptables-refused', `${what}: ${message}`, { cause })
