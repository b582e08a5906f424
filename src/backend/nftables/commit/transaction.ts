// From wanted entries to the fewest kernel operations, given what the kernel holds. Pure: nothing is believed until it is committed.

import type { Steps } from '../../../lib/yielding.ts'
import type { NodeView } from '../../../model/types.ts'
import type { Held } from '../../backend.ts'
import {
  type ChainSpec,
  chainDigest,
  type FrontendSpec,
  frontendKey,
  type NftEntry,
  type NftSetSpec,
  type PlannedRule,
  setDigest,
} from '../entries.ts'
import { type Balance, balanceChains, balanceName, localSlots } from '../rules.ts'
import { type CommittedState, type RetiredSlots, slotKey } from './committed.ts'
import { place } from './slots.ts'

/** One message to the kernel; `entry` is whose fault it is if the kernel refuses it. */
export type Operation = { readonly entry: string } & (
  | { readonly op: 'add-set'; readonly set: NftSetSpec }
  | { readonly op: 'delete-set'; readonly name: string }
  | { readonly op: 'add-chain'; readonly chain: ChainSpec }
  | { readonly op: 'flush-chain'; readonly name: string }
  | { readonly op: 'add-rule'; readonly chain: string; readonly rule: PlannedRule; readonly tag: RuleTag }
  | { readonly op: 'delete-chain'; readonly name: string }
  | {
      readonly op: 'add-element'
      readonly set: string
      readonly key: string
      /** Of an endpoint, behind the key of its frontend. */
      readonly slot?: number
      readonly value: string
    }
  /** All endpoints of a frontend that had none. */
  | {
      readonly op: 'add-slots'
      readonly set: string
      readonly key: string
      readonly offset: number
      readonly values: readonly string[]
    }
  | { readonly op: 'delete-element'; readonly set: string; readonly key: string; readonly slot?: number }
)

/** What every rule of ours carries: the digest of its chain, its place and their number. A chain is ours if all agree. */
export interface RuleTag {
  readonly digest: string
  readonly index: number
  readonly count: number
}

/** In place of a digest: the kernel cannot move a chain to another hook. */
export const otherHook = 'another hook'

/** Operations between two places where a long walk may be interrupted: a rule takes fifty times as long as an element. */
export const stride = 20

/** Collects the operations of one transaction, in the order in which the kernel must see them. */
export class Transaction {
  readonly #mirror: CommittedState
  readonly #node: NodeView
  readonly #structure: Operation[] = []
  readonly #rules: Operation[] = []
  /** By set, so that many fit into one message; what goes before what comes, as a key may be in both. */
  readonly #deletions = new Map<string, Operation[]>()
  readonly #additions = new Map<string, Operation[]>()
  #members = 0
  readonly #removal: Operation[] = []
  /** Elements as this transaction leaves them; undefined: gone. */
  readonly #elements = new Map<string, string | undefined>()
  readonly #slots = new Map<string, { readonly offset: number; readonly slots: readonly string[] }>()
  readonly #chains = new Map<string, string>()
  /** What else the mirror learns when it is committed: rare things, in order, before the others. */
  readonly #commits: (() => void)[] = []

  constructor(mirror: CommittedState, node: NodeView) {
    this.#mirror = mirror
    this.#node = node
  }

  get size(): number {
    return this.#structure.length + this.#rules.length + this.#members + this.#removal.length
  }

  /** Sets, then chains, then rules that refer to both, then elements that refer to chains; removal the other way round. */
  *operations(): Generator<readonly Operation[]> {
    yield this.#structure
    yield this.#rules
    yield* this.#deletions.values()
    yield* this.#additions.values()
    yield this.#removal
  }

  /** The kernel has taken it: so does the mirror. */
  *markCommitted(): Steps<void> {
    for (const run of this.#commits) run()
    let seen = 0
    for (const [id, { offset, slots }] of this.#slots) {
      if (++seen % stride === 0) yield
      this.#mirror.setSlots(id, offset, slots)
    }
    for (const [id, digest] of this.#elements) {
      if (++seen % stride === 0) yield
      this.#mirror.setElement(id, digest)
    }
  }

  put(entry: NftEntry): void {
    if (entry.kind === 'set') this.#putSet(entry.id, entry.set)
    else if (entry.kind === 'chain') this.putChain(entry.id, entry.chain)
    else if (entry.kind === 'element') this.#setElement(entry.id, entry.id, entry.digest)
    else if (entry.kind === 'frontend') {
      this.prepare(entry)
      this.#putFrontend(entry.id, entry.frontend)
    }
  }

  /** The chains that a frontend will lead into, one transaction before it does. */
  prepare(entry: NftEntry): void {
    if (entry.kind !== 'frontend') return
    for (const { chain, digest } of balanceChains(balanceOf(entry.frontend), this.#node)) {
      if (this.#chain(chain.name) !== digest) this.putChain(entry.id, chain)
    }
  }

  /** What was put since under the same name in the kernel stays: an address may have changed from one kind to another. */
  drop({ id, kind, digest }: Held): void {
    const name = id.slice(id.indexOf(' ') + 1)
    if (kind === 'element') {
      if (this.#element(id) === digest) this.#setElement(id, id, undefined)
    } else if (kind === 'frontend') this.#dropFrontend(id, name)
    else if (kind === 'chain') {
      const emptied: Operation[] = [{ op: 'flush-chain', name, entry: id }]
      if (digest !== otherHook && ownChain.test(name)) emptied.push({ ...lastRule, chain: name, entry: id })
      this.#removal.unshift(...emptied)
      this.#commits.push(() => this.#mirror.retireChain(name))
    } else if (kind === 'set') {
      this.#removal.push({ op: 'delete-set', name, entry: id })
      this.#commits.push(() => this.#mirror.sets.delete(name))
    }
  }

  /** Whole, in one go: no packet ever meets half of it. */
  putChain(entry: string, chain: ChainSpec): void {
    const { name } = chain
    const digest = chainDigest(chain)
    if (this.#chain(name) === undefined) {
      this.#structure.push({ op: 'add-chain', chain, entry })
    } else {
      this.#rules.push({ op: 'flush-chain', name, entry })
    }
    for (const [index, rule] of chain.rules.entries()) {
      this.#rules.push({ op: 'add-rule', chain: name, rule, tag: { digest, index, count: chain.rules.length }, entry })
    }
    this.#chains.set(name, digest)
    this.#commits.push(() => this.#mirror.setChain(name, digest))
  }

  /** Clients that affinity sets of this transaction knew before. */
  remember(clients: ReadonlyMap<string, readonly string[]>): void {
    for (const operation of [...this.#structure]) {
      if (operation.op !== 'add-set') continue
      const { entry } = operation
      for (const key of clients.get(operation.set.name) ?? []) {
        this.#add(entry, operation.set.name, key, '')
      }
    }
  }

  /** Removes slots that nothing chooses any more, and chains that nothing enters. */
  sweep(retired: RetiredSlots): void {
    for (const [id, table] of retired.slots) {
      const key = id.replace(/ local$/, '')
      for (let i = table.count; i < table.present.length; i++) {
        this.#delete(`slots ${key}`, slotSet(key), key, table.offset + i)
      }
    }
    // Some of them lead into others: emptied first, they can go in any order.
    for (const name of retired.chains) this.#removal.push({ op: 'flush-chain', name, entry: `chain ${name}` })
    for (const name of retired.chains) this.#removal.push({ op: 'delete-chain', name, entry: `chain ${name}` })
    this.#commits.push(() => this.#mirror.swept(retired))
  }

  #putSet(entry: string, set: NftSetSpec): void {
    this.#structure.push({ op: 'add-set', set, entry })
    this.#commits.push(() => this.#mirror.sets.set(set.name, setDigest(set)))
  }

  #setElement(entry: string, id: string, digest: string | undefined): void {
    const before = this.#element(id)
    if (before === digest) return
    const space = id.indexOf(' ')
    const set = id.slice(0, space)
    const key = id.slice(space + 1)
    if (before !== undefined) this.#delete(entry, set, key)
    if (digest !== undefined) this.#add(entry, set, key, digest)
    this.#elements.set(id, digest)
  }

  #putFrontend(entry: string, spec: FrontendSpec): void {
    const key = frontendKey(spec)
    const nodePort = spec.ip === ''
    const local = spec.policy === 'local'
    this.#placeSlots(entry, key, nodePort, 0, spec.cluster)
    if (local || this.#mirror.slots.has(slotKey(key, localSlots))) {
      this.#placeSlots(entry, key, nodePort, localSlots, local ? spec.local : [])
    }
    const leads = `goto ${balanceName(balanceOf(spec))} # ${spec.comment}`
    this.#setElement(entry, `${verdictSet(nodePort)} ${key}`, leads)
  }

  /** The slots stay for a moment: a packet may have read the verdict and be about to read its slot. */
  #dropFrontend(entry: string, key: string): void {
    const nodePort = /^(tcp|udp|sctp) /.test(key)
    const id = `${verdictSet(nodePort)} ${key}`
    const leads = this.#element(id)
    if (leads !== undefined && /^goto (lb|np)-/.test(leads) && !this.#slots.has(slotKey(key, 0))) {
      this.#setElement(entry, id, undefined)
    }
    for (const offset of [0, localSlots]) {
      const table = this.#mirror.slots.get(slotKey(key, offset))
      if (table !== undefined && !this.#slots.has(slotKey(key, offset))) {
        this.#commits.push(() => this.#mirror.retireSlots(slotKey(key, offset), table, 0))
      }
    }
  }

  #placeSlots(entry: string, key: string, nodePort: boolean, offset: number, wanted: readonly string[]): void {
    const id = slotKey(key, offset)
    const table = this.#mirror.slots.get(id)
    const set = nodePort ? 'nodeport-endpoints' : 'endpoints'
    if (table === undefined && this.#mirror.strays === 0) {
      // As one: at the start there are tens of thousands.
      if (wanted.length > 0) {
        this.#list(this.#additions, set).push({ op: 'add-slots', set, key, offset, values: wanted, entry })
        this.#members += wanted.length - 1
      }
      this.#slots.set(id, { offset, slots: wanted })
      return
    }
    const present = table?.present ?? []
    const { slots, written } = place(present.slice(0, table?.count ?? 0), wanted)
    for (const index of written) {
      const value = slots[index] as string
      // Left over from before, and not yet swept.
      if (present[index] === value) continue
      const slot = offset + index
      const stray = this.#mirror.strays > 0 && this.#takeStray(`${set} ${key} ${slot}`)
      if (stray || index < present.length) this.#delete(entry, set, key, slot)
      this.#add(entry, set, key, value, slot)
    }
    this.#slots.set(id, { offset, slots })
  }

  /** A stray: the kernel has it, but after a hole, where we do not count slots. */
  #takeStray(id: string): boolean {
    if (!this.#mirror.elements.has(id)) return false
    this.#elements.set(id, undefined)
    return true
  }

  #delete(entry: string, set: string, key: string, slot?: number): void {
    const list = this.#list(this.#deletions, set)
    if (slot === undefined) list.push({ op: 'delete-element', set, key, entry })
    else list.push({ op: 'delete-element', set, key, slot, entry })
  }

  #add(entry: string, set: string, key: string, value: string, slot?: number): void {
    const list = this.#list(this.#additions, set)
    if (slot === undefined) list.push({ op: 'add-element', set, key, value, entry })
    else list.push({ op: 'add-element', set, key, slot, value, entry })
  }

  #list(lists: Map<string, Operation[]>, set: string): Operation[] {
    this.#members++
    let list = lists.get(set)
    if (list === undefined) {
      list = []
      lists.set(set, list)
    }
    return list
  }

  /** As the operations so far leave it. */
  #element(id: string): string | undefined {
    const own = this.#elements.get(id)
    return own !== undefined || this.#elements.has(id) ? own : this.#mirror.elements.get(id)
  }

  #chain(name: string): string | undefined {
    return this.#chains.get(name) ?? this.#mirror.chains.get(name)
  }
}

const balanceOf = (spec: FrontendSpec): Balance => ({
  nodePort: spec.ip === '',
  policy: spec.policy,
  cluster: spec.cluster.length,
  local: spec.local.length,
})

/** Chains of services with affinity. */
export const ownChain = /^(service|local|external|endpoint)-/

/** For a packet that was on its way into a chain when the chain was given up: dropped, it is sent again and finds the new way. */
const lastRule = {
  op: 'add-rule',
  rule: { statements: [{ kind: 'drop' }] },
  tag: { digest: 'retired', index: 0, count: 1 },
} as const

const verdictSet = (nodePort: boolean): string => (nodePort ? 'service-nodeports' : 'service-ips')

const slotSet = (key: string): string => (/^(tcp|udp|sctp) /.test(key) ? 'nodeport-endpoints' : 'endpoints')
