// Recognises our entries in a dump of the table, and fills the committed state. Rules are recognised by their tags; their content is not read.

import type { TimeSlice } from '../../../lib/yielding.ts'
import { type Chain, type NftSet, SET_ANONYMOUS } from '../../../sys/netlink/nft/nft-types.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import { readSetComment } from '../../../sys/netlink/nft/userdata.ts'
import type { Held } from '../../backend.ts'
import type { CommittedState } from '../commit/committed.ts'
import { declareSet } from '../commit/set-codec.ts'
import { affinityChain, otherHook } from '../commit/transaction.ts'
import { type ChainSpec, type NftSetSpec, setDigest } from '../entries.ts'
import { parseBalanceName } from '../rules.ts'
import type { TableDump } from './dump.ts'
import { type ExpectedTable, isAffinitySet } from './expected.ts'
import { FrontendRecogniser } from './recognise-frontends.ts'

/** True if the table has one of our tags; otherwise another proxy made it under the same name. */
export const isOurs = (dump: Pick<TableDump, 'rules' | 'sets'>): boolean =>
  dump.sets.some((set) => set.name === 'endpoints') && dump.rules.some((rule) => rule.tag !== undefined)

/** Returns what the table holds; undefined if it must be exchanged. */
export async function recogniseTable(
  dump: TableDump,
  expected: ExpectedTable,
  committed: CommittedState,
  slice: TimeSlice,
): Promise<readonly Held[] | undefined> {
  committed.clear()
  const held = [...recogniseSets(dump, expected, committed), ...recogniseChains(dump, expected, committed)]
  if (mustExchange(dump, expected, committed)) return undefined
  const frontends = new FrontendRecogniser(committed, held, slice)
  for (const [set, members] of dump.members) if (!(await frontends.readMembers(set, members))) return undefined
  await frontends.finish()
  return held
}

/** Stands for the digest of a set whose declaration differs from ours. */
const otherShape = 'another shape'
/** Stands for the digest of a chain whose rules differ from ours. */
const damaged = 'damaged'

/**
 * True if the kernel cannot change something in place: the shape of a set of the base, or the hook of a chain that we need. Also true if
 * there is an unknown chain: it may be one of ours that was renamed, and rules that lead into it still look whole.
 */
function mustExchange(dump: TableDump, expected: ExpectedTable, committed: CommittedState): boolean {
  const isNeeded = (chain: string) => expected.chains.has(chain) || parseBalanceName(chain) !== undefined
  const isUnknown = ({ name, base }: Chain) => base === undefined && !isNeeded(name) && !affinityChain.test(name)
  const sets = [...committed.sets]
  const chains = [...committed.chains]
  return (
    sets.some(([name, digest]) => digest === otherShape && expected.sets.has(name)) ||
    chains.some(([name, digest]) => digest === otherHook && isNeeded(name)) ||
    dump.chains.some(isUnknown)
  )
}

function recogniseSets(dump: TableDump, expected: ExpectedTable, committed: CommittedState): readonly Held[] {
  return dump.sets.flatMap((set): Held[] => {
    if ((set.flags & SET_ANONYMOUS) !== 0) return []
    const spec: NftSetSpec | undefined = isAffinitySet(set.name)
      ? { name: set.name, shape: 'affinity', comment: '' }
      : expected.sets.get(set.name)
    const digest = spec !== undefined && isDeclaredAs(set, spec, expected.counting) ? setDigest(spec) : otherShape
    committed.sets.set(set.name, digest)
    return [{ id: `set ${set.name}`, kind: 'set', digest }]
  })
}

function isDeclaredAs(set: NftSet, spec: NftSetSpec, counting: boolean): boolean {
  const wanted = declareSet(spec, set.family, counting)
  return (
    wanted.flags === set.flags &&
    wanted.keyType === set.keyType &&
    wanted.keyLength === set.keyLength &&
    wanted.dataType === set.dataType &&
    wanted.counter === set.counter &&
    (readSetComment(set.userdata) ?? '') === spec.comment
  )
}

function recogniseChains(dump: TableDump, expected: ExpectedTable, committed: CommittedState): readonly Held[] {
  const rules = groupByChain(dump.rules)
  return dump.chains.flatMap((chain): Held[] => {
    const { name } = chain
    const digest = hasHook(chain, expected.chains.get(name)) ? digestOf(rules.get(name) ?? []) : otherHook
    committed.chains.set(name, digest)
    const balance = parseBalanceName(name)
    if (balance === undefined) return [{ id: `chain ${name}`, kind: 'chain', digest }]
    // Chains of frontends are shared: they are not entries.
    const wanted = expected.balanceChains.find(balance).find((spec) => spec.chain.name === name)
    if (wanted !== undefined && wanted.digest !== digest) committed.damagedChains.set(name, wanted.chain)
    committed.adoptChain(name)
    return []
  })
}

function groupByChain(rules: readonly ListedRule[]): ReadonlyMap<string, readonly ListedRule[]> {
  const groups = new Map<string, ListedRule[]>()
  for (const rule of rules) {
    const group = groups.get(rule.chain)
    if (group === undefined) groups.set(rule.chain, [rule])
    else group.push(rule)
  }
  return groups
}

function hasHook({ base }: Chain, wanted: ChainSpec | undefined): boolean {
  const hook = wanted?.hook
  if (base === undefined || hook === undefined) return base === undefined && hook === undefined
  const { type, priority, policy } = base
  // Ours accept. With another policy every packet that no rule decides would be lost.
  return type === hook.type && base.hook === hook.hook && priority === hook.priority && policy !== 'drop'
}

/** Every rule must carry the same digest and its own index. An additional, missing or moved rule is damage. */
function digestOf(rules: readonly ListedRule[]): string {
  const digest = rules[0]?.tag?.split(' ')[0]
  if (digest === undefined) return rules.length === 0 ? '' : damaged
  return rules.every((rule, i) => rule.tag === `${digest} ${i} ${rules.length}`) ? digest : damaged
}
