// Writes the rules that redirect traffic to our listeners, all chains in one iptables-restore, and finds the service whose rules are refused.

import { ProxyError } from '../../lib/errors.ts'
import { ExecError } from '../../sys/process/exec.ts'
import type { Held, OpenContext, RefusedEntry } from '../backend.ts'
import { type IsolationFailure, isolate } from '../iptables-kit/isolate.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { suspectLines } from '../iptables-kit/restore-text.ts'
import { type ChainUses, openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import { translateDirectly } from './direct-translation.ts'
import { findMissingHooks, PortalDrift } from './drift.ts'
import type { PortalRulesEntry } from './entries.ts'
import { chains, ownChains } from './portal-chains.ts'
import { compose, composeRefusal, type ListenerLayout, type MissingHooks } from './restore.ts'

export interface PortalRulesOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly lockTimeoutMs: number
}

export interface RuleChanges {
  readonly put: readonly PortalRulesEntry[]
  readonly drop: readonly Held[]
}

type RulesById = ReadonlyMap<string, PortalRulesEntry>

export class PortalRules {
  readonly #context: OpenContext
  readonly #programs: IptablesPrograms
  readonly #reader: TableReader
  readonly #drift: PortalDrift
  /** What `observe` read. If set, the next write writes everything and adds missing hooks. */
  #seen: ChainUses | undefined
  /** The hooks that the next restore adds; undefined: none. */
  #missing: MissingHooks | undefined
  /** The rules in the kernel. If the new rules of a service were refused, these are its old ones. */
  #rules: RulesById = new Map()
  /** The rules of a write whose end is not known yet, or never will be: it was cut off. */
  #unconfirmed: RulesById | undefined
  /** The text of all rules in the kernel; undefined: unknown. */
  #written: string | undefined
  /** Rules of a process that has ended lead to its listeners. */
  #isInherited = false
  /** This process has written rules. */
  #hasWritten = false

  constructor({ context, programs, lockTimeoutMs }: PortalRulesOptions) {
    const { family, log, clock } = context
    this.#context = context
    this.#programs = new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs })
    this.#reader = openTableReader(this.#programs, family)
    this.#drift = new PortalDrift(this.#reader, context)
  }

  get hasDrifted(): boolean {
    return this.#drift.watch.drifted
  }

  /** Everything must be written, because someone else may have changed the tables. */
  get isUnverified(): boolean {
    return this.#seen !== undefined
  }

  get isInherited(): boolean {
    return this.#isInherited
  }

  /** Reads the tables. Returns true if another process has left our chains there. */
  async observe(signal: AbortSignal): Promise<boolean> {
    const seen = await this.#reader.readUses(signal)
    this.#seen = seen
    const isLeftover = this.#written === undefined && ownChains.nat.some((chain) => seen.uses.has(`nat ${chain}`))
    this.#isInherited = isLeftover && !this.#hasWritten && !isTranslatedDirectly(seen)
    return isLeftover
  }

  /**
   * The inherited rules redirect to ports that listeners of other services may get now, and clients must not reach the wrong service. So
   * before anything listens, all clients are refused, as they were while no process listened.
   */
  async refuseAll(entries: readonly PortalRulesEntry[], layout: ListenerLayout, signal: AbortSignal): Promise<void> {
    try {
      await this.#programs.restore(composeRefusal(textsOf(merge(new Map(), entries)), layout), signal)
    } catch (error) {
      // If the rules of a service are refused, `write` finds out which.
      if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
      const message = 'Rules of an earlier process stay in force until new ones are written'
      this.#context.log.warn(message, { error: error.message })
    }
    this.#isInherited = false
    this.#hasWritten = true
  }

  /** Returns the entries that iptables refuses; all others are written. */
  async write(changes: RuleChanges, layout: ListenerLayout, signal: AbortSignal): Promise<readonly RefusedEntry[]> {
    const full = this.#seen !== undefined
    const kept = new Map(full ? [] : this.#rules)
    for (const { id } of changes.drop) kept.delete(id)
    const wanted = merge(kept, changes.put)
    if (!full && compose(textsOf(wanted), layout) === this.#written) {
      this.#rules = wanted
      return []
    }
    this.#written = undefined
    const commits = this.#programs.commits
    try {
      await this.#drift.watch.beginWrite()
      this.#missing = this.#seen && (await findMissingHooks(this.#seen, this.#programs, signal))
      this.#rules = kept
      const attempt = (items: readonly PortalRulesEntry[]) => this.#attempt(merge(this.#rules, items), layout, signal)
      const refusals = await isolate(changes.put, { attempt, mentions })
      this.#seen = undefined
      const clean = refusals.length === 0
      await this.#drift.watch.endWrite({ commits: this.#programs.commits - commits, full, clean }, signal)
      return refusals.map(({ item, error }) => ({ id: item.id, error }))
    } catch (error) {
      this.#drift.watch.abandonWrite()
      throw error
    }
  }

  /** Lets the kernel translate to endpoints what the rules lead to listeners. The last write of a process that ends. */
  async handOver(endpointsOf: (listener: string) => readonly string[], signal: AbortSignal): Promise<void> {
    this.close()
    if (this.#written === undefined && this.#unconfirmed === undefined) return
    // The kernel may have the rules of a write that was cut off, or not: whichever it has is replaced.
    if (this.#unconfirmed !== undefined) await this.#findMissingAgain(signal)
    const texts = translateDirectly(textsOf(this.#unconfirmed ?? this.#rules), endpointsOf)
    this.#written = undefined
    await this.#programs.restore(compose(texts, withoutListeners, this.#missing), signal)
  }

  close(): void {
    this.#drift.watch.close()
  }

  /** Returns undefined if the kernel has these rules now. */
  async #attempt(rules: RulesById, layout: ListenerLayout, signal: AbortSignal): Promise<IsolationFailure | undefined> {
    const texts = textsOf(rules)
    const text = compose(texts, layout, this.#missing)
    try {
      signal.throwIfAborted()
      this.#unconfirmed = rules
      await this.#programs.restore(text, signal)
    } catch (error) {
      if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
      this.#unconfirmed = undefined
      await this.#findMissingAgain(signal)
      const words = `iptables refuses the rules: ${error.message}`
      return {
        error: new ProxyError('iptables-refused', words, { cause: error }),
        lines: suspectLines(error.stderr, text),
      }
    }
    this.#unconfirmed = undefined
    this.#missing = undefined
    this.#hasWritten = true
    this.#rules = rules
    this.#written = compose(texts, layout)
    this.#drift.expect(this.#written)
    return undefined
  }

  /** Each table is written by itself, so a failed restore may have added some hooks. */
  async #findMissingAgain(signal: AbortSignal): Promise<void> {
    if (this.#missing === undefined) return
    this.#missing = await findMissingHooks(await this.#reader.readUses(signal), this.#programs, signal)
  }
}

const withoutListeners: ListenerLayout = {
  findOpened: () => undefined,
  listeners: [],
  host: undefined,
  nodePorts: new Set(),
}

/** The hook is one use of the chain; any other is a rule of `translateDirectly`. */
const isTranslatedDirectly = ({ uses }: ChainUses): boolean => (uses.get(`nat ${chains.postrouting}`) ?? 0) > 1

function merge(rules: RulesById, more: readonly PortalRulesEntry[]): RulesById {
  const all = new Map(rules)
  for (const entry of more) all.set(entry.id, entry)
  return all
}

const textsOf = (rules: RulesById): readonly string[] =>
  [...rules.values()].sort((a, b) => (a.order < b.order ? -1 : 1)).map(({ digest }) => digest)

/** A written line equals a line of the entry up to the listener. */
const mentions = ({ digest }: PortalRulesEntry, line: string): boolean =>
  digest.split('\n').some((own) => own !== '' && line.startsWith(own.split('<', 1)[0] as string))
