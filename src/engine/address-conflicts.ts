// Tracks which service holds each address that only one service can have, in one family. The model decides which service comes first.

import type { Family } from '../lib/ip.ts'
import { frontendKey, olderFirst, withoutFrontends } from '../model/conflicts.ts'
import type { ServicePort, ServiceRecord } from '../model/types.ts'
import type { Conflict } from './journal.ts'

interface Claim {
  readonly record: ServiceRecord
  readonly keys: readonly string[]
}

const noKeys: ReadonlySet<string> = new Set()
const none: readonly never[] = []

export class AddressConflicts {
  readonly #family: Family
  readonly #claims = new Map<string, Claim>()
  /** Claimants by key: the only service, or all services with the holder first. */
  readonly #claimants = new Map<string, string | string[]>()
  /** Keys whose claimants changed since the last `drainChanges`, with their conflicts at that time. */
  readonly #before = new Map<string, readonly Conflict[]>()
  readonly #contested = new Set<string>()

  constructor(family: Family) {
    this.#family = family
  }

  /** Replaces the claims of a service by what these ports need. Returns the other services that thereby won or lost an address. */
  claim(record: ServiceRecord, ports: readonly ServicePort[]): readonly string[] {
    const before = this.#claims.get(record.key)
    const keys = keysOf(ports)
    // The usual case: only endpoints have changed. The old claim stays, since its objects are tenured already.
    if (before !== undefined && before.record === record && areEqual(before.keys, keys)) return none
    const affected = new Set<string>()
    if (keys.length === 0) this.#claims.delete(record.key)
    else this.#claims.set(record.key, { record, keys })
    if (before !== undefined && before.record.created === record.created && areEqual(before.keys, keys)) return none
    if (before !== undefined) this.#leave(record.key, before, affected)
    for (const key of keys) this.#join(record.key, key, affected)
    affected.delete(record.key)
    return [...affected]
  }

  /** Removes all claims of a service. Returns the other services that thereby won an address. */
  release(service: string): readonly string[] {
    const before = this.#claims.get(service)
    if (before === undefined) return []
    const affected = new Set<string>()
    this.#claims.delete(service)
    this.#leave(service, before, affected)
    return [...affected]
  }

  /** The ports of a service without what older services hold. */
  withoutLost(service: string, ports: readonly ServicePort[]): readonly ServicePort[] {
    const lost = this.#lost(service)
    if (lost.size === 0) return ports
    return ports.map((port) => {
      const rest = withoutFrontends(port, lost)
      return rest.health !== undefined && lost.has(healthKey(rest.health.port)) ? { ...rest, health: undefined } : rest
    })
  }

  /** All conflicts at this moment. */
  list(): readonly Conflict[] {
    return [...this.#contested].flatMap((key) => this.#conflictsAt(key))
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
    if (this.#contested.size === 0) return noKeys
    const keys = this.#claims.get(service)?.keys ?? []
    return new Set(keys.filter((key) => this.#contested.has(key) && this.#claimants.get(key)?.[0] !== service))
  }

  #join(service: string, key: string, affected: Set<string>): void {
    const now = this.#claimants.get(key)
    if (now === undefined) {
      this.#claimants.set(key, service)
      return
    }
    const all = typeof now === 'string' ? [now] : now
    this.#rememberConflicts(key)
    const holder = all[0] as string
    const next = [...all, service].sort((a, b) => olderFirst(this.#record(a), this.#record(b)))
    this.#claimants.set(key, next)
    this.#contested.add(key)
    if (next[0] !== holder) affected.add(holder)
  }

  #leave(service: string, claim: Claim, affected: Set<string>): void {
    for (const key of claim.keys) {
      const now = this.#claimants.get(key)
      if (typeof now === 'string' || now === undefined) {
        this.#claimants.delete(key)
        continue
      }
      this.#rememberConflicts(key)
      const rest = now.filter((one) => one !== service)
      if (now[0] === service) affected.add(rest[0] as string)
      if (rest.length > 1) this.#claimants.set(key, rest)
      else {
        this.#claimants.set(key, rest[0] as string)
        this.#contested.delete(key)
      }
    }
  }

  #rememberConflicts(key: string): void {
    if (!this.#before.has(key)) this.#before.set(key, this.#conflictsAt(key))
  }

  #conflictsAt(key: string): readonly Conflict[] {
    const now = this.#claimants.get(key)
    if (now === undefined || typeof now === 'string') return []
    const [winner, ...losers] = now as [string, ...string[]]
    return losers.map((loser) => ({ family: this.#family, frontend: key, winner, loser }))
  }

  #record(service: string): ServiceRecord {
    return (this.#claims.get(service) as Claim).record
  }
}

/** Health check node ports are sockets of this node, so only one service can have each of them. */
const healthKey = (port: number): string => `health:${port}`

function keysOf(ports: readonly ServicePort[]): readonly string[] {
  const keys: string[] = []
  for (const port of ports) for (const frontend of port.frontends) keys.push(frontendKey(frontend, port.protocol))
  const health = ports.find((port) => port.health !== undefined)?.health
  if (health !== undefined) keys.push(healthKey(health.port))
  return keys.length < 2 ? keys : [...new Set(keys)]
}

const areEqual = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((key, i) => key === b[i])

const hasSameParties = (a: Conflict, b: Conflict): boolean => a.winner === b.winner && a.loser === b.loser
