// Tracks which service holds each address that only one service can have, in one family. The model decides which service comes first; the
// planner decides which addresses a service must not have at all.

import type { Family } from '../lib/ip.ts'
import { type Steps, stride } from '../lib/yielding.ts'
import {
  type Claimant,
  type ConflictReason,
  compareClaimants,
  conflictReason,
  frontendKey,
  healthCheckKey,
  type Precedence,
  rankOf,
  withoutFrontends,
} from '../model/conflicts.ts'
import type { Frontend, ServicePort, ServiceRecord } from '../model/types.ts'
import type { Conflict } from './journal.ts'

/** Why a service must not have an address, even if no other service claims it. */
export interface AddressRefusal {
  readonly holder: string
  readonly reason: ConflictReason
}

/** What a service claims with a port: one of its frontends, or the port of its health check. */
export type ClaimedAddress = Pick<Frontend, 'ip' | 'port'> & { readonly kind: Frontend['kind'] | 'health-check' }

export type Refuse = (port: ServicePort, address: ClaimedAddress, key: string) => AddressRefusal | undefined

/** Keys, each once, and the rank of each at the same index. */
interface Wanted {
  readonly keys: readonly string[]
  readonly ranks: readonly number[]
  readonly refused: Refusals
}

type Refusals = ReadonlyMap<string, AddressRefusal>

/**
 * What a service claims: keys, and the claimant of each at the same index, or the only one for all keys, since there is one of these for
 * every service. Keys of the same rank share their claimant, since a service may have many thousands of keys.
 */
interface Claim {
  readonly record: ServiceRecord
  readonly keys: readonly string[]
  readonly claimants: Claimant | readonly Claimant[]
  readonly refused: Refusals
}

const noKeys: ReadonlySet<string> = new Set()
const none: readonly never[] = []
const noRefusals: Refusals = new Map()
const refuseNothing: Refuse = () => undefined

export class AddressConflicts {
  readonly #family: Family
  readonly #precedence: Precedence
  readonly #claims = new Map<string, Claim>()
  /** Claimants by key: the only one, or all of them with the holder first. */
  readonly #claimants = new Map<string, Claimant | readonly Claimant[]>()
  /** Keys whose claimants changed since the last `drainChanges`, with their conflicts at that time. */
  readonly #before = new Map<string, readonly Conflict[]>()
  readonly #contested = new Set<string>()
  /** Services to which a key is refused, by key. */
  readonly #refused = new Map<string, Set<string>>()

  constructor(family: Family, precedence: Precedence) {
    this.#family = family
    this.#precedence = precedence
  }

  /** Replaces the claims of a service by what these ports need. Returns the other services that won or lost an address because of it. */
  *claim(
    record: ServiceRecord,
    ports: readonly ServicePort[],
    refuse: Refuse = refuseNothing,
  ): Steps<readonly string[]> {
    const before = this.#claims.get(record.key)
    const wanted = yield* collectKeys(ports, this.#precedence, refuse)
    const sameKeys = before !== undefined && areEqual(before, wanted)
    // The usual case: only endpoints have changed. The old claim stays, since its objects are tenured already.
    if (sameKeys && before.record === record) return none
    const { keys, refused } = wanted
    // A claimant compares by age and key alone, so claimants of an older version of the record serve the new one.
    const keepsClaimants = sameKeys && before.record.created === record.created
    const claimants = keepsClaimants ? before.claimants : claimantsOf(record, wanted.ranks)
    this.#replaceRefusals(record.key, before?.refused ?? noRefusals, refused)
    if (keys.length + refused.size === 0) this.#claims.delete(record.key)
    else this.#claims.set(record.key, { record, keys, claimants, refused })
    if (keepsClaimants) return none
    const affected = new Set<string>()
    if (before !== undefined) yield* this.#leave(before, affected)
    for (let i = 0; i < keys.length; i++) {
      this.#join(keys[i] as string, claimantAt(claimants, i), affected)
      if ((i + 1) % stride === 0) yield
    }
    affected.delete(record.key)
    return affected.size === 0 ? none : [...affected]
  }

  /** Removes all claims of a service. Returns the other services that won an address because of it. */
  *release(service: string): Steps<readonly string[]> {
    const before = this.#claims.get(service)
    if (before === undefined) return []
    const affected = new Set<string>()
    this.#replaceRefusals(service, before.refused, noRefusals)
    this.#claims.delete(service)
    yield* this.#leave(before, affected)
    return [...affected]
  }

  /** All services that claim a key, also those that do not get it. */
  *claimantsOf(key: string): Iterable<string> {
    for (const { record } of this.#at(key)) yield record.key
    yield* this.#refused.get(key) ?? none
  }

  /** The ports of a service without what other services hold. */
  withoutLost(service: string, ports: readonly ServicePort[]): readonly ServicePort[] {
    const lost = this.#lost(service)
    if (lost.size === 0) return ports
    return ports.map((port) => {
      const rest = withoutFrontends(port, lost)
      return rest.health !== undefined && lost.has(healthCheckKey(rest.health.port))
        ? { ...rest, health: undefined }
        : rest
    })
  }

  /** All conflicts at this moment. */
  list(): readonly Conflict[] {
    return [...new Set([...this.#contested, ...this.#refused.keys()])].flatMap((key) => this.#conflictsAt(key))
  }

  /** Returns the conflicts that began and ended since the last call. */
  drainChanges(): { readonly began: readonly Conflict[]; readonly ended: readonly Conflict[] } {
    const began: Conflict[] = []
    const ended: Conflict[] = []
    for (const [key, before] of this.#before) {
      const after = this.#conflictsAt(key)
      began.push(...after.filter((one) => !before.some((other) => hasSameParties(one, other))))
      ended.push(...before.filter((one) => !after.some((other) => hasSameParties(one, other))))
    }
    this.#before.clear()
    return { began, ended }
  }

  #lost(service: string): ReadonlySet<string> {
    const claim = this.#claims.get(service)
    const isRefused = claim !== undefined && claim.refused.size > 0
    if (this.#contested.size === 0 && !isRefused) return noKeys
    const lost = new Set(claim?.refused.keys())
    for (const key of claim?.keys ?? none) {
      if (this.#contested.has(key) && this.#at(key)[0]?.record.key !== service) lost.add(key)
    }
    return lost
  }

  /** The claimants of a key, the holder first. */
  #at(key: string): readonly Claimant[] {
    const now = this.#claimants.get(key)
    if (now === undefined) return none
    return 'rank' in now ? [now] : now
  }

  #join(key: string, claimant: Claimant, affected: Set<string>): void {
    const now = this.#at(key)
    const holder = now[0]
    if (holder === undefined) {
      this.#claimants.set(key, claimant)
      return
    }
    this.#rememberConflicts(key)
    const next = [...now, claimant].sort(compareClaimants)
    this.#claimants.set(key, next)
    this.#contested.add(key)
    if (next[0] !== holder) affected.add(holder.record.key)
  }

  *#leave(claim: Claim, affected: Set<string>): Steps<void> {
    let seen = 0
    for (const key of claim.keys) {
      if (++seen % stride === 0) yield
      const now = this.#at(key)
      const rest = now.filter(({ record }) => record.key !== claim.record.key)
      const next = rest[0]
      if (next === undefined) {
        this.#claimants.delete(key)
        continue
      }
      this.#rememberConflicts(key)
      if (now[0] !== next) affected.add(next.record.key)
      this.#claimants.set(key, rest.length > 1 ? rest : next)
      if (rest.length === 1) this.#contested.delete(key)
    }
  }

  #replaceRefusals(service: string, before: Refusals, after: Refusals): void {
    if (before.size + after.size === 0) return
    // The claim still has the old refusals, so that the conflicts are remembered as they were.
    for (const [key, refusal] of after) if (!isSameRefusal(before.get(key), refusal)) this.#rememberConflicts(key)
    for (const key of before.keys()) if (!after.has(key)) this.#rememberConflicts(key)
    for (const key of before.keys()) {
      const services = this.#refused.get(key)
      services?.delete(service)
      if (services?.size === 0) this.#refused.delete(key)
    }
    for (const key of after.keys()) {
      const services = this.#refused.get(key)
      if (services === undefined) this.#refused.set(key, new Set([service]))
      else services.add(service)
    }
  }

  #rememberConflicts(key: string): void {
    if (!this.#before.has(key)) this.#before.set(key, this.#conflictsAt(key))
  }

  #conflictsAt(key: string): readonly Conflict[] {
    const [winner, ...losers] = this.#at(key)
    const at = { family: this.#family, frontend: key }
    const lost = losers.map(
      (loser): Conflict => ({
        ...at,
        winner: winner?.record.key ?? '',
        loser: loser.record.key,
        reason: conflictReason(winner as Claimant, loser),
      }),
    )
    const services = this.#refused.get(key)
    if (services === undefined) return lost
    const refused = [...services].flatMap((loser): Conflict[] => {
      const refusal = this.#claims.get(loser)?.refused.get(key)
      return refusal === undefined ? [] : [{ ...at, winner: refusal.holder, loser, reason: refusal.reason }]
    })
    return [...lost, ...refused]
  }
}

/** Making the keys of up to this many frontends takes no noticeable time. */
const fewFrontends = 10

const claimantAt = (claimants: Claimant | readonly Claimant[], i: number): Claimant =>
  'rank' in claimants ? claimants : (claimants[i] as Claimant)

function claimantsOf({ key, created }: ServiceRecord, ranks: readonly number[]): Claimant | readonly Claimant[] {
  const record = { key, created }
  const rank = ranks[0]
  if (rank !== undefined && ranks.every((one) => one === rank)) return { record, rank }
  const byRank: Claimant[] = []
  return ranks.map((rank) => {
    byRank[rank] ??= { record, rank }
    return byRank[rank]
  })
}

function* collectKeys(ports: readonly ServicePort[], precedence: Precedence, refuse: Refuse): Steps<Wanted> {
  const keys: string[] = []
  const ranks: number[] = []
  let refused: Map<string, AddressRefusal> | undefined
  const add = (port: ServicePort, address: ClaimedAddress, key: string) => {
    const refusal = refuse(port, address, key)
    if (refusal === undefined) {
      keys.push(key)
      ranks.push(rankOf(address.kind, precedence))
    } else {
      refused ??= new Map()
      refused.set(key, refusal)
    }
  }
  // The best rank of a key that occurs twice comes first: the health check port before a node port of the same number.
  const checked = ports.find((port) => port.health !== undefined)
  if (checked?.health !== undefined) {
    const { port } = checked.health
    add(checked, { kind: 'health-check', ip: '', port }, healthCheckKey(port))
  }
  for (const port of ports) {
    for (const frontend of port.frontends) add(port, frontend, frontendKey(frontend, port.protocol))
    if (port.frontends.length > fewFrontends) yield
  }
  // An array that has grown has room for 17; the copy has none. Every service keeps one.
  const wanted = { keys: keys.slice(), ranks, refused: refused ?? noRefusals }
  return keys.length < 2 ? wanted : withoutRepeats(wanted)
}

function withoutRepeats(wanted: Wanted): Wanted {
  const { keys, ranks, refused } = wanted
  const seen = new Set(keys)
  if (seen.size === keys.length) return wanted
  const first = keys.map((key) => seen.delete(key))
  return { keys: keys.filter((_, i) => first[i]), ranks: ranks.filter((_, i) => first[i]), refused }
}

const areEqual = (a: Claim, b: Wanted): boolean =>
  a.keys.length === b.keys.length &&
  a.keys.every((key, i) => key === b.keys[i] && claimantAt(a.claimants, i).rank === b.ranks[i]) &&
  a.refused.size === b.refused.size &&
  (a.refused.size === 0 || [...a.refused].every(([key, refusal]) => isSameRefusal(refusal, b.refused.get(key))))

const isSameRefusal = (a: AddressRefusal | undefined, b: AddressRefusal | undefined): boolean =>
  a?.holder === b?.holder && a?.reason === b?.reason

const hasSameParties = (a: Conflict, b: Conflict): boolean =>
  a.winner === b.winner && a.loser === b.loser && a.reason === b.reason
