// Finds the services of refused entries. No I/O.

import type { Applied, Changes, Held } from '../backend/backend.ts'
import type { Ledger } from '../backend/ledger.ts'
import { ProxyError } from '../lib/errors.ts'
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

export function groupByService(refused: readonly RefusedService[]): ReadonlyMap<string, readonly RefusedService[]> {
  const byService = new Map<string, RefusedService[]>()
  for (const one of refused) {
    const own = byService.get(one.service)
    if (own === undefined) byService.set(one.service, [one])
    else own.push(one)
  }
  return byService
}
