// Reads all counters of our table and sums them by service port and endpoint.

import type { Family } from '../../../lib/ip.ts'
import { stride, type TimeSlice } from '../../../lib/yielding.ts'
import type { Protocol } from '../../../model/types.ts'
import type { NamedCounter } from '../../../sys/netlink/nft/nft-types.ts'
import type { NftablesSocket } from '../../../sys/netlink/nft/nftables.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import type { PortCounters } from '../../backend.ts'
import { tableName } from '../base.ts'
import { type CommittedState, slotKey } from '../commit/committed.ts'
import type { SlotTable } from '../commit/slot-table.ts'
import { localSlots } from '../rules.ts'
import { type CountedSlot, countedSets, slotReader } from './counted-slots.ts'
import { endpointOf, isEndpointChain } from './counter-names.ts'
import type { SlotCounting } from './slot-counting.ts'

/** After so many readings during which a commit moved counts, the next one makes commits wait. */
const maxAttempts = 3

export interface CountSource {
  /** A socket of its own: a sync does not wait until a hundred thousand slots are read. */
  readonly nft: Pick<NftablesSocket, 'elements' | 'namedCounters' | 'rules'>
  readonly family: Family
  readonly committed: CommittedState
  readonly counting: SlotCounting
  /** Runs work while no transaction is committed. */
  readonly exclusively: <T>(work: () => Promise<T>) => Promise<T>
  readonly slice: TimeSlice
}

/** Counts move from removed slots to named counters. A reading during which that happened is repeated, or it would count them twice. */
export async function readCounts(source: CountSource): Promise<readonly PortCounters[]> {
  const { counting } = source
  for (let attempt = 1; attempt <= maxAttempts; attempt++) {
    const { generation } = counting
    const found = await readOnce(source)
    if (generation === counting.generation) return sum(found, source)
  }
  return source.exclusively(async () => sum(await readOnce(source), source))
}

interface Found {
  readonly slots: readonly CountedSlot[]
  readonly counters: readonly NamedCounter[]
  readonly rules: readonly ListedRule[]
}

/** Lists of which the table has none are not asked for: a table with few services is read at every scrape. */
async function readOnce({ nft, family, committed }: CountSource): Promise<Found> {
  const slots: CountedSlot[] = []
  for (const set of countedSets) {
    const read = slotReader(set, family, Math.floor(Math.random() * 0x4000_0000))
    for (const slot of await nft.elements({ family, table: tableName, set }, read)) {
      if (slot !== undefined) slots.push(slot)
    }
  }
  const counters = committed.counters.size === 0 ? [] : await nft.namedCounters(family, tableName)
  return { slots, counters, rules: hasEndpointChain(committed) ? await nft.rules(family, tableName) : [] }
}

function hasEndpointChain({ chains }: CommittedState): boolean {
  for (const name of chains.keys()) if (isEndpointChain(name)) return true
  return false
}

/** One service port while its counters are summed. */
interface PortSum {
  readonly protocol: Protocol
  connections: number
  readonly endpoints: Map<string, { connections: number }>
}

/** A frontend of a service port, and its slots for all traffic and for traffic that stays on the node. */
interface FrontendSum {
  readonly port: PortSum
  readonly all: SlotTable | undefined
  readonly local: SlotTable | undefined
}

const sum = (found: Found, source: CountSource): Promise<readonly PortCounters[]> => new CountSum(source).run(found)

class CountSum {
  readonly #source: CountSource
  readonly #ports = new Map<string, PortSum>()
  /** Undefined for a frontend that belongs to no service port. */
  readonly #frontends = new Map<string, FrontendSum | undefined>()

  constructor(source: CountSource) {
    this.#source = source
  }

  async run({ slots, counters, rules }: Found): Promise<readonly PortCounters[]> {
    const { slice, counting, family } = this.#source
    let seen = 0
    for (const slot of slots) {
      if (++seen % stride === 0 && slice.over) await slice.yieldLoop()
      this.#addSlot(slot)
    }
    for (const rule of rules) this.#addRule(rule)
    for (const { name, packets, comment = '' } of counters) this.#add(comment, endpointOf(name, family), packets)
    for (const [port, endpoint, count] of counting.pending.entries()) this.#add(port, endpoint, count)
    return [...this.#ports].map(([port, one]) => ({ family, port, ...one }))
  }

  #addSlot({ key, slot, endpoint, connections }: CountedSlot): void {
    const frontend = this.#frontendOf(key)
    if (frontend === undefined) return
    const { port } = frontend
    port.connections += connections
    const isLocal = slot >= localSlots
    const table = isLocal ? frontend.local : frontend.all
    // A slot beyond the last one is about to be swept. Its endpoint may be gone.
    if (table === undefined || slot - (isLocal ? localSlots : 0) >= table.count) return
    const known = port.endpoints.get(endpoint)
    if (known === undefined) port.endpoints.set(endpoint, { connections })
    else known.connections += connections
  }

  /** Looks a frontend up once for all of its slots. */
  #frontendOf(key: string): FrontendSum | undefined {
    const known = this.#frontends.get(key)
    if (known !== undefined || this.#frontends.has(key)) return known
    const { owners, elements, slots } = this.#source.committed
    const port = owners.find(key, elements)
    const found =
      port === undefined
        ? undefined
        : { port: this.#portOf(port, key), all: slots.get(slotKey(key, 0)), local: slots.get(slotKey(key, localSlots)) }
    this.#frontends.set(key, found)
    return found
  }

  /** The rule of an endpoint with affinity. */
  #addRule({ chain, packets, comment: port }: ListedRule): void {
    const { owners } = this.#source.committed
    if (packets === undefined || port === undefined || !isEndpointChain(chain) || !owners.has(port)) return
    const endpoint = endpointOf(chain, this.#source.family)
    const { endpoints } = this.#portOf(port)
    if (endpoint !== '' && !endpoints.has(endpoint)) endpoints.set(endpoint, { connections: 0 })
    this.#add(port, endpoint, packets)
  }

  #add(port: string, endpoint: string, count: number): void {
    if (!this.#source.committed.owners.has(port)) return
    const one = this.#portOf(port)
    one.connections += count
    const own = one.endpoints.get(endpoint)
    if (own !== undefined) own.connections += count
  }

  #portOf(port: string, key?: string): PortSum {
    let one = this.#ports.get(port)
    if (one === undefined) {
      const { owners } = this.#source.committed
      const words = (key ?? owners.firstKeyOf(port)).split(' ')
      one = { protocol: (words.at(-2) ?? 'tcp') as Protocol, connections: 0, endpoints: new Map() }
      this.#ports.set(port, one)
    }
    return one
  }
}
