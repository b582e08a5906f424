// Filters and sorts the rows of the list of services. Pure.

import type { PageConnections, ServiceRow } from '../src/http/admin-page.ts'
import type { Traffic } from '../src/http/admin-traffic.ts'
import { stateRank, stateWords } from './parts/states.tsx'
import { quoteWord } from './words.ts'

export const columns = ['name', 'addresses', 'endpoints', 'local', 'connections', 'rate', 'state'] as const
export type Column = (typeof columns)[number]

export interface Order {
  readonly by: Column
  readonly isReversed: boolean
}

/** Connections by service, from those by port and endpoint. */
export function sumConnections({ counts }: PageConnections): ReadonlyMap<string, number> {
  const sums = new Map<string, number>()
  for (const { service, count } of counts) {
    const name = service.replace(/:[^:/]*$/, '')
    sums.set(name, (sums.get(name) ?? 0) + count)
  }
  return sums
}

/** New connections per second by service; empty if nothing counts them. */
export function sumRates({ ports }: Traffic): ReadonlyMap<string, number> {
  const sums = new Map<string, number>()
  for (const { service, connectionsPerSecond } of ports) {
    if (connectionsPerSecond !== null) sums.set(service, (sums.get(service) ?? 0) + connectionsPerSecond)
  }
  return sums
}

export interface Activity {
  /** Connections now, by service. */
  readonly connections: ReadonlyMap<string, number>
  /** New connections per second, by service. */
  readonly rates: ReadonlyMap<string, number>
}

/** All words must be in the name, an address or the state. */
export function filterRows(rows: readonly ServiceRow[], filter: string): readonly ServiceRow[] {
  const words = filter
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== '')
  if (words.length === 0) return rows
  return rows.filter(({ name, addresses, state, note }) => {
    const text = `${name} ${addresses.join(' ')} ${stateWords[state]} ${note}`.toLowerCase()
    return words.every((word) => text.includes(word))
  })
}

/** Numbers begin with the largest, states with the worst. */
export function sortRows(
  rows: readonly ServiceRow[],
  { by, isReversed }: Order,
  activity: Activity,
): readonly ServiceRow[] {
  const sign = isReversed ? -1 : 1
  const rank = ranks[by]
  const order = (a: ServiceRow, b: ServiceRow): number =>
    sign * (rank === undefined ? compare(textOf(a, by), textOf(b, by)) : rank(a, activity) - rank(b, activity)) ||
    compare(a.name, b.name)
  return [...rows].sort(order)
}

const compare = (a: string, b: string): number => {
  if (a === b) return 0
  return a < b ? -1 : 1
}

const textOf = (row: ServiceRow, by: Column): string => (by === 'addresses' ? (row.addresses[0] ?? '') : row.name)

const ranks: Partial<Record<Column, (row: ServiceRow, activity: Activity) => number>> = {
  endpoints: (row) => -row.endpoints,
  local: (row) => -row.local,
  connections: (row, { connections }) => -(connections.get(row.name) ?? 0),
  rate: (row, { rates }) => -(rates.get(row.name) ?? 0),
  state: (row) => stateRank[row.state],
}

/** The command that lists the same services in the same order, as far as it has that order. */
export function commandFor(
  filter: string,
  { by }: Order,
): { readonly words: readonly string[]; readonly pipe: string } {
  const sorted = by === 'endpoints' || by === 'state' ? ['--sort-by', by] : []
  const namespace = /^([a-z0-9-]+)\/$/.exec(filter.trim())?.[1]
  if (namespace !== undefined) return { words: ['status', '--namespace', namespace, ...sorted], pipe: '' }
  const pipe = filter
    .split(/\s+/)
    .filter((word) => word !== '')
    .map((word) => `| grep -iF ${quoteWord(word)}`)
    .join(' ')
  return { words: ['status', ...sorted], pipe }
}
