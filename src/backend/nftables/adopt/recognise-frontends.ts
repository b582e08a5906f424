// Recognises elements and frontends in the members of our sets: a frontend is a verdict element and numbered slots of endpoints.

import { stride, type TimeSlice } from '../../../lib/yielding.ts'
import type { Held } from '../../backend.ts'
import { type CommittedState, slotKey } from '../commit/committed.ts'
import { SlotTable } from '../commit/slot-table.ts'
import { frontendDigest, frontendId, parseFrontendKey } from '../entries.ts'
import { type Balance, localSlots, parseBalanceName } from '../rules.ts'
import type { SetMember, SlottedFrontend } from './dump.ts'

/** Endpoint by slot number. */
type SlotMap = ReadonlyMap<number, string>

export class FrontendRecogniser {
  readonly #committed: CommittedState
  readonly #held: Held[]
  readonly #slice: TimeSlice
  /** Frontends with slots by `set key`. */
  readonly #slotted = new Map<string, SlottedFrontend>()
  /** Elements that lead into chains of frontends. */
  readonly #verdicts: { readonly key: string; readonly digest: string }[] = []
  /** Parsed chain names: thousands of frontends lead into a few chains. */
  readonly #balances = new Map<string, Balance | undefined>()
  #seen = 0

  /** Adds what it recognises to `held`. */
  constructor(committed: CommittedState, held: Held[], slice: TimeSlice) {
    this.#committed = committed
    this.#held = held
    this.#slice = slice
  }

  /** Resolves false if there is a member that we would never write. */
  async readMembers(set: string, members: readonly (SetMember | undefined)[]): Promise<boolean> {
    const hasFrontends = set === 'service-ips' || set === 'service-nodeports'
    for (const member of members) {
      if (this.#shouldYield()) await this.#slice.yieldLoop()
      if (member === undefined) return false
      const { key, frontend, slot, value } = member
      if (frontend !== undefined) {
        if (frontend.slots.size === 0) this.#slotted.set(`${set} ${key}`, frontend)
        frontend.slots.set(slot, value)
        continue
      }
      const id = `${set} ${key}`
      this.#committed.setElement(id, value)
      if (!leadsIntoBalanceChain(value)) this.#held.push({ id, kind: 'element', digest: value })
      else if (hasFrontends) this.#verdicts.push({ key, digest: value })
    }
    return true
  }

  /** Called when the members of all sets are read: the slots of a frontend are known only then. */
  async finish(): Promise<void> {
    const balances = new Map<string, Balance>()
    for (const { key, digest } of this.#verdicts) {
      if (this.#shouldYield()) await this.#slice.yieldLoop()
      const { chain, comment } = parseVerdict(digest)
      const balance = this.#parseChain(chain)
      if (balance === undefined) continue
      const id = `${balance.nodePort ? 'nodeport-endpoints' : 'endpoints'} ${key}`
      balances.set(id, balance)
      this.#held.push(describeFrontend(key, balance, comment, this.#slotted.get(id)?.slots))
    }
    for (const [id, frontend] of this.#slotted) {
      if (this.#shouldYield()) await this.#slice.yieldLoop()
      this.#adoptSlots(frontend, balances.get(id))
    }
  }

  #shouldYield(): boolean {
    return ++this.#seen % stride === 0 && this.#slice.over
  }

  #parseChain(name: string): Balance | undefined {
    if (!this.#balances.has(name)) this.#balances.set(name, parseBalanceName(name))
    return this.#balances.get(name)
  }

  /** Slots without holes are a slot table. A slot after a hole is a stray element, which no entry claims and which is therefore deleted. */
  #adoptSlots({ set, key, slots }: SlottedFrontend, balance: Balance | undefined): void {
    const cluster = this.#adoptTable(key, slots, 0, balance?.cluster ?? 0)
    const local = this.#adoptTable(key, slots, localSlots, balance?.local ?? 0)
    if (cluster + local === slots.size) return
    for (const [slot, endpoint] of slots) {
      if (slot < cluster || (slot >= localSlots && slot < localSlots + local)) continue
      const stray = { id: `${set} ${key} ${slot}`, kind: 'element', digest: endpoint }
      this.#committed.setElement(stray.id, stray.digest)
      this.#committed.strays++
      this.#held.push(stray)
    }
  }

  /** Returns the number of slots in the table. */
  #adoptTable(key: string, slots: SlotMap, offset: number, count: number): number {
    const present = endpointsBeforeHole(slots, offset, slots.size)
    if (present.length > 0) this.#committed.adoptSlots(slotKey(key, offset), new SlotTable(present, count, offset))
    return present.length
  }
}

const leadsIntoBalanceChain = (digest: string): boolean =>
  digest.startsWith('goto lb-') || digest.startsWith('goto np-')

function parseVerdict(digest: string): { readonly chain: string; readonly comment: string } {
  const mark = digest.indexOf(' # ')
  if (mark < 0) return { chain: digest.slice('goto '.length), comment: '' }
  return { chain: digest.slice('goto '.length, mark), comment: digest.slice(mark + ' # '.length) }
}

function describeFrontend(key: string, balance: Balance, comment: string, slots: SlotMap | undefined): Held {
  const { policy, choice } = balance
  const cluster = endpointsBeforeHole(slots, 0, balance.cluster)
  const local = policy === 'local' ? endpointsBeforeHole(slots, localSlots, balance.local) : []
  const spec = { ...parseFrontendKey(key), policy, choice, comment }
  const isComplete = cluster.length === balance.cluster && local.length === balance.local
  if (choice !== 'hash') for (const slots of [cluster, local]) slots.sort()
  const digest = isComplete ? frontendDigest({ ...spec, cluster, local }) : 'damaged'
  return { id: frontendId(spec), kind: 'frontend', digest }
}

/** The endpoints of at most `count` slots from `offset` on, up to the first hole. */
function endpointsBeforeHole(slots: SlotMap | undefined, offset: number, count: number): string[] {
  const list: string[] = []
  for (let i = 0; i < count; i++) {
    const endpoint = slots?.get(offset + i)
    if (endpoint === undefined) break
    list.push(endpoint)
  }
  return list
}
