// Turns wanted entries into the fewest kernel operations, given what the kernel holds. Changes the committed state only after a commit. Pure.

import type { Steps } from '../../../lib/yielding.ts'
import type { Held } from '../../backend.ts'
import { isEndpointChain } from '../count/counter-names.ts'
import { namesPort, readComment } from '../count/frontend-owners.ts'
import {
  type ChainSpec,
  chainDigest,
  type FrontendSpec,
  frontendKey,
  type NftEntry,
  type NftSetSpec,
  readFrontend,
  type Statement,
  setDigest,
} from '../entries.ts'
import {
  type Balance,
  type BalanceChains,
  balanceName,
  balanceOf,
  isNodePort,
  localSlots,
  readBalance,
} from '../rules.ts'
import { type CommittedState, type RetiredObjects, slotKey } from './committed.ts'
import { finalDrop, type Operation } from './operation.ts'
import { placeEndpoints, placeTable } from './slots.ts'

/** Stands for the digest of a chain at another hook: the kernel cannot move a chain. */
export const otherHook = 'another hook'

/** Long work may pause after this many operations. A rule takes fifty times as long as an element. */
export const operationStride = 20

/** Measured with 3,000 sets, and with 2,000 source ranges: 0.2 ms each, where another element takes a hundredth of that. */
const slowWeight = 20
/** As many take the kernel two milliseconds. */
const fewSlow = 10
/** Removals of chains and rules that take the kernel two milliseconds. */
const fewRemovals = 100

/** Collects the operations of one transaction, in the order in which the kernel must see them. */
export class Transaction {
  /** What the kernel held before. */
  readonly committed: CommittedState
  readonly #balanceChains: BalanceChains
  readonly #structure: Operation[] = []
  readonly #rules: Operation[] = []
  /** Elements by set, so that many fit into one message. Deletions precede additions, because a key may be in both. */
  readonly #deletions = new Map<string, Operation[]>()
  readonly #additions = new Map<string, Operation[]>()
  #elementCount = 0
  /** Sets and rules that name one, as the kernel compares the name with all others, and source ranges, which it sorts into a tree. */
  #slowCount = 0
  readonly #removals: Operation[] = []
  /** Elements as this transaction leaves them; undefined for deleted ones. */
  readonly #elements = new Map<string, string | undefined>()
  readonly #slots = new Map<string, { readonly offset: number; readonly slots: readonly string[] }>()
  readonly #chains = new Map<string, string>()
  /** Counters that this transaction deletes or writes again. */
  readonly #written = new Set<string>()
  /** Other updates of the committed state. They are rare, and run in order before those of slots and elements. */
  readonly #updates: (() => void)[] = []

  constructor(committed: CommittedState, balanceChains: BalanceChains) {
    this.committed = committed
    this.#balanceChains = balanceChains
  }

  /** The number of operations. */
  get size(): number {
    return this.#structure.length + this.#rules.length + this.#elementCount + this.#removals.length
  }

  /** The number of operations, with those that take the kernel longer counted several times. */
  get weight(): number {
    return this.size + this.#slowCount * (slowWeight - 1)
  }

  /** True if one of its operations takes the kernel long. */
  get hasSlow(): boolean {
    return this.#slowCount > 0
  }

  /** True if the kernel works on it for milliseconds, however short it is. */
  get isSlow(): boolean {
    return this.#slowCount >= fewSlow || this.#removals.length >= fewRemovals
  }

  /** Yields sets, then chains, then rules that refer to both, then elements that refer to chains; removals in the opposite order. */
  *operations(): Generator<readonly Operation[]> {
    yield this.#structure
    yield this.#rules
    yield* this.#deletions.values()
    yield* this.#additions.values()
    yield this.#removals
  }

  /** Updates the committed state after the kernel has committed the transaction. */
  *markCommitted(): Steps<void> {
    for (const update of this.#updates) update()
    let seen = 0
    for (const [id, { offset, slots }] of this.#slots) {
      if (++seen % operationStride === 0) yield
      this.committed.setSlots(id, offset, slots)
    }
    for (const [id, digest] of this.#elements) {
      if (++seen % operationStride === 0) yield
      this.committed.setElement(id, digest)
    }
  }

  put(entry: NftEntry): void {
    if (entry.kind === 'set') this.#putSet(entry.id, entry.set)
    else if (entry.kind === 'chain') this.#putChain(entry.id, entry.chain)
    else if (entry.kind === 'element') this.#setElement(entry.id, entry.id, entry.digest)
    else if (entry.kind === 'frontend') {
      const spec = readFrontend(entry)
      const balance = balanceOf(spec)
      this.#putBalanceChains(entry.id, balance)
      this.#putFrontend(entry.id, spec, balanceName(balance))
    }
  }

  /** Writes the chains that a frontend will lead into, one transaction before it does. */
  prepare(entry: NftEntry): void {
    if (entry.kind === 'frontend') this.#putBalanceChains(entry.id, readBalance(entry))
  }

  /** An object that was put since then under the same name stays: an address may have changed from one kind of entry to another. */
  drop({ id, kind, digest }: Held): void {
    const name = id.slice(id.indexOf(' ') + 1)
    if (kind === 'element') {
      if (this.#element(id) === digest) this.#setElement(id, id, undefined)
    } else if (kind === 'frontend') this.#dropFrontend(id, name)
    else if (kind === 'chain') {
      const emptied: Operation[] = [{ op: 'flush-chain', name, entry: id }]
      if (digest !== otherHook && affinityChain.test(name)) emptied.push({ ...finalDrop, chain: name, entry: id })
      this.#removals.unshift(...emptied)
      this.#updates.push(() => this.committed.retireChain(name))
    } else if (kind === 'set') {
      this.#slowCount++
      this.#removals.push({ op: 'delete-set', name, entry: id })
      this.#updates.push(() => this.committed.sets.delete(name))
    }
  }

  /** Writes the chains that the last observation found damaged. */
  repairChains(): void {
    for (const [name, chain] of this.committed.damagedChains) this.#putChain(`chain ${name}`, chain)
  }

  /** Adds clients to the affinity sets that this transaction creates. */
  addClients(clients: ReadonlyMap<string, readonly string[]>): void {
    for (const operation of this.#structure) {
      if (operation.op !== 'add-set') continue
      const { entry, set } = operation
      for (const key of clients.get(set.name) ?? []) {
        this.#add({ op: 'add-element', set: set.name, key, slot: undefined, value: '', entry })
      }
    }
  }

  /** Removes slots that nothing chooses any more, and chains that nothing leads into. */
  sweep(retired: RetiredObjects): void {
    for (const [id, table] of retired.slots) {
      const key = id.replace(/ local$/, '')
      const set = slotSet(isNodePort(key))
      for (let i = table.count; i < table.size; i++) {
        this.#delete({ op: 'delete-element', set, key, slot: table.offset + i, entry: `slots ${key}` })
      }
    }
    // Some of the chains lead into others. When all are empty, they can be deleted in any order.
    for (const name of retired.chains) this.#removals.push({ op: 'flush-chain', name, entry: `chain ${name}` })
    for (const name of retired.chains) this.#removals.push({ op: 'delete-chain', name, entry: `chain ${name}` })
    this.#updates.push(() => this.committed.removeSwept(retired))
  }

  /** Writes a counter that no rule increments, or deletes it. `update` runs after the commit. */
  setCounter(name: string, counter: { port: string; packets: number } | undefined, update: () => void): void {
    const { counters } = this.committed
    const entry = `counter ${name}`
    if (counters.has(name) && !this.#written.has(name)) this.#removals.push({ op: 'delete-counter', name, entry })
    this.#written.add(name)
    if (counter !== undefined) this.#removals.push({ op: 'add-counter', name, ...counter, entry })
    this.#updates.push(update, () => void (counter === undefined ? counters.delete(name) : counters.add(name)))
  }

  /** Begins the next transaction on the same table. */
  beginNext(): Transaction {
    return new Transaction(this.committed, this.#balanceChains)
  }

  afterCommit(update: () => void): void {
    this.#updates.push(update)
  }

  /** The slots of a map that this transaction removes or replaces. */
  *removedSlots(set: string): Generator<{ readonly set: string; readonly key: string; readonly slot: number }> {
    for (const operation of this.#deletions.get(set) ?? []) {
      if (operation.op !== 'delete-element' || operation.slot === undefined) continue
      yield { set, key: operation.key, slot: operation.slot }
    }
  }

  /** The chains of endpoints with affinity whose rules this transaction removes or replaces. */
  *removedEndpointChains(): Generator<string> {
    for (const list of [this.#rules, this.#removals]) {
      for (const one of list) {
        if (one.op !== 'flush-chain' || !isEndpointChain(one.name)) continue
        if ((this.committed.chains.get(one.name) ?? '') !== '') yield one.name
      }
    }
  }

  putsChain(name: string): boolean {
    return this.#chains.has(name)
  }

  /** The endpoints of each service port, for a transaction that writes a whole table. */
  endpointsByPort(): ReadonlyMap<string, ReadonlySet<string>> {
    const ports = new Map<string, Set<string>>()
    for (const [id, digest] of this.#elements) {
      const port = namesPort(id) ? readComment(digest) : undefined
      if (port === undefined) continue
      const endpoints = ports.get(port) ?? new Set()
      ports.set(port, endpoints)
      const key = id.slice(id.indexOf(' ') + 1)
      for (const offset of [0, localSlots]) {
        for (const endpoint of this.#slots.get(slotKey(key, offset))?.slots ?? []) endpoints.add(endpoint)
      }
    }
    return ports
  }

  /** The endpoints in the slots of a frontend as this transaction leaves them; undefined if it does not change them. */
  slotsOf(id: string): readonly string[] | undefined {
    return this.#slots.get(id)?.slots
  }

  #putSet(entry: string, set: NftSetSpec): void {
    this.#slowCount++
    this.#structure.push({ op: 'add-set', set, entry })
    this.#updates.push(() => this.committed.sets.set(set.name, setDigest(set)))
  }

  /** Writes all rules of the chain in one transaction, so that no packet ever meets half of them. */
  #putChain(entry: string, chain: ChainSpec): void {
    const { name } = chain
    const digest = chainDigest(chain)
    if (this.#chain(name) === undefined) {
      this.#structure.push({ op: 'add-chain', chain, entry })
    } else {
      this.#rules.push({ op: 'flush-chain', name, entry })
    }
    for (const [index, rule] of chain.rules.entries()) {
      if (rule.statements.some(isSlow)) this.#slowCount++
      this.#rules.push({ op: 'add-rule', chain: name, rule, tag: { digest, index, count: chain.rules.length }, entry })
    }
    this.#chains.set(name, digest)
    this.#updates.push(() => this.committed.setChain(name, digest))
  }

  #putBalanceChains(entry: string, balance: Balance): void {
    for (const { chain, digest } of this.#balanceChains.find(balance)) {
      if (this.#chain(chain.name) !== digest) this.#putChain(entry, chain)
    }
  }

  #setElement(entry: string, id: string, digest: string | undefined): void {
    const before = this.#element(id)
    if (before === digest) return
    const space = id.indexOf(' ')
    const set = id.slice(0, space)
    const key = id.slice(space + 1)
    if (set === 'firewall-allowed') this.#slowCount++
    if (before !== undefined) this.#delete({ op: 'delete-element', set, key, slot: undefined, entry })
    if (digest !== undefined) this.#add({ op: 'add-element', set, key, slot: undefined, value: digest, entry })
    this.#elements.set(id, digest)
  }

  #putFrontend(entry: string, spec: FrontendSpec, chain: string): void {
    const key = frontendKey(spec)
    const set = slotSet(spec.ip === '')
    const isLocal = spec.policy === 'local'
    const place = spec.choice === 'hash' ? placeTable : placeEndpoints
    this.#placeSlots({ entry, set, key, offset: 0, place }, spec.cluster)
    const { mayHaveLocalSlots, slots } = this.committed
    if (isLocal || (mayHaveLocalSlots && slots.has(slotKey(key, localSlots)))) {
      this.#placeSlots({ entry, set, key, offset: localSlots, place }, isLocal ? spec.local : [])
    }
    this.#setElement(entry, `${verdictSet(spec.ip === '')} ${key}`, `goto ${chain} # ${spec.comment}`)
  }

  /** The slots stay for a moment: a packet may have read the verdict and be about to read its slot. */
  #dropFrontend(entry: string, key: string): void {
    const id = `${verdictSet(isNodePort(key))} ${key}`
    const verdict = this.#element(id)
    if (verdict !== undefined && /^goto (lb|np)-/.test(verdict) && !this.#slots.has(slotKey(key, 0))) {
      this.#setElement(entry, id, undefined)
    }
    for (const offset of [0, localSlots]) {
      const table = this.committed.slots.get(slotKey(key, offset))
      if (table !== undefined && !this.#slots.has(slotKey(key, offset))) {
        this.#updates.push(() => this.committed.retireSlots(slotKey(key, offset), table, 0))
      }
    }
  }

  #placeSlots({ entry, set, key, offset, place }: SlotPlace, wanted: readonly string[]): void {
    const id = slotKey(key, offset)
    const table = this.committed.slots.get(id)
    if (table === undefined && this.committed.strays === 0) {
      // One operation for all slots: at the start there are tens of thousands.
      if (wanted.length > 0) this.#addSlots({ op: 'add-slots', set, key, offset, values: wanted, entry })
      this.#slots.set(id, { offset, slots: wanted })
      return
    }
    const present = table?.present ?? []
    const { slots, written } = place(present.slice(0, table?.count ?? 0), wanted)
    for (const index of written) {
      const value = slots[index] as string
      // A retired slot may still hold the same endpoint.
      if (present[index] === value) continue
      const slot = offset + index
      const isStray = this.committed.strays > 0 && this.#removeStray(`${set} ${key} ${slot}`)
      if (isStray || index < present.length) this.#delete({ op: 'delete-element', set, key, slot, entry })
      this.#add({ op: 'add-element', set, key, slot, value, entry })
    }
    this.#slots.set(id, { offset, slots })
  }

  /** Returns true if the kernel has the slot although it is not in the slot table: it was found after a hole. */
  #removeStray(id: string): boolean {
    if (!this.committed.elements.has(id)) return false
    this.#elements.set(id, undefined)
    return true
  }

  #delete(operation: Operation & { op: 'delete-element' }): void {
    this.#elementCount++
    listOf(this.#deletions, operation.set).push(operation)
  }

  #add(operation: Operation & { op: 'add-element' }): void {
    this.#elementCount++
    listOf(this.#additions, operation.set).push(operation)
  }

  #addSlots(operation: Operation & { op: 'add-slots' }): void {
    this.#elementCount += operation.values.length
    listOf(this.#additions, operation.set).push(operation)
  }

  /** The element as the operations so far leave it. */
  #element(id: string): string | undefined {
    const own = this.#elements.get(id)
    return own !== undefined || this.#elements.has(id) ? own : this.committed.elements.get(id)
  }

  #chain(name: string): string | undefined {
    return this.#chains.get(name) ?? this.committed.chains.get(name)
  }
}

/** Where the slots of a frontend are, and the entry that they belong to. */
interface SlotPlace {
  readonly entry: string
  readonly set: string
  readonly key: string
  readonly offset: number
  readonly place: typeof placeEndpoints
}

function listOf(lists: Map<string, Operation[]>, set: string): Operation[] {
  let list = lists.get(set)
  if (list === undefined) {
    list = []
    lists.set(set, list)
  }
  return list
}

/** Matches the names of the chains that services with affinity have. */
export const affinityChain = /^(service|local|external|endpoint)-/

/** Every endpoint has an affinity set, so there may be many names. */
const isSlow = (statement: Statement): boolean =>
  (statement.kind === 'in-set' || statement.kind === 'remember') && statement.set.startsWith('affinity-')

const verdictSet = (nodePort: boolean): string => (nodePort ? 'service-nodeports' : 'service-ips')

const slotSet = (nodePort: boolean): string => (nodePort ? 'nodeport-endpoints' : 'endpoints')
