// Writes changes in one restore. If the kernel refuses it, all other services are written and the refused ones keep what they had.
//
// How refused services are found is iptables-kit/isolate.ts. What is particular here:
// 1. The base, and the removal of unwanted rules, go with every attempt until one has succeeded. If what was there before is refused
//    without any service, another program broke it, and only writing everything again helps: the caller does that.
// 2. A service that fails alone is tried once more without deleting chains, which fails while others use them.
// 3. A refused service keeps its old rules, its old chains, and the chains that those jump to, until everything is written again.

import { ProxyError } from '../../../lib/errors.ts'
import { ExecError } from '../../../sys/process/exec.ts'
import type { RefusedEntry } from '../../backend.ts'
import { type IsolationFailure, isolate } from '../../iptables-kit/isolate.ts'
import { type ByteSink, createRestoreBuffer, RestoreInput } from '../../iptables-kit/restore-input.ts'
import { suspectLines } from '../../iptables-kit/restore-text.ts'
import { isIptablesEntry, strayChainOf } from '../entries.ts'
import { planRestores } from './compose.ts'
import { findLostChains, stage } from './stage.ts'
import { addForgotten, type GroupedChanges, type Unit } from './units.ts'
import type { WrittenRules } from './written.ts'

export interface RestoreWriterOptions<S extends ByteSink> {
  readonly written: WrittenRules
  /** Makes the sink for the input of one restore. */
  readonly createSink: () => S
  /** More chains than these are written in several restores. */
  readonly chainsPerRestore: number
  readonly restore: (input: RestoreInput<S>, signal: AbortSignal) => Promise<void>
  /** Deletes chains of nat without a restore. Resolves false, and deletes none, if that is not possible. Absent: they need a restore. */
  readonly deleteChains?: ((chains: readonly string[]) => Promise<boolean>) | undefined
}

export interface RestoreWriteOptions {
  /** The changes are all that is wanted: what is not among them is forgotten, and no chain is taken to be as it was. */
  readonly everything: boolean
  /** True if nothing changes but that chains are deleted: then the shared chains are not written. */
  readonly deletesOnly?: boolean
  /** The number from which the rule of an endpoint's chain counts. Default: 0. */
  readonly countOf?: (chain: string) => number
  readonly signal: AbortSignal
}

export interface WriteResult {
  readonly refused: readonly RefusedEntry[]
  /** Restores that failed. */
  readonly failures: number
  /** Rules in the last write that succeeded, per table. */
  readonly rules: { readonly filter: number; readonly nat: number }
  /** Why chains could not be deleted that no dropped entry stands for; undefined if they all were. */
  readonly undeleted: ProxyError | undefined
}

export class RestoreWriter<S extends ByteSink> {
  readonly #options: RestoreWriterOptions<S>
  readonly #buffer = createRestoreBuffer()

  constructor(options: RestoreWriterOptions<S>) {
    this.#options = options
  }

  /** Throws with code `iptables-restore` if the cause of a refusal is not in these changes. */
  async write(changes: GroupedChanges, options: RestoreWriteOptions): Promise<WriteResult> {
    const { required, units } = options.everything ? addForgotten(changes, this.#options.written) : changes
    return await new Write(this.#options, options, this.#buffer).run(required, units)
  }
}

/** One call of `RestoreWriter.write`. */
class Write<S extends ByteSink> {
  readonly #writer: RestoreWriterOptions<S>
  readonly #options: RestoreWriteOptions
  readonly #buffer: Buffer
  /** Goes with every attempt until one has succeeded. */
  #required: readonly Unit[] = []
  readonly #refused: RefusedEntry[] = []
  #failures = 0
  #rules = { filter: 0, nat: 0 }
  #undeleted: ProxyError | undefined

  constructor(writer: RestoreWriterOptions<S>, options: RestoreWriteOptions, buffer: Buffer) {
    this.#writer = writer
    this.#options = options
    this.#buffer = buffer
  }

  async run(required: Unit, units: readonly Unit[]): Promise<WriteResult> {
    this.#required = [required]
    const { written } = this.#writer
    const refusals = await isolate(units, {
      attempt: (some) => this.#attempt(some),
      mentions: (unit, line) => mentions(written, unit, line),
    })
    for (const { item, error } of refusals) {
      const refusal = describeRefusal(`the rules of ${item.service || 'a leftover'} are refused`, error)
      for (const { id } of [...item.put, ...item.drop]) this.#refused.push({ id, error: refusal })
    }
    return { refused: this.#refused, failures: this.#failures, rules: this.#rules, undeleted: this.#undeleted }
  }

  /** A single unit whose chains cannot be deleted is accepted without that. */
  async #attempt(units: readonly Unit[]): Promise<IsolationFailure | undefined> {
    const failure = await this.#restore(units)
    const [only, ...others] = units
    if (failure === undefined || only === undefined || others.length > 0) return failure
    const { written } = this.#writer
    const isUnknownAfterwards =
      only.kind === 'forgotten' || only.put.some((entry) => findLostChains(written, entry).length > 0)
    if (!isUnknownAfterwards && only.drop.length === 0) return failure
    if ((await this.#restore([{ ...only, keepsChains: true }])) !== undefined) return failure
    const error = describeRefusal(`chains of ${only.service || 'no service'} cannot be deleted`, failure.error)
    for (const { id } of only.drop) this.#refused.push({ id, error })
    // No id stands for the chains of a port that stays.
    if (isUnknownAfterwards) this.#undeleted = error
    return undefined
  }

  /** One restore, or several for very many chains. If all succeed, the units are part of what is written. */
  async #restore(units: readonly Unit[]): Promise<IsolationFailure | undefined> {
    const { written, chainsPerRestore, createSink, restore } = this.#writer
    const { everything, deletesOnly = false, countOf, signal } = this.#options
    const change = stage(written, [...this.#required, ...units], everything)
    // A restore that failed may have written the shared chains of one table, or have failed because of what they hold.
    const staged = this.#failures === 0 ? change : { ...change, keepsShared: false }
    const rules = { filter: 0, nat: 0 }
    const isDone = deletesOnly && (await this.#delete(staged.staleChains))
    const restores = isDone ? [] : planRestores(staged, { chainsPerRestore, deletesOnly, countOf })
    for (const compose of restores) {
      const input = new RestoreInput(createSink(), this.#buffer)
      try {
        signal.throwIfAborted()
        compose(input)
        await restore(input, signal)
      } catch (error) {
        if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
        this.#failures++
        const { message, fields, stderr } = error
        const refusal = new ProxyError('iptables-restore', message, { cause: error, fields })
        return { error: refusal, lines: suspectLines(stderr, String(input)) }
      } finally {
        input.sink.close()
      }
      rules.filter += input.rules.filter
      rules.nat += input.rules.nat
    }
    written.apply(staged)
    this.#rules = rules
    this.#required = []
    return undefined
  }

  /** Resolves false if a restore must do it. A restore also says why chains cannot be deleted. */
  async #delete(chains: readonly string[]): Promise<boolean> {
    const { deleteChains } = this.#writer
    if (deleteChains === undefined || chains.length === 0) return false
    this.#options.signal.throwIfAborted()
    try {
      return await deleteChains(chains)
    } catch {
      return false
    }
  }
}

/** True if the line may come from this unit: it is one of its rules, or names a chain that it has, had, or deletes. */
function mentions(written: WrittenRules, { put, drop }: Unit, line: string): boolean {
  const chain = /^(?:-X |-A |:)(\S+)/.exec(line)?.[1] ?? ''
  if (put.some((entry) => entry.kind === 'port' && entry.rules.includes(line))) return true
  return [...put, ...drop].some((held) => {
    if (written.port(held.id)?.rules.declares(chain) === true) return true
    if (!isIptablesEntry(held)) return strayChainOf(held) === chain
    return held.kind === 'port' && held.rules.declares(chain)
  })
}

const describeRefusal = (what: string, { message, cause }: ProxyError): ProxyError =>
  new ProxyError('iptables-refused', `${what}: ${message}`, { cause })
