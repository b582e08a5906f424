// Writes all iptables rules in one restore, and reads them back to recognise them.

import type { Family } from '../../../lib/ip.ts'
import { runProgram } from '../../../sys/process/exec.ts'
import type { Held } from '../../backend.ts'
import { type IptablesPrograms, isAtLeast, programName } from '../../iptables-kit/programs.ts'
import { openTableReader, type TableReader } from '../../iptables-kit/table-reader.ts'
import { RuleDrift } from '../drift.ts'
import type { IpvsRulesEntry } from '../entries.ts'
import { ruleTables } from '../rule-text.ts'
import { addMissingJumps, findOwnRules, type SavedRules } from '../saved-rules.ts'

export class RuleTables {
  readonly #programs: IptablesPrograms
  readonly #reader: TableReader
  readonly #family: Family
  readonly #drift = new RuleDrift()
  /** The digest of the entry that was written; undefined: unknown. */
  #digest: string | undefined
  /** The version of the tables at which the rules were as written. */
  #version: string | undefined
  /** What iptables-save printed last, and the version of the tables then. Kept for the sync that follows. */
  #lastSave: { readonly version: string; readonly saved: SavedRules } | undefined

  constructor(programs: IptablesPrograms, family: Family) {
    this.#programs = programs
    this.#family = family
    this.#reader = openTableReader(programs, family)
  }

  async read(signal: AbortSignal): Promise<readonly Held[]> {
    const version = await this.#reader.readVersion()
    const last = this.#lastSave
    this.#lastSave = undefined
    // Starting a program is most of the cost, so an unchanged version saves it. The legacy flavour's version can miss a change.
    const isExact = this.#programs.set.flavour === 'nft'
    if (isExact && this.#digest !== undefined && version === this.#version) return [heldRules(this.#digest)]
    // A sync mostly follows a check, which has just run iptables-save.
    const saved = isExact && last?.version === version ? last.saved : await this.#save(signal)
    this.#version = version
    if (this.#digest !== undefined && this.#drift.isUnchanged(saved)) return [heldRules(this.#digest)]
    this.#lastSave = { version, saved }
    return ruleTables.some((table) => saved[table].length > 0) ? [heldRules('unknown')] : []
  }

  async write(entry: IpvsRulesEntry, signal: AbortSignal): Promise<void> {
    const saved = this.#lastSave?.saved ?? (await this.#save(signal))
    this.#lastSave = undefined
    this.#digest = undefined
    this.#drift.forget()
    const hasRandomFully = isAtLeast(this.#programs.set.version, [1, 6, 2])
    const text = hasRandomFully ? entry.text : entry.text.replaceAll(' --random-fully', '')
    await this.#programs.restore(addMissingJumps(text, saved), signal)
    this.#version = await this.#reader.readVersion()
    this.#digest = entry.digest
    // The next check runs iptables-save: a sync must not wait for one more program.
    this.#drift.expect(text)
  }

  /** Returns what someone else changed, or ''. Runs iptables-save only if some rule of the node changed. */
  async describeDrift(signal: AbortSignal): Promise<string> {
    if (this.#digest === undefined) return ''
    const version = await this.#reader.readVersion()
    if (version === this.#version && this.#drift.isCompared) return ''
    const saved = await this.#save(signal)
    if (this.#drift.isUnchanged(saved)) {
      this.#version = version
      return ''
    }
    this.#version = undefined
    this.#lastSave = { version, saved }
    return 'iptables rules of ours were changed'
  }

  close(): void {
    this.#reader.close()
  }

  async #save(signal: AbortSignal): Promise<SavedRules> {
    // One run prints all tables: starting a program is most of the cost.
    const program = `${programName(this.#family)}${this.#programs.set.suffix}-save`
    const { stdout } = await runProgram(program, [], { signal })
    return findOwnRules(stdout)
  }
}

const heldRules = (digest: string): Held => ({ id: 'rules', kind: 'rules', digest })
