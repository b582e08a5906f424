// Composes the input of iptables-restore for a staged write, in kube-proxy's order. Pure.
//
// There is one restore per write, with --noflush: a `:CHAIN` line makes or empties a chain, chains that are not named stay as they are,
// and each table changes as a whole at its COMMIT. The shared chains are always written whole: there is no other way to keep the order of
// their rules. Service chains are written only where they changed.

import { counters, isEndpointChain, kubeletFirewall, sharedChains } from '../../iptables-kit/chains.ts'
import type { RestoreInput } from '../../iptables-kit/restore-input.ts'
import {
  chainOfRule,
  countRules,
  formatDeclaration,
  formatDeclarations,
  formatDeletion,
  linesOf,
} from '../../iptables-kit/restore-text.ts'
import { type BasePart, type PortEntry, portNameOf } from '../entries.ts'
import { adapt } from '../features.ts'
import { destination } from '../port-text.ts'
import { findPlace, type StagedWrite } from './stage.ts'

/** A cluster with more endpoints has no comments in their rules: comments are half of the text. */
export const largeEndpoints = 1000

export interface RestoreLimits {
  /** More chains than these are written in several restores. */
  readonly chainsPerRestore: number
  /** True if nothing changes but that chains are deleted. */
  readonly deletesOnly?: boolean | undefined
  /** The number from which the rule of an endpoint's chain counts. */
  readonly countOf?: ((chain: string) => number) | undefined
}

interface CountedWrite extends StagedWrite {
  readonly countOf: RestoreLimits['countOf']
}

/** A port with the chains of it that one restore writes; undefined: all that are written at all. */
interface PortPart {
  readonly port: PortEntry
  readonly chains: ReadonlySet<string> | undefined
}

/**
 * One function per restore, to be run in order. Where there are too many chains for one restore, chains are written before anything jumps
 * to them, all chains of a port at once; and chains are deleted after nothing jumps to them. If a port has too many chains, the chains of
 * its endpoints come first, in several restores: nothing jumps to new ones, and the others jump to them.
 */
export function planRestores(
  change: StagedWrite,
  { chainsPerRestore, deletesOnly = false, countOf }: RestoreLimits,
): readonly ((input: RestoreInput) => void)[] {
  const staged = { ...change, countOf }
  const { rewritten, staleChains, chains } = staged
  const parts = rewritten.flatMap((port) => splitPort(port, chains?.get(port.id), chainsPerRestore))
  const weigh = ({ port, chains: some }: PortPart) => (some ?? chains?.get(port.id))?.size ?? port.rules.chainCount
  const writes = splitByWeight(parts, weigh, chainsPerRestore)
  const deletions = splitByWeight(staleChains, () => 1, chainsPerRestore)
  if (deletesOnly) {
    const some = deletions.filter((stale) => stale.length > 0)
    return some.map((stale) => (input: RestoreInput) => composeDeletions(input, stale))
  }
  const compose = staged.keepsShared ? composeOwnChains : composeTables
  const isSplit = { writes: writes.length > 1, deletions: deletions.length > 1 }
  return [
    ...(isSplit.writes ? writes.map((some) => (input: RestoreInput) => composeChains(input, staged, some)) : []),
    (input) => compose(input, staged, isSplit.writes ? [] : rewritten, isSplit.deletions ? [] : staleChains),
    ...(isSplit.deletions ? deletions.map((stale) => (input: RestoreInput) => composeDeletions(input, stale)) : []),
  ]
}

/** Both tables: all shared chains, the service chains of `ports`, and the deletion of `stale` chains. */
function composeTables(
  input: RestoreInput,
  staged: CountedWrite,
  ports: readonly PortEntry[],
  stale: readonly string[],
): void {
  const head = adaptBase(staged, 'filter head')
  input.begin('filter')
  input.add(formatDeclarations(sharedChains.filter))
  if (head !== '') input.add(formatDeclaration(kubeletFirewall))
  input.add(head)
  addFilterRules(input, staged)
  input.add(adaptBase(staged, 'filter tail'))
  input.commit()
  input.begin('nat')
  input.add(formatDeclarations(sharedChains.nat))
  addDeclarations(input, staged, ports)
  input.add(formatDeclarations(stale))
  input.add(adaptBase(staged, 'nat head'))
  addNatRules(input, staged, ports)
  for (const chain of stale) input.add(formatDeletion(chain))
  input.add(adaptBase(staged, 'nat tail'))
  input.commit()
}

/** Splits a port with more chains than a restore may write. */
function splitPort(port: PortEntry, some: ReadonlySet<string> | undefined, limit: number): readonly PortPart[] {
  if ((some?.size ?? port.rules.chainCount) <= limit) return [{ port, chains: undefined }]
  const chains = some === undefined ? port.rules.chains() : [...some]
  const endpoints = splitByWeight(chains.filter(isEndpointChain), () => 1, limit)
  const others = chains.filter((chain) => !isEndpointChain(chain))
  return [...endpoints, others].map((part) => ({ port, chains: new Set(part) }))
}

/** Service chains alone, with the only shared chain that they jump to. */
function composeChains(input: RestoreInput, staged: CountedWrite, parts: readonly PortPart[]): void {
  input.begin('nat')
  input.add(formatDeclaration('KUBE-MARK-MASQ'))
  for (const { port, chains } of parts) addDeclaration(input, port, chains ?? staged.chains?.get(port.id), staged)
  for (const line of adaptBase(staged, 'nat head').match(/^-A KUBE-MARK-MASQ .*\n/gm) ?? []) input.add(line)
  for (const { port, chains } of parts) addOwnRules(input, port, staged, chains ?? staged.chains?.get(port.id))
  input.commit()
}

/** The service chains of `ports`, and the deletion of `stale` chains. The chains that they jump to exist. */
function composeOwnChains(
  input: RestoreInput,
  staged: CountedWrite,
  ports: readonly PortEntry[],
  stale: readonly string[],
): void {
  input.begin('nat')
  addDeclarations(input, staged, ports)
  input.add(formatDeclarations(stale))
  for (const port of ports) addOwnRules(input, port, staged, staged.chains?.get(port.id))
  for (const chain of stale) input.add(formatDeletion(chain))
  input.commit()
}

function composeDeletions(input: RestoreInput, stale: readonly string[]): void {
  input.begin('nat')
  input.add(formatDeclarations(stale))
  for (const chain of stale) input.add(formatDeletion(chain))
  input.commit()
}

// Each of these loops is a function of its own: V8 compiles small loops sooner.

function addFilterRules(input: RestoreInput, { ports }: CountedWrite): void {
  for (const { rules } of ports) if (rules.filterCount > 0) input.addCounted(rules.filter(), rules.filterCount)
}

function addDeclarations(input: RestoreInput, staged: CountedWrite, ports: readonly PortEntry[]): void {
  for (const port of ports) addDeclaration(input, port, staged.chains?.get(port.id), staged)
}

/** A chain that only gets more rules is not declared, which would empty it. */
function addDeclaration(
  input: RestoreInput,
  { rules }: PortEntry,
  some: ReadonlySet<string> | undefined,
  { appended }: CountedWrite,
): void {
  const isWritten = (chain: string) => some?.has(chain) === true && !appended.has(chain)
  const text = some === undefined ? rules.declarations() : formatDeclarations(rules.chains().filter(isWritten))
  input.addCounted(text, 0)
}

/** The shared rules of all ports, those of a rewritten port followed by the rules of its own chains. */
function addNatRules(input: RestoreInput, staged: CountedWrite, rewritten: readonly PortEntry[]): void {
  if (rewritten === staged.ports && staged.chains === undefined && isLarge(staged)) {
    addAllRules(input, staged)
    return
  }
  let from = 0
  for (const port of rewritten) {
    const to = findPlace(staged.ports, port.id, from) + 1
    addSharedRules(input, staged, from, to)
    addOwnRules(input, port, staged, staged.chains?.get(port.id))
    from = to
  }
  addSharedRules(input, staged, from, staged.ports.length)
}

function addAllRules(input: RestoreInput, { ports, features, countOf }: CountedWrite): void {
  const isCounting = features.counters.has(counters.localhost)
  for (const { rules } of ports) {
    const isWhole = isCounting || rules.countedCount === 0
    if (isWhole && countOf === undefined) input.addCounted(rules.nat(), rules.sharedCount + rules.ownCount)
    else {
      input.add(isWhole ? rules.shared() : adapt(rules.shared(), features))
      input.addCounted(addCounts(rules.own(), countOf), rules.ownCount)
    }
  }
}

/** The shared rules of the ports from index `from` to `to`. */
function addSharedRules(input: RestoreInput, { ports, features }: CountedWrite, from: number, to: number): void {
  const isCounting = features.counters.has(counters.localhost)
  for (let i = from; i < to; i++) {
    const { rules } = ports[i] as PortEntry
    if (isCounting || rules.countedCount === 0) input.addCounted(rules.shared(), rules.sharedCount)
    else input.add(adapt(rules.shared(), features))
  }
}

function addOwnRules(
  input: RestoreInput,
  port: PortEntry,
  staged: CountedWrite,
  some: ReadonlySet<string> | undefined,
): void {
  const rules = selectOwnRules(port, staged, some)
  input.addCounted(addCounts(rules, staged.countOf), countRules(rules))
}

/** Puts `[packets:bytes]` before rules that translate and do not count from zero. */
function addCounts(rules: string, countOf: RestoreLimits['countOf']): string {
  if (countOf === undefined) return rules
  let counted = ''
  let from = 0
  for (let at = rules.indexOf(destination); at >= 0; at = rules.indexOf(destination, at + 1)) {
    const start = rules.lastIndexOf('\n', at) + 1
    const count = countOf(rules.slice(start + 3, rules.indexOf(' ', start + 3)))
    if (count === 0) continue
    counted += `${rules.slice(from, start)}[${count}:0] `
    from = start
  }
  return counted + rules.slice(from)
}

/** The rules of the own chains of a port; of these chains only, if given. */
function selectOwnRules(port: PortEntry, staged: CountedWrite, some: ReadonlySet<string> | undefined): string {
  const rules = isLarge(staged) ? port.rules.own() : port.rules.ownWithComments(portNameOf(port))
  if (some === undefined) return rules
  const { appended } = staged
  const isWritten = (chain: string) => some.has(chain) && !appended.has(chain)
  const whole = linesOf(rules).filter((line) => isWritten(chainOfRule(line)))
  const more = appended.size === 0 ? [] : [...some].map((chain) => appended.get(chain) ?? '')
  return [...whole, ...more].join('')
}

const isLarge = ({ endpoints }: CountedWrite): boolean => endpoints > largeEndpoints

const adaptBase = ({ base, features }: CountedWrite, part: BasePart): string =>
  adapt(base.get(part)?.digest ?? '', features)

/** Splits a list into as few runs as possible, each of at most `limit` in weight or of a single item. */
function splitByWeight<T>(items: readonly T[], weigh: (item: T) => number, limit: number): readonly (readonly T[])[] {
  if (limit === Number.POSITIVE_INFINITY) return [items]
  const runs: T[][] = []
  let left = 0
  for (const item of items) {
    const weight = weigh(item)
    if (runs.length === 0 || weight > left) {
      runs.push([])
      left = limit
    }
    runs.at(-1)?.push(item)
    left -= weight
  }
  return runs
}
