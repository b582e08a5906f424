// Services that could not be programmed because of their own content: which, why, and when to try again. All other services are not affected.

import type { Applied, Changes, Held } from '../backend/backend.ts'
import type { Ledger } from '../backend/ledger.ts'
import { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'
import type { RefusedService } from './journal.ts'

/** The owner of the base in the ledger; smaller than the name of any service. */
export const baseOwner = ''

/** Nothing works without the base, so a refusal of the base fails the whole sync. */
export function findRefused(
  ledger: Ledger<Held>,
  { refused }: Applied,
  changes: Changes<Held>,
): readonly RefusedService[] {
  if (refused.length === 0) return []
  const offered = new Set([...changes.put, ...changes.drop].map((one) => one.id))
  return refused
    .filter(({ id }) => offered.has(id))
    .flatMap(({ id, error }) => {
      const owners = ledger.owners(id)
      if (owners[0] === baseOwner) {
        throw new ProxyError('base-refused', `the kernel refused ${id}: ${error.message}`, { cause: error })
      }
      return (owners.length === 0 ? [''] : owners).map((service) => ({ service, id, error }))
    })
}

export interface Quarantined {
  /** '' for leftovers that no service claims. */
  readonly service: string
  /** The refused entries; empty if the service could not even be planned. */
  readonly ids: readonly string[]
  readonly error: ProxyError
  /** Unix ms. */
  readonly since: number
  readonly attempts: number
  /** Unix ms. */
  readonly retryAt: number
}

interface Case {
  ids: Set<string>
  error: ProxyError
  since: number
  attempts: number
  /** Monotonic time of the next attempt. */
  dueAt: number
}

const firstMs = 1000
const longestMs = 5 * 60_000

export class Quarantine {
  readonly #clock: Clock
  readonly #cases = new Map<string, Case>()
  /** Services that are tried again, and are not known to be refused again. */
  readonly #retried = new Set<string>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  has(service: string): boolean {
    return this.#cases.has(service)
  }

  /** The service is tried again. Removes and returns the ids to offer again; those that are refused again come back. */
  beginRetry(service: string): Iterable<string> {
    this.#retried.add(service)
    const known = this.#cases.get(service)
    if (known === undefined) return []
    const { ids } = known
    known.ids = new Set()
    return ids
  }

  /** Services that were tried again leave the quarantine, except refused ones and those that still wait to be written. */
  endRetries(refused: readonly RefusedService[], isWaiting: (service: string) => boolean): void {
    for (const service of this.#retried) {
      const isRefused = refused.some((one) => one.service === service)
      if (!isRefused && isWaiting(service)) continue
      this.#retried.delete(service)
      if (!isRefused) this.#cases.delete(service)
    }
  }

  /** Records what was refused. Returns one refusal of each service whose error is new. */
  addRefused(refused: readonly RefusedService[]): readonly RefusedService[] {
    const news: RefusedService[] = []
    for (const [service, own] of groupByService(refused)) {
      const first = own[0] as RefusedService
      if (isNewError(this.#cases.get(service)?.error, first.error)) news.push(first)
      const ids = own.map((one) => one.id).filter((id) => id !== '')
      // If the rest of the sync fails, the next one must not take the retry for a success.
      this.#retried.delete(service)
      this.#recordFailure(service, ids, first.error)
    }
    return news
  }

  /** Records a failed attempt, with the ids that the data plane refused. The next attempt waits twice as long as the last one. */
  #recordFailure(service: string, ids: Iterable<string>, error: ProxyError): void {
    const now = this.#clock.monotonic()
    const known = this.#cases.get(service)
    const attempts = (known?.attempts ?? 0) + 1
    this.#cases.set(service, {
      ids: new Set([...(known?.ids ?? []), ...ids]),
      error,
      since: known?.since ?? this.#clock.now(),
      attempts,
      dueAt: now + Math.min(longestMs, firstMs * 2 ** Math.min(30, attempts - 1)),
    })
  }

  /** Starts the waiting times from the beginning: the service has changed, so its problem may be over. */
  resetBackoff(service: string): void {
    const known = this.#cases.get(service)
    if (known !== undefined) known.attempts = 0
  }

  /** The services whose waiting time is over. */
  due(): readonly string[] {
    const now = this.#clock.monotonic()
    return [...this.#cases].filter(([, one]) => one.dueAt <= now).map(([service]) => service)
  }

  /** The time until the next service is due; undefined if there is none. */
  msUntilNext(): number | undefined {
    let at = Number.POSITIVE_INFINITY
    for (const one of this.#cases.values()) at = Math.min(at, one.dueAt)
    return at === Number.POSITIVE_INFINITY ? undefined : Math.max(0, at - this.#clock.monotonic())
  }

  find(service: string): Quarantined | undefined {
    const known = this.#cases.get(service)
    return known === undefined ? undefined : this.#describe(service, known)
  }

  /** All quarantined services, sorted by name. */
  list(): readonly Quarantined[] {
    return [...this.#cases]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([service, known]) => this.#describe(service, known))
  }

  #describe(service: string, { ids, error, since, attempts, dueAt }: Case): Quarantined {
    const retryAt = this.#clock.now() + dueAt - this.#clock.monotonic()
    return { service, ids: [...ids], error, since, attempts, retryAt }
  }
}

/** A service over a limit is reported once, not again with every slice that it gets. */
const isNewError = (before: ProxyError | undefined, error: ProxyError): boolean =>
  before?.code === 'limit' && error.code === 'limit'
    ? before.fields.limit !== error.fields.limit
    : before?.message !== error.message

function groupByService(refused: readonly RefusedService[]): ReadonlyMap<string, readonly RefusedService[]> {
  const byService = new Map<string, RefusedService[]>()
  for (const one of refused) {
    const own = byService.get(one.service)
    if (own === undefined) byService.set(one.service, [one])
    else own.push(one)
  }
  return byService
}
