// Keeps what slots have counted when slots are removed. Every slot of an endpoint map counts its connections in the kernel, and that count
// would be lost with the slot. After a transaction that removes slots which have counted something, another one writes their counts into
// named counters of the table, so that the table alone holds all counts, also for the next process.
//
// The kernel reports the counts of removed slots as they were at the commit (NLM_F_ECHO). They are not read before it: most slots have
// counted nothing, since a node has connections to few services. Counts are lost only if the process is killed between the two transactions.

import type { Family } from '../../../lib/ip.ts'
import type { NamedCounter } from '../../../sys/netlink/nft/nft-types.ts'
import type { NftablesSocket, RemovedObjects } from '../../../sys/netlink/nft/nftables.ts'
import { tableName } from '../base.ts'
import { type CommittedState, slotKey } from '../commit/committed.ts'
import type { Transaction } from '../commit/transaction.ts'
import { localSlots } from '../rules.ts'
import { CarriedCounts } from './carried-counts.ts'
import { type CountedSlot, countedSets, SlotDecoder } from './counted-slots.ts'
import { carriedName, endpointOf, isCarried } from './counter-names.ts'

/** With more frontends, an endpoint counts as gone when it leaves one of them. */
const maxFrontends = 50

/** Where the count of a removed slot goes, and how much of it was written there. */
export interface CarriedSlot {
  readonly port: string
  /** Undefined if the kernel names it when the slot is removed. */
  readonly endpoint: string | undefined
  readonly written: number
}

/** An endpoint of a service port, and a frontend that had it. */
interface GoneEndpoint {
  readonly port: string
  readonly key: string
  readonly endpoint: string
}

export class SlotCounting {
  readonly #nft: NftablesSocket
  readonly #family: Family
  readonly #decoder: SlotDecoder
  /** What the named counters in the kernel have. */
  #carried = new CarriedCounts()
  /** What must still be added to them. */
  #pending = new CarriedCounts()
  /** The slots and rules that the current transaction removes, by `slotId` and `chainId`. */
  #removed = new Map<string, CarriedSlot>()
  /** Endpoints that are gone with the current transaction: `ns/name:port 10.0.0.1:80`. */
  readonly #merged = new Set<string>()
  /** Endpoints whose slots are gone, and whose own counters must be merged with those of others that are gone. */
  #gone: GoneEndpoint[] = []
  /** Grows with every commit that may have moved counts. */
  generation = 0

  constructor(nft: NftablesSocket, family: Family) {
    this.#nft = nft
    this.#family = family
    this.#decoder = new SlotDecoder(family)
  }

  get pending(): CarriedCounts {
    return this.#pending
  }

  get hasPending(): boolean {
    return this.#pending.size > 0 || this.#gone.length > 0
  }

  /** Called with the named counters of a table that is adopted. */
  adopt(counters: readonly NamedCounter[]): void {
    this.#carried = new CarriedCounts()
    for (const { name, packets, comment } of counters) {
      if (isCarried(name)) this.#carried.add(comment ?? '', endpointOf(name, this.#family), packets)
    }
  }

  /** Adds to the transaction what keeps the counts of the slots and counters that it removes. */
  async prepare(transaction: Transaction): Promise<void> {
    this.#removed = new Map()
    this.#merged.clear()
    const moved = this.#pending.copy()
    for (const set of countedSets) this.#noteRemoved(transaction, set)
    this.#mergeWaiting(transaction, moved)
    await this.#readChains(transaction, moved)
    this.#write(transaction, moved)
  }

  /** As `prepare`, for a transaction that makes a new table where the kernel has none that counts. */
  prepareNew(transaction: Transaction): void {
    const moved = this.#pending.copy()
    moved.addAll(this.#carried)
    this.#carried = new CarriedCounts()
    this.#write(transaction, moved)
  }

  /** As `prepare`, for a transaction that exchanges a table whose counts were read. */
  prepareExchange(transaction: Transaction, carried: CarriedCounts, written: ReadonlyMap<string, CarriedSlot>): void {
    const moved = this.#pending.copy()
    moved.addAll(carried)
    this.#carried = new CarriedCounts()
    this.#removed = new Map(written)
    this.#write(transaction, moved)
  }

  /** Called with what the kernel reported when it committed the prepared transaction, after the committed state was updated. */
  settle({ elements: lists, rules }: RemovedObjects, committed: CommittedState): void {
    this.generation++
    const alive = new AliveEndpoints(committed)
    for (const { set, elements } of lists) {
      for (const element of elements) {
        // Nothing was counted, and no counter has to be merged.
        if ((element.packets ?? 0) === 0 && this.#carried.size === 0) continue
        const slot = this.#decoder.decode(set, element)
        if (slot !== undefined) this.#settleSlot(slotId(set, slot), slot, alive)
      }
    }
    for (const { chain, packets } of rules) {
      const carried = packets === undefined ? undefined : this.#removed.get(chainId(chain))
      if (carried !== undefined) this.#settleOne(carried, carried.endpoint ?? '', packets ?? 0)
    }
    this.#removed = new Map()
  }

  #settleSlot(id: string, slot: CountedSlot, alive: AliveEndpoints): void {
    const carried = this.#removed.get(id)
    if (carried === undefined) return
    const { port } = carried
    if (carried.endpoint !== undefined) this.#settleOne(carried, carried.endpoint, slot.connections)
    else if (slot.connections > 0 || this.#carried.get(port, slot.endpoint) > 0) {
      const isAlive = alive.has(port, slot)
      this.#settleOne(carried, isAlive ? slot.endpoint : '', slot.connections)
      if (!isAlive && this.#carried.get(port, slot.endpoint) > 0) {
        this.#gone.push({ port, key: slot.key, endpoint: slot.endpoint })
      }
    }
  }

  #settleOne({ port, written }: CarriedSlot, endpoint: string, counted: number): void {
    this.#pending.add(port, endpoint, counted - written)
  }

  /** Removes the counters of service ports that have been gone for a while. */
  sweep(transaction: Transaction): void {
    const { owners } = transaction.committed
    for (const port of owners.takeRetired()) {
      if (owners.has(port)) continue
      for (const endpoint of this.#carried.endpointsOf(port)) this.#delete(transaction, port, endpoint)
      this.#pending.delete(port)
    }
  }

  /** Notes whose slots are removed: afterwards the frontend may belong to another service port. */
  #noteRemoved(transaction: Transaction, set: string): void {
    const { owners, elements } = transaction.committed
    for (const position of transaction.removedSlots(set)) {
      const port = owners.find(position.key, elements)
      // Nobody asks for the counts of a service that is gone.
      if (port === undefined || !owners.has(port)) continue
      this.#removed.set(slotId(set, position), { port, endpoint: undefined, written: 0 })
    }
  }

  /** Merges the counters of endpoints that an earlier transaction removed, unless they are back. */
  #mergeWaiting(transaction: Transaction, moved: CarriedCounts): void {
    if (this.#gone.length === 0) return
    const alive = new AliveEndpoints(transaction.committed, transaction)
    const gone = this.#gone.filter((one) => this.#carried.get(one.port, one.endpoint) > 0 && !alive.has(one.port, one))
    this.#gone = gone
    for (const { port, endpoint } of gone) this.#mergeGone(transaction, port, endpoint, moved)
    transaction.afterCommit(() => {
      this.#gone = []
    })
  }

  /** The rules of endpoints with affinity count too. */
  async #readChains(transaction: Transaction, moved: CarriedCounts): Promise<void> {
    for (const chain of transaction.removedEndpointChains()) {
      const rules = await this.#nft.rulesOf(this.#family, tableName, chain).catch(() => [])
      const { comment: port, packets } = rules.find((rule) => rule.packets !== undefined) ?? {}
      if (port === undefined || packets === undefined || !transaction.committed.owners.has(port)) continue
      const own = endpointOf(chain, this.#family)
      const endpoint = transaction.putsChain(chain) ? own : ''
      this.#removed.set(chainId(chain), { port, endpoint, written: packets })
      moved.add(port, endpoint, packets)
      if (endpoint === '') this.#mergeGone(transaction, port, own, moved)
    }
  }

  /** An endpoint that is gone has no count of its own any more. */
  #mergeGone(transaction: Transaction, port: string, endpoint: string, moved: CarriedCounts): void {
    const id = `${port} ${endpoint}`
    const count = this.#carried.get(port, endpoint) + moved.get(port, endpoint)
    if (count === 0 || endpoint === '' || this.#merged.has(id)) return
    this.#merged.add(id)
    moved.take(port, endpoint)
    moved.add(port, '', count)
    this.#delete(transaction, port, endpoint)
  }

  #write(transaction: Transaction, moved: CarriedCounts): void {
    for (const [port, endpoint, count] of moved.entries()) {
      const packets = this.#carried.get(port, endpoint) + count
      transaction.setCounter(carriedName(port, endpoint), { port, packets }, () =>
        this.#carried.set(port, endpoint, packets),
      )
    }
    transaction.afterCommit(() => {
      this.#pending = new CarriedCounts()
    })
  }

  #delete(transaction: Transaction, port: string, endpoint: string): void {
    transaction.setCounter(carriedName(port, endpoint), undefined, () => this.#carried.take(port, endpoint))
  }
}

/** Which endpoints service ports have in the committed state, or after a transaction. Computed once per service port. */
class AliveEndpoints {
  readonly #committed: CommittedState
  readonly #transaction: Transaction | undefined
  readonly #endpoints = new Map<string, ReadonlySet<string>>()

  constructor(committed: CommittedState, transaction?: Transaction) {
    this.#committed = committed
    this.#transaction = transaction
  }

  has(port: string, { key, endpoint }: Pick<CountedSlot, 'key' | 'endpoint'>): boolean {
    let found = this.#endpoints.get(port)
    if (found === undefined) {
      const keys = this.#committed.owners.keysOf(port, maxFrontends) ?? [key]
      found = new Set(keys.flatMap((one) => [0, localSlots].flatMap((offset) => this.#slots(one, offset))))
      this.#endpoints.set(port, found)
    }
    return found.has(endpoint)
  }

  #slots(key: string, offset: number): readonly string[] {
    const id = slotKey(key, offset)
    return this.#transaction?.slotsOf(id) ?? chosenSlots(this.#committed, id)
  }
}

function chosenSlots({ slots }: CommittedState, id: string): readonly string[] {
  const table = slots.get(id)
  return table === undefined ? [] : table.present.slice(0, table.count)
}

export const chainId = (chain: string): string => `chain ${chain}`

export const slotId = (set: string, { key, slot }: { readonly key: string; readonly slot: number }): string =>
  `${set} ${key} ${slot}`
