// Reads what a table counted before it is exchanged, and decides from which numbers the slots of the new table count.

import type { Family } from '../../../lib/ip.ts'
import { stride, type TimeSlice } from '../../../lib/yielding.ts'
import type { NftablesSocket } from '../../../sys/netlink/nft/nftables.ts'
import { tableName } from '../base.ts'
import { slotKey } from '../commit/committed.ts'
import { SetCodec } from '../commit/set-codec.ts'
import type { Transaction } from '../commit/transaction.ts'
import { localSlots } from '../rules.ts'
import { CarriedCounts } from './carried-counts.ts'
import { type CountedSlot, countedSets, slotReader } from './counted-slots.ts'
import { endpointOf, isEndpointChain } from './counter-names.ts'
import { namingSets } from './frontend-owners.ts'
import { type InitialCounts, initialKey } from './initial-counts.ts'
import { type CarriedSlot, chainId, slotId } from './slot-counting.ts'

interface OldCounts {
  readonly slots: readonly (CountedSlot & { readonly set: string })[]
  /** Service port by frontend. */
  readonly owners: ReadonlyMap<string, string>
  readonly counters: readonly NamedCount[]
  /** By chain. */
  readonly rules: readonly NamedCount[]
}

interface NamedCount {
  readonly name: string
  readonly port: string
  readonly packets: number
}

/** Returns undefined if the table in the kernel does not count. Reads as late as possible: packets go on to be counted. */
export async function readInitialCounts(
  nft: NftablesSocket,
  family: Family,
  transaction: Transaction,
  slice: TimeSlice,
): Promise<InitialCounts | undefined> {
  const sets = await nft.sets(family, tableName)
  if (!countedSets.every((name) => sets.some((set) => set.name === name && set.counter === true))) return undefined
  return distribute(await readOld(nft, family), family, transaction, slice)
}

async function readOld(nft: NftablesSocket, family: Family): Promise<OldCounts> {
  const owners = new Map<string, string>()
  for (const set of namingSets) {
    const codec = new SetCodec(
      set.endsWith('nodeports') ? 'protocol . port : verdict' : 'address . protocol . port : verdict',
      family,
    )
    await nft.elements({ family, table: tableName, set }, (element) => {
      const { key, comment } = element.copy()
      const text = codec.readKey(Buffer.from(key))
      if (text !== undefined && comment !== undefined) owners.set(text, comment)
    })
  }
  const named = await nft.namedCounters(family, tableName)
  const counters = named.map(({ name, packets, comment }) => ({ name, packets, port: comment ?? '' }))
  const rules = (await nft.rules(family, tableName)).flatMap(({ chain, packets, comment }) =>
    packets === undefined || !isEndpointChain(chain) ? [] : [{ name: chain, packets, port: comment ?? '' }],
  )
  const slots: (CountedSlot & { set: string })[] = []
  for (const set of countedSets) {
    const read = slotReader(set, family, Math.floor(Math.random() * 0x4000_0000))
    const found = await nft.elements({ family, table: tableName, set }, read)
    for (const slot of found) if (slot !== undefined) slots.push({ ...slot, set })
  }
  return { slots, owners, counters, rules }
}

/** A slot that the new table has counts on from the old number; all other counts are carried, if their service port still exists. */
async function distribute(
  { slots, owners, counters, rules }: OldCounts,
  family: Family,
  transaction: Transaction,
  slice: TimeSlice,
): Promise<InitialCounts> {
  const counts = new NewCounts(transaction)
  const kept = new KeptEndpoints(transaction)
  let seen = 0
  for (const { set, key, slot, endpoint, connections } of slots) {
    if (++seen % stride === 0 && slice.over) await slice.yieldLoop()
    const offset = slot >= localSlots ? localSlots : 0
    const isKept = kept.has(slotKey(key, offset), endpoint)
    const place = { id: slotId(set, { key, slot }), initial: isKept ? initialKey(key, offset, endpoint) : '' }
    counts.move(place, { port: owners.get(key) ?? '', endpoint, written: connections })
  }
  for (const { name, port, packets } of rules) {
    const place = { id: chainId(name), initial: transaction.putsChain(name) ? name : '' }
    counts.move(place, { port, endpoint: endpointOf(name, family), written: packets })
  }
  for (const { name, port, packets } of counters) counts.carry(port, endpointOf(name, family), packets)
  return { ...counts, chains: rules.map(({ name }) => name) }
}

/** A hash table has thousands of slots: they are not searched once for each. */
const fewSlots = 100

/** Knows which endpoints a frontend has in the new table. */
class KeptEndpoints {
  readonly #transaction: Transaction
  readonly #large = new Map<string, ReadonlySet<string>>()

  constructor(transaction: Transaction) {
    this.#transaction = transaction
  }

  has(id: string, endpoint: string): boolean {
    const slots = this.#transaction.slotsOf(id)
    if (slots === undefined || slots.length <= fewSlots) return slots?.includes(endpoint) === true
    const known = this.#large.get(id) ?? new Set(slots)
    this.#large.set(id, known)
    return known.has(endpoint)
  }
}

/** The counts of a new table while they are collected. */
class NewCounts {
  readonly packets = new Map<string, number>()
  readonly carried = new CarriedCounts()
  readonly written = new Map<string, CarriedSlot>()
  readonly #endpoints: ReadonlyMap<string, ReadonlySet<string>>

  constructor(transaction: Transaction) {
    this.#endpoints = transaction.endpointsByPort()
  }

  /** `initial` is the place in the new table; '' if it has none. */
  move(
    { id, initial }: { readonly id: string; readonly initial: string },
    slot: CarriedSlot & { readonly endpoint: string },
  ): void {
    const { port, endpoint, written } = slot
    if (initial !== '') this.packets.set(initial, (this.packets.get(initial) ?? 0) + written)
    const kept = initial === '' ? this.carry(port, endpoint, written) : endpoint
    if (this.#endpoints.has(port)) this.written.set(id, { port, endpoint: kept, written })
  }

  /** Returns the endpoint under which the count is kept. */
  carry(port: string, endpoint: string, count: number): string {
    const alive = this.#endpoints.get(port)
    const kept = alive?.has(endpoint) === true ? endpoint : ''
    if (alive !== undefined) this.carried.add(port, kept, count)
    return kept
  }
}
