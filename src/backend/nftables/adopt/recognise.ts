// What a dump of our table says: fills the mirror and names what is held. Rules are recognised by their tags, never read.

import type { Family } from '../../../lib/ip.ts'
import type { TimeSlice } from '../../../lib/yielding.ts'
import type { NodeView } from '../../../model/types.ts'
import { type Chain, type Element, type NftSet, SET_ANONYMOUS } from '../../../sys/netlink/nft/nft-types.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import { readSetComment } from '../../../sys/netlink/nft/userdata.ts'
import type { Held } from '../../backend.ts'
import { type CommittedState, slotKey } from '../commit/committed.ts'
import { declare, decodeEndpoint, decodeKey, decodeSlot, shapeOf } from '../commit/set-codec.ts'
import { otherHook, ownChain } from '../commit/transaction.ts'
import { type ChainSpec, frontendDigest, frontendId, type NftSetSpec, setDigest } from '../entries.ts'
import { type Balance, balanceChains, localSlots, parseBalanceName } from '../rules.ts'

export interface Dump {
  readonly chains: readonly Chain[]
  readonly rules: readonly ListedRule[]
  readonly sets: readonly NftSet[]
  /** By set; those of sets that are not ours are not read. */
  readonly elements: ReadonlyMap<string, readonly (Member | undefined)[]>
}

/** An element as text, made while it is read: there are very many. */
export interface Member {
  /** Without the slot. */
  readonly key: string
  /** -1 if it has none. */
  readonly slot: number
  /** The endpoint of a slot; otherwise the digest. */
  readonly value: string
}

export interface ExpectedTable {
  readonly node: NodeView
  /** The base's, by name. */
  readonly sets: ReadonlyMap<string, NftSetSpec>
  readonly chains: ReadonlyMap<string, ChainSpec>
}

/** Has one of our marks: not the table of another proxy under the same name. */
export const isOurs = (dump: Pick<Dump, 'rules' | 'sets'>): boolean =>
  dump.sets.some((set) => set.name === 'endpoints') && dump.rules.some((rule) => rule.tag !== undefined)

/**
 * Undefined if something is in our way that the kernel cannot change in place: the table must be exchanged. So it must if there is
 * a chain that we do not know: it may be one of ours that was renamed, and rules of ours that lead into it still look whole.
 */
export async function recogniseTable(
  dump: Dump,
  expected: ExpectedTable,
  mirror: CommittedState,
  stint: TimeSlice,
): Promise<readonly Held[] | undefined> {
  mirror.clear()
  const held: Held[] = []
  for (const set of dump.sets) observeSet(set, expected, mirror, held)
  observeChains(dump, expected, mirror, held)
  const found: Found = { mirror, held, slots: new Map(), balanced: [], stint }
  let readable = true
  for (const [set, elements] of dump.elements) readable &&= await observeElements(set, elements, found)
  const stuck = (chain: string) => expected.chains.has(chain) || parseBalanceName(chain) !== undefined
  if (!readable || held.some(({ id, digest }) => digest === otherShape && expected.sets.has(id.slice(4))))
    return undefined
  if ([...mirror.chains].some(([name, digest]) => digest === otherHook && stuck(name))) return undefined
  const foreign = ({ name, base }: Chain) => base === undefined && !stuck(name) && !ownChain.test(name)
  if (dump.chains.some(foreign)) return undefined
  await observeFrontends(expected.node.family, found)
  return held
}

const otherShape = 'another shape'

/** Elements between two looks at the clock. */
const stride = 50

function observeSet(set: NftSet, { node, sets }: ExpectedTable, mirror: CommittedState, held: Held[]): void {
  if ((set.flags & SET_ANONYMOUS) !== 0) return
  const spec: NftSetSpec | undefined = set.name.startsWith('affinity-')
    ? { name: set.name, shape: 'affinity', comment: '' }
    : sets.get(set.name)
  const wanted = spec === undefined ? undefined : declare(spec, node.family)
  const same =
    wanted !== undefined &&
    wanted.flags === set.flags &&
    wanted.keyType === set.keyType &&
    wanted.keyLength === set.keyLength &&
    wanted.dataType === set.dataType &&
    (readSetComment(set.userdata) ?? '') === spec?.comment
  const digest = same && spec !== undefined ? setDigest(spec) : otherShape
  mirror.sets.set(set.name, digest)
  held.push({ id: `set ${set.name}`, kind: 'set', digest })
}

function observeChains(dump: Dump, { node, chains }: ExpectedTable, mirror: CommittedState, held: Held[]): void {
  const rules = new Map<string, ListedRule[]>()
  for (const rule of dump.rules) {
    const list = rules.get(rule.chain)
    if (list === undefined) rules.set(rule.chain, [rule])
    else list.push(rule)
  }
  for (const chain of dump.chains) {
    const digest = sameHook(chain, chains.get(chain.name)) ? digestOf(rules.get(chain.name) ?? []) : otherHook
    mirror.chains.set(chain.name, digest)
    const balance = parseBalanceName(chain.name)
    if (balance === undefined) held.push({ id: `chain ${chain.name}`, kind: 'chain', digest })
    else {
      const wanted = balanceChains(balance, node).find((spec) => spec.chain.name === chain.name)
      if (wanted !== undefined && wanted.digest !== digest) mirror.stale.set(chain.name, wanted.chain)
      mirror.adoptChain(chain.name)
    }
  }
}

function sameHook(chain: Chain, wanted: ChainSpec | undefined): boolean {
  const hook = wanted?.hook
  if (chain.base === undefined || hook === undefined) return chain.base === undefined && hook === undefined
  const { type, priority, policy } = chain.base
  // Ours accept. With another policy everything that no rule decides would be lost.
  return type === hook.type && chain.base.hook === hook.hook && priority === hook.priority && policy !== 'drop'
}

/** Every rule must carry the same digest and its own place; a rule more, less or in another place is damage. */
function digestOf(rules: readonly ListedRule[]): string {
  const first = rules[0]?.tag?.split(' ')[0]
  if (first === undefined) return rules.length === 0 ? '' : 'damaged'
  return rules.every((rule, i) => rule.tag === `${first} ${i} ${rules.length}`) ? first : 'damaged'
}

interface Found {
  readonly mirror: CommittedState
  readonly held: Held[]
  /** Endpoint by slot number, by set and frontend. */
  readonly slots: Map<string, Map<number, string>>
  /** Frontends by the elements that lead into their chains. */
  readonly balanced: { readonly key: string; readonly digest: string }[]
  readonly stint: TimeSlice
}

/** Undefined for a key that we would never write, such as a range that is no CIDR. */
export function memberReader(spec: NftSetSpec, family: Family): (element: Element) => Member | undefined {
  const shape = shapeOf(spec.shape, family)
  const slotted = shape.value === 'endpoint'
  // The endpoints of a frontend differ in the last part, their slot.
  const parts = shape.key.length - (slotted ? 1 : 0)
  return ({ key, keyEnd, data, comment }) => {
    const bytes = bufferOf(key)
    const text = decodeKey(shape, family, bytes, keyEnd === undefined ? undefined : bufferOf(keyEnd), parts)
    if (text === undefined) return undefined
    if (slotted) {
      const endpoint = (data instanceof Uint8Array ? decodeEndpoint(family, bufferOf(data)) : undefined) ?? ''
      return { key: text, slot: decodeSlot(shape, bytes), value: endpoint }
    }
    const value =
      data === undefined || data instanceof Uint8Array ? '' : 'chain' in data ? `goto ${data.chain}` : data.verdict
    return { key: text, slot: -1, value: comment === undefined ? value : `${value} # ${comment}` }
  }
}

/** False if there is one that we would never write. */
async function observeElements(set: string, members: readonly (Member | undefined)[], found: Found): Promise<boolean> {
  const leads = set === 'service-ips' || set === 'service-nodeports'
  for (let i = 0; i < members.length; i++) {
    if (i % stride === stride - 1 && found.stint.over) await found.stint.yieldLoop()
    const member = members[i]
    if (member === undefined) return false
    const id = `${set} ${member.key}`
    if (member.slot >= 0) {
      addSlot(found.slots, id, member.slot, member.value)
      continue
    }
    const digest = member.value
    found.mirror.setElement(id, digest)
    if (!isBalanced(digest)) found.held.push({ id, kind: 'element', digest })
    else if (leads) found.balanced.push({ key: member.key, digest })
  }
  return true
}

/** The same bytes under another type. */
const bufferOf = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)

const isBalanced = (digest: string): boolean => digest.startsWith('goto lb-') || digest.startsWith('goto np-')

function addSlot(slots: Map<string, Map<number, string>>, owner: string, slot: number, endpoint: string): void {
  const list = slots.get(owner)
  if (list === undefined) slots.set(owner, new Map([[slot, endpoint]]))
  else list.set(slot, endpoint)
}

async function observeFrontends(family: Family, { mirror, held, slots, balanced, stint }: Found): Promise<void> {
  const counts = new Map<string, { cluster: number; local: number }>()
  // Thousands of frontends lead into a few chains.
  const balances = new Map<string, Balance | undefined>()
  let seen = 0
  for (const { key, digest } of balanced) {
    if (++seen % stride === 0 && stint.over) await stint.yieldLoop()
    const note = digest.indexOf(' # ')
    const chain = digest.slice('goto '.length, note < 0 ? undefined : note)
    if (!balances.has(chain)) balances.set(chain, parseBalanceName(chain))
    const balance = balances.get(chain)
    if (balance === undefined) continue
    const set = balance.nodePort ? 'nodeport-endpoints' : 'endpoints'
    counts.set(`${set} ${key}`, balance)
    const have = slots.get(`${set} ${key}`)
    const cluster = takeSlot(have, 0, balance.cluster)
    const local = balance.policy === 'local' ? takeSlot(have, localSlots, balance.local) : []
    const [port, protocol, ip = ''] = key.split(' ').reverse() as [string, 'tcp' | 'udp' | 'sctp', string | undefined]
    const comment = note < 0 ? '' : digest.slice(note + ' # '.length)
    const spec = { ip, protocol, port: Number(port), policy: balance.policy, comment }
    const complete = cluster.length === balance.cluster && local.length === balance.local
    held.push({
      id: frontendId(spec),
      kind: 'frontend',
      digest: complete
        ? frontendDigest({ ...spec, cluster: cluster.sort(), local: local.sort() })
        : `damaged ${family}`,
    })
  }
  for (const [owner, have] of slots) {
    if (++seen % stride === 0 && stint.over) await stint.yieldLoop()
    adoptSlots(owner, have, counts.get(owner), mirror, held)
  }
}

/** Endpoints of the slots from `offset` on, up to the first hole. */
function takeSlot(have: ReadonlyMap<number, string> | undefined, offset: number, count: number): string[] {
  const list: string[] = []
  for (let i = 0; i < count; i++) {
    const endpoint = have?.get(offset + i)
    if (endpoint === undefined) break
    list.push(endpoint)
  }
  return list
}

/** Slots without holes are a table; what lies behind a hole is a stray, which nobody claims and which therefore goes. */
function adoptSlots(
  owner: string,
  have: ReadonlyMap<number, string>,
  counts: { cluster: number; local: number } | undefined,
  mirror: CommittedState,
  held: Held[],
): void {
  const key = owner.slice(owner.indexOf(' ') + 1)
  const adopted = new Set<number>()
  for (const [offset, count] of [[0, counts?.cluster ?? 0] as const, [localSlots, counts?.local ?? 0] as const]) {
    const present = takeSlot(have, offset, have.size)
    for (let i = 0; i < present.length; i++) adopted.add(offset + i)
    if (present.length > 0) mirror.adoptSlots(slotKey(key, offset), { present, count, offset })
  }
  for (const slot of have.keys()) {
    if (adopted.has(slot)) continue
    const id = `${owner} ${slot}`
    mirror.setElement(id, have.get(slot) as string)
    mirror.strays++
    held.push({ id, kind: 'element', digest: have.get(slot) as string })
  }
}
