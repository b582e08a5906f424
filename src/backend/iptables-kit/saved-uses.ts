// Counts how often each chain is used, and hashes chains and rules, in the text that iptables-save prints. Pure.
//
// A chain is used by each rule in it and by each rule that jumps to it, which is also how nf_tables counts. There may be 200,000 lines,
// so there is one pass, and runs of equal lines, which are nearly all, have small loops of their own: compiling one large loop, often
// more than once, cost V8 more than running it.

import { SetHash } from '../../lib/set-hash.ts'
import { canary, isServiceChain, kubeletFirewall } from './chains.ts'
import { parseRule } from './restore-text.ts'
import type { RuleSetHash } from './rule-hash.ts'

/** Chains of service ports and endpoints that exist. */
export interface ServiceChains {
  readonly checksum: SetHash
  /** Lists their names, which is expensive. */
  names(): readonly string[]
}

/** What `countUses` has counted so far. */
export interface SavedCounts {
  /** Uses per chain; the key is `nat KUBE-SERVICES`. */
  readonly uses: Map<string, number>
  /** Rules of other programs' chains that jump to our chains, as `nat -A …`. */
  readonly jumps: Set<string>
  /** If set, collects the service chains. Their uses, and rules in any of our chains, are not counted then. */
  readonly serviceChains: SavedServiceChains | undefined
  /** Table that the current lines belong to; '' before the first `*table`. */
  table: string
}

/** The service chains in saved tables. Their names are cut out of the text only if they are asked for. */
export class SavedServiceChains implements ServiceChains {
  readonly checksum = new SetHash()
  /** If set, collects the rules in service chains; rules in shared chains are counted then. */
  readonly rules: RuleSetHash | undefined
  /** Runs of lines that declare service chains. */
  readonly #runs: { readonly text: string; readonly start: number; readonly end: number }[] = []

  constructor(rules?: RuleSetHash) {
    this.rules = rules
  }

  /** Adds the run of declarations that begins at `start`, and returns where it ends. */
  addRun(text: string, start: number): number {
    const { checksum } = this
    let at = start
    while (text.charCodeAt(at) === colon && isServiceChain(text, at + 1)) {
      checksum.add(text, at + 1, text.indexOf(' ', at))
      at = findLineEnd(text, at) + 1
      if (at >= text.length) break
    }
    if (at > start) this.#runs.push({ text, start, end: at })
    return at
  }

  names(): readonly string[] {
    const names: string[] = []
    for (const { text, start, end } of this.#runs) {
      for (let at = start; at < end; at = findLineEnd(text, at) + 1) {
        names.push(text.slice(at + 1, text.indexOf(' ', at)))
      }
    }
    return names
  }
}

/** Counts whole lines of saved tables; call it with one piece after the other. */
export function countUses(saved: string, counts: SavedCounts): void {
  for (let start = 0; start < saved.length; ) {
    const next = skipRun(saved, start, counts)
    if (next > start) {
      start = next
      continue
    }
    const end = findLineEnd(saved, start)
    countLine(saved, start, end, counts)
    start = end + 1
  }
}

/** True if the canaries exist and every chain is used as often as wanted, and if no other service chain is used. */
export function usesMatch(uses: ReadonlyMap<string, number>, wanted: ReadonlyMap<string, number>): boolean {
  for (const table of watchedTables) if (!uses.has(`${table} ${canary}`)) return false
  for (const [chain, use] of wanted) if (!isUsedAsWanted(chain, uses.get(chain) ?? 0, use)) return false
  for (const [chain, use] of uses) {
    if (use > 0 && isNatServiceChain(chain) && !wanted.has(chain)) return false
  }
  return true
}

/** Kubelet writes its own rules into KUBE-FIREWALL, so more rules than wanted are right there. */
export const isUsedAsWanted = (chain: string, use: number, wanted: number): boolean =>
  chain.endsWith(` ${kubeletFirewall}`) ? use >= wanted : use === wanted

/** Tables with a canary. */
export const watchedTables = ['filter', 'nat', 'mangle'] as const

/** True for a key of `uses` that names a service chain. */
export const isNatServiceChain = (key: string): boolean =>
  key.startsWith(natPrefix) && isServiceChain(key, natPrefix.length)

export const natPrefix = 'nat '

/** Returns where the run of lines ends that begins at `start` and that needs no counting; `start` if there is no such run. */
function skipRun(saved: string, start: number, { serviceChains, table }: SavedCounts): number {
  if (serviceChains === undefined) return start
  const first = saved.charCodeAt(start)
  if (first === colon) return table === 'nat' ? serviceChains.addRun(saved, start) : start
  if (first !== dash) return start
  if (serviceChains.rules === undefined) return skipRules(saved, start)
  return table === 'nat' ? hashRules(saved, start, serviceChains.rules) : start
}

/** Skips rules in chains of ours and of kubelet. */
function skipRules(saved: string, start: number): number {
  let at = start
  while (saved.startsWith('-A KUBE-', at)) at = findLineEnd(saved, at) + 1
  return at
}

function hashRules(saved: string, start: number, rules: RuleSetHash): number {
  let at = start
  while (saved.startsWith('-A KUBE-', at) && isServiceChain(saved, at + 3)) {
    const end = findLineEnd(saved, at)
    rules.add(saved, at, end)
    at = end + 1
  }
  return at
}

function findLineEnd(text: string, start: number): number {
  const newline = text.indexOf('\n', start)
  return newline < 0 ? text.length : newline
}

function countLine(saved: string, start: number, end: number, counts: SavedCounts): void {
  const first = saved.charCodeAt(start)
  if (first === asterisk) counts.table = saved.slice(start + 1, end)
  else if (first === colon) counts.uses.set(`${counts.table} ${saved.slice(start + 1, saved.indexOf(' ', start))}`, 0)
  else if (first === dash) countRule(saved, start, end, counts)
}

function countRule(saved: string, start: number, end: number, { uses, jumps, table }: SavedCounts): void {
  const use = (name: string) => {
    const key = `${table} ${name}`
    uses.set(key, (uses.get(key) ?? 0) + 1)
  }
  const { chain, target } = parseRule(saved, start, end)
  use(chain)
  if (!target.startsWith('KUBE-')) return
  use(target)
  if (!chain.startsWith('KUBE-')) jumps.add(`${table} ${saved.slice(start, end)}`)
}

const asterisk = 0x2a
const colon = 0x3a
const dash = 0x2d
