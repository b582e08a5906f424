// Compares rules with those that iptables-save prints, for `status` and `explain`.

import type { Family } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { Presence } from '../backend.ts'
import { isServiceChain } from './chains.ts'
import { IptablesPrograms, type ProgramSet } from './programs.ts'
import { linesOf, parseRule } from './restore-text.ts'
import { formOfRule } from './rule-form.ts'

export class RuleCheck {
  readonly #set: ProgramSet
  /** The chains of services, which are compared as a whole; the key is `nat KUBE-SVC-…`. */
  readonly #chains = new Map<string, string[]>()
  /** The forms of all rules in other chains that matter to a proxy. */
  readonly #shared = new Map<string, Set<string>>()
  #table = ''

  private constructor(set: ProgramSet) {
    this.#set = set
  }

  /** Reads all tables of a family. */
  static async read(set: ProgramSet, family: Family, signal: AbortSignal): Promise<RuleCheck> {
    const check = new RuleCheck(set)
    const options = { set, family, log: silentLogger, clock: systemClock, lockTimeoutMs: 30_000 }
    await new IptablesPrograms(options).saveAll((lines) => check.#add(lines), signal)
    return check
  }

  /** Compares the rules of one service chain, in their order. */
  compareChain(table: string, chain: string, rules: string): Presence {
    const held = this.#chains.get(`${table} ${chain}`)
    if (held === undefined) return 'missing'
    const forms = (lines: readonly string[]) => lines.map(formOfRule).join('\n')
    return forms(held) === forms(linesOf(rules)) ? 'present' : 'differs'
  }

  /** Looks for rules among others in shared chains. `isOptional`: rules that some kernels cannot have. */
  compareRules(table: string, rules: readonly string[], isOptional: (rule: string) => boolean = () => false): Presence {
    const absent = rules.filter((rule) => !this.#has(table, rule))
    if (absent.every(isOptional)) return 'present'
    return absent.length === rules.length ? 'missing' : 'differs'
  }

  /** Names the programs of the flavour that this node uses. */
  adaptCommand(command: string): string {
    return command.replaceAll(/\b(ip6?tables)-save/g, `$1${this.#set.suffix}-save`)
  }

  #has(table: string, rule: string): boolean {
    return this.#shared.get(`${table} ${parseRule(rule, 0, rule.length).chain}`)?.has(formOfRule(rule)) === true
  }

  #add(lines: string): void {
    for (const line of lines.split('\n')) {
      if (line.startsWith('*')) this.#table = line.slice(1)
      else if (line.startsWith(':') && isServiceChain(line, 1)) {
        this.#chains.set(`${this.#table} ${line.slice(1, line.indexOf(' '))}`, [])
      } else if (line.startsWith('-A ')) this.#addRule(line)
    }
  }

  #addRule(line: string): void {
    const { chain, target } = parseRule(line, 0, line.length)
    const key = `${this.#table} ${chain}`
    const own = this.#chains.get(key)
    if (own !== undefined) own.push(line)
    else if (chain.startsWith('KUBE-') || target.startsWith('KUBE-')) {
      const forms = this.#shared.get(key) ?? new Set()
      forms.add(formOfRule(line))
      this.#shared.set(key, forms)
    }
  }
}
