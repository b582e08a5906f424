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
// 5. Of a service port that changed, only the chains that differ from those in the book are written, and those it has no longer are deleted.

import { ProxyError } from '../../lib/errors.ts'
import { ExecError } from '../../sys/process/exec.ts'
import type { Held, RefusedEntry } from '../backend.ts'
import { isEndpointChain } from '../iptables-kit/chains.ts'
import { type ByteSink, createRestoreBuffer, RestoreInput } from '../iptables-kit/restore-input.ts'
import { suspectLines } from '../iptables-kit/restore-text.ts'
import { chainOf, chainsOf, declares, type IptEntry, ownOf, rulesByChain, strayChain } from './entries.ts'
import { compose, composeChains, composeDeletions, largeEndpoints, type OwnChains } from './restore.ts'
import type { WrittenRules } from './written.ts'

/** The changes of the base, of one service, what nobody known has left, or what is in the book and nobody wants. */
export interface Unit {
  readonly kind: 'base' | 'service' | 'leftovers' | 'forgotten'
  /** '' unless a service's. */
  readonly service: string
  readonly put: readonly IptEntry[]
  /** Entries; chains that were found, of leftovers. */
  readonly drop: readonly Held[]
  /** What it has no longer is left there: it cannot be deleted. */
  readonly keep?: boolean
}

export interface RestoreWriterOptions<S extends ByteSink> {
  readonly book: WrittenRules
  /** For one text. */
  readonly sheet: () => S
  /** More chains than these are written in several restores. */
  readonly chainsPerRestore: number
  readonly restore: (paper: RestoreInput<S>, signal: AbortSignal) => Promise<void>
}

export interface WriteResult {
  readonly refused: readonly RefusedEntry[]
  /** Restores that failed. */
  readonly failures: number
  /** Lines in the last restore, by table. */
  readonly lines: { readonly filter: number; readonly nat: number }
  /** Why chains that are no entry, but were an entry's, are still there; undefined if none is. */
  readonly left: ProxyError | undefined
}

/** A restore that the programs or the kernel refused. */
class Refused extends Error {
  readonly suspects: readonly string[]
  constructor(cause: ProxyError, suspects: readonly string[]) {
    super(cause.message, { cause })
    this.suspects = suspects
  }
}

export class RestoreWriter<S extends ByteSink> {
  readonly #options: RestoreWriterOptions<S>
  readonly #buffer = createRestoreBuffer()
  #refused: RefusedEntry[] = []
  #failures = 0
  /** The last restore failed. */
  #half = false
  /** Everything is written: what is not among it is forgotten, and no chain is taken to be as it was. */
  #anew = false
  #lines = { filter: 0, nat: 0 }
  #left: ProxyError | undefined

  constructor(options: RestoreWriterOptions<S>) {
    this.#options = options
  }

  /** The next write is of everything. */
  startAnew(): void {
    this.#anew = true
  }

  /** Throws with code `iptables-restore` if what is refused is not in these units. */
  async write(units: readonly Unit[], signal: AbortSignal): Promise<WriteResult> {
    this.#refused = []
    this.#failures = 0
    this.#left = undefined
    await this.#writeAll(this.#anew ? [...units, ...this.#forgetOthers(units)] : units, signal)
    // Each table changes by itself: filter may have taken what nat refused.
    const half = this.#half ? await this.#try([], signal) : undefined
    if (half !== undefined) throw failed(half)
    this.#anew = false
    return { refused: this.#refused, failures: this.#failures, lines: this.#lines, left: this.#left }
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
    return units.filter((unit) => failure.suspects.some((line) => this.#mentions(unit, line)))
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
    const { book } = this.#options
    const isLeft = unit.kind === 'forgotten' || unit.put.some((one) => lostChains(book.entry(one.id), one).length > 0)
    if ((isLeft || unit.drop.length > 0) && (await this.#try([{ ...unit, keep: true }], signal)) === undefined) {
      const error = refusal(`chains of ${unit.service || 'no service'} cannot be deleted`, failure)
      for (const { id } of unit.drop) this.#refused.push({ id, error })
      // Chains of ports that stay have no id that anybody knows.
      if (isLeft) this.#left = error
      return
    }
    const error = refusal(`the rules of ${unit.service || 'a leftover'} are refused`, failure)
    for (const { id } of [...unit.put, ...unit.drop]) this.#refused.push({ id, error })
  }

  /** One restore, or several for very many chains. Undefined if all worked; then the book says so. */
  async #try(units: readonly Unit[], signal: AbortSignal): Promise<Refused | undefined> {
    const staged = this.#stage(units)
    const lines = { filter: 0, nat: 0 }
    for (const write of this.#papers(staged)) {
      const paper = new RestoreInput(this.#options.sheet(), this.#buffer)
      try {
        signal.throwIfAborted()
        write(paper)
        await this.#options.restore(paper, signal)
      } catch (error) {
        staged.undo()
        if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
        this.#failures++
        this.#half = true
        return new Refused(error, suspectLines(error.stderr, String(paper)))
      } finally {
        paper.sink.close()
      }
      lines.filter += paper.rules.filter
      lines.nat += paper.rules.nat
    }
    this.#lines = lines
    this.#half = false
    return undefined
  }

  /** Enters the units in the book, and says what that changes. */
  #stage(units: readonly Unit[]): Staged {
    const { book } = this.#options
    const before: (readonly [string, IptEntry | undefined])[] = []
    const some = this.#anew ? undefined : new Map<string, ReadonlySet<string>>()
    const stale = new Set<string>()
    let strays = false
    let count = 0
    for (const { put, drop, keep } of units) {
      for (const held of drop) {
        const old = book.drop(held.id)
        before.push([held.id, old])
        strays ||= !isEntry(held)
        if (keep !== true) for (const chain of chainsBehind(held, old)) stale.add(chain)
      }
      for (const entry of put) {
        count++
        const old = book.put(entry)
        if (some !== undefined && entry.chains > 0) {
          const changed = changedChains(old, entry)
          if (changed.size > 0) some.set(entry.id, changed)
        }
        // Most of a full write is what was there before.
        if (old?.digest === entry.digest) continue
        before.push([entry.id, old])
        if (keep !== true) for (const chain of lostChains(old, entry)) stale.add(chain)
      }
    }
    const undo = () => {
      for (const [id, entry] of before.reverse()) {
        if (entry === undefined) book.drop(id)
        else book.put(entry)
      }
    }
    const ids =
      some !== undefined || count === book.size ? some : new Set(units.flatMap(({ put }) => put.map(({ id }) => id)))
    return { undo, some, stale, strays, written: ids === undefined ? book.ports() : this.#portsIn(ids) }
  }

  /** In order, as they are in the book. */
  #portsIn(ids: { has(id: string): boolean; keys(): Iterable<string>; readonly size: number }): readonly IptEntry[] {
    const { book } = this.#options
    if (16 * ids.size > book.size) return book.ports().filter(({ id }) => ids.has(id))
    const entries = [...ids.keys()].sort().map((id) => book.entry(id) as IptEntry)
    return entries.filter(({ kind }) => kind === 'port')
  }

  /** Takes out of the book what nobody wants any more; its chains are to be deleted. */
  #forgetOthers(units: readonly Unit[]): readonly Unit[] {
    const { book } = this.#options
    let known = 0
    for (const { put } of units) for (const { id } of put) if (book.entry(id) !== undefined) known++
    // Mostly there are none.
    if (known === book.size) return []
    const ids = new Set(units.flatMap(({ put }) => put.map(({ id }) => id)))
    const gone = [...book.entries()].filter(({ id }) => !ids.has(id))
    for (const { id } of gone) book.drop(id)
    const drop = gone.flatMap((entry) => chainsOf(entry).map(strayChain))
    return drop.length === 0 ? [] : [{ kind: 'forgotten', service: '', put: [], drop }]
  }

  /**
   * Where there are too many chains for one restore, they are written before anything jumps to them, all of a service port at
   * once; and deleted after nothing does any more, those that jump before those they jump to.
   */
  *#papers({ written, some, stale, strays }: Staged): Iterable<(paper: RestoreInput) => void> {
    const { book, chainsPerRestore } = this.#options
    const large = book.endpoints > largeEndpoints
    const weight = (entry: IptEntry) => some?.get(entry.id)?.size ?? entry.chains
    const many = chunks(written, weight, chainsPerRestore)
    if (many.length > 1) {
      for (const entries of many) yield (paper) => composeChains(paper, book, { entries, some, large })
    }
    const own: OwnChains = { entries: many.length > 1 ? [] : written, some, large }
    const live = strays ? book.chains() : undefined
    const old = chunks(
      [...stale].filter((chain) => live?.has(chain) !== true).sort(jumpingFirst),
      () => 1,
      chainsPerRestore,
    )
    yield (paper) => compose(paper, { book, own, stale: old.length > 1 ? [] : (old[0] ?? []) })
    if (old.length > 1) for (const chains of old) yield (paper) => composeDeletions(paper, chains)
  }

  #mentions({ put, drop }: Unit, line: string): boolean {
    const { book } = this.#options
    const chain = /^(?:-X |-A |:)(\S+)/.exec(line)?.[1] as string
    const has = (held: Held) => (isEntry(held) ? declares(held, chain) : chainOf(held.id) === chain)
    const had = ({ id }: Held) => {
      const old = book.entry(id)
      return old !== undefined && declares(old, chain)
    }
    return [...put, ...drop].some((one) => has(one) || had(one)) || put.some(({ digest }) => digest.includes(line))
  }
}

/** Units that are in the book, but not in the kernel yet. */
interface Staged {
  /** Takes them out of the book again. */
  readonly undo: () => void
  /** Ports with chains to write, in order. */
  readonly written: readonly IptEntry[]
  /** The chains to write, by id of their port; undefined: all of them. */
  readonly some: ReadonlyMap<string, ReadonlySet<string>> | undefined
  readonly stale: ReadonlySet<string>
  /** Among the stale ones may be some that a port has. */
  readonly strays: boolean
}

/** Chains of a port that are not as they were. */
function changedChains(old: IptEntry | undefined, entry: IptEntry): ReadonlySet<string> {
  if (old === undefined) return new Set(chainsOf(entry))
  const [before, after] = [rulesByChain(ownOf(old, false)), rulesByChain(ownOf(entry, false))]
  return new Set(chainsOf(entry).filter((chain) => !declares(old, chain) || before.get(chain) !== after.get(chain)))
}

/** Chains that a port had and has no longer. */
const lostChains = (old: IptEntry | undefined, entry: IptEntry): readonly string[] =>
  old === undefined ? [] : chainsOf(old).filter((chain) => !declares(entry, chain))

/** Chains to delete for what is dropped; `old` is what the book says of it. */
function chainsBehind(held: Held, old: IptEntry | undefined): readonly string[] {
  if (!isEntry(held)) return [chainOf(held.id)]
  return old === undefined ? chainsOf(held) : [...chainsOf(held), ...chainsOf(old)]
}

const jumpingFirst = (a: string, b: string): number => Number(isEndpointChain(a)) - Number(isEndpointChain(b))

/** As few runs of neighbours as go, each of at most `limit` in weight or of a single one. */
function chunks<T>(all: readonly T[], weight: (one: T) => number, limit: number): readonly (readonly T[])[] {
  if (limit === Number.POSITIVE_INFINITY) return [all]
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

/** What the ledger has settled is our own entry; what was only observed is not. */
export const isEntry = (held: Held): held is IptEntry => 'service' in held

const failed = ({ message, cause }: Refused): ProxyError =>
  new ProxyError('iptables-restore', message, { cause, fields: cause instanceof ProxyError ? cause.fields : {} })

const refusal = (what: string, { message, cause }: Refused): ProxyError =>
  new ProxyError('iptables-refused', `${what}: ${message}`, { cause })
