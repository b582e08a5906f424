// The list of services: searchable, sortable, and quick with ten thousand of them.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import type { PageConnections, ServiceList, ServiceRow } from '../../src/http/admin-page.ts'
import type { Traffic } from '../../src/http/admin-traffic.ts'
import { CopyCommand } from '../parts/copy-command.tsx'
import { Empty, Problem, StateBadge, Waiting } from '../parts/states.tsx'
import { VirtualRows } from '../parts/virtual-rows.tsx'
import { hashOf, replaceQuery } from '../route.ts'
import {
  type Activity,
  type Column,
  columns,
  commandFor,
  filterRows,
  type Order,
  sortRows,
  sumConnections,
  sumRates,
} from '../service-table.ts'
import { useAnswer, useLive } from '../use-live.ts'
import { formatCount, formatRate } from '../words.ts'

export function ServicesPage({ query }: { query: URLSearchParams }) {
  const { overview } = useLive()
  const [filter, setFilter] = useState(query.get('q') ?? '')
  const [order, setOrder] = useState<Order>(() => readOrder(query))
  const [isOld, setOld] = useState(false)
  const { answer, error } = useAnswer<ServiceList>('services', {}, overview?.revision, isOld ? 2_000 : 0)
  // The server may have answered with the last list, so that the proxy is not asked too often.
  useEffect(() => setOld(answer !== undefined && answer.revision !== overview?.revision), [answer, overview?.revision])
  const counted = useAnswer<PageConnections>('connections', {}, '', 5_000)
  const traffic = useAnswer<Traffic>('traffic', {}, '', 5_000)
  const activity = useMemo(
    () => ({
      connections: sumConnections(counted.answer ?? { at: 0, counts: [] }),
      rates: traffic.answer === undefined ? new Map<string, number>() : sumRates(traffic.answer),
    }),
    [counted.answer, traffic.answer],
  )
  const found = useMemo(() => filterRows(answer?.rows ?? [], filter), [answer, filter])
  const rows = useMemo(() => sortRows(found, order, activity), [found, order, activity])
  useEffect(
    () =>
      replaceQuery('services', { q: filter, by: order.by === 'name' ? '' : order.by, r: order.isReversed ? '1' : '' }),
    [filter, order],
  )
  return (
    <div class="services">
      <div class="title-row">
        <h1>Services</h1>
        <p class="muted" role="status">
          {answer === undefined ? ' ' : countWords(rows.length, answer.rows.length)}
        </p>
      </div>
      <div class="tools">
        <Search filter={filter} onFilter={setFilter} />
        <CopyCommand {...commandFor(filter, order)} />
      </div>
      <Problem text={error} />
      {answer === undefined && error === '' ? <Waiting what="services" /> : null}
      {answer === undefined ? null : <ServiceGrid rows={rows} order={order} onOrder={setOrder} activity={activity} />}
      {answer !== undefined && rows.length === 0 ? <NothingFound filter={filter} /> : null}
    </div>
  )
}

function readOrder(query: URLSearchParams): Order {
  const by = columns.find((column) => column === query.get('by')) ?? 'name'
  return { by, isReversed: query.get('r') === '1' }
}

const countWords = (shown: number, all: number): string =>
  shown === all ? `${formatCount(all)} in total` : `${formatCount(shown)} of ${formatCount(all)}`

function NothingFound({ filter }: { filter: string }) {
  if (filter !== '') return <Empty title="No service matches">Search by namespace, name, address, port or state.</Empty>
  return <Empty title="There are no services yet">A Service with a cluster IP appears here as soon as it exists.</Empty>
}

function Search({ filter, onFilter }: { filter: string; onFilter: (filter: string) => void }) {
  const field = useRef<HTMLInputElement>(null)
  useEffect(() => {
    const focus = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLInputElement
      if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey) return
      event.preventDefault()
      field.current?.focus()
    }
    addEventListener('keydown', focus)
    return () => removeEventListener('keydown', focus)
  }, [])
  return (
    <label class="search">
      <span class="unseen">Search services</span>
      <input
        ref={field}
        type="search"
        placeholder="Search: name, address, state"
        value={filter}
        spellcheck={false}
        autocomplete="off"
        onInput={({ currentTarget }) => onFilter(currentTarget.value)}
      />
      <kbd aria-hidden="true">/</kbd>
    </label>
  )
}

const heads: Readonly<Record<Column, string>> = {
  name: 'service',
  addresses: 'addresses',
  endpoints: 'endpoints',
  local: 'here',
  connections: 'connections',
  rate: 'new per s',
  state: 'state',
}

interface GridProps {
  readonly rows: readonly ServiceRow[]
  readonly order: Order
  readonly onOrder: (order: Order) => void
  readonly activity: Activity
}

function ServiceGrid({ rows, order, onOrder, activity }: GridProps) {
  const isNarrow = useNarrow()
  return (
    <div class="grid" role="table" aria-label="Services" aria-rowcount={rows.length + 1} aria-colcount={columns.length}>
      <VirtualRows
        label="Services"
        head={
          <div class="grid-row" role="row" aria-rowindex={1}>
            {columns.map((column) => (
              <HeadCell key={column} column={column} order={order} onOrder={onOrder} />
            ))}
          </div>
        }
        count={rows.length}
        rowHeight={isNarrow ? 76 : 36}
        draw={(index, tabIndex) => {
          const row = rows[index]
          if (row === undefined) return null
          return <Cells row={row} index={index} tabIndex={tabIndex} activity={activity} />
        }}
      />
    </div>
  )
}

function HeadCell({ column, order, onOrder }: { column: Column; order: Order; onOrder: (order: Order) => void }) {
  const isSorted = order.by === column
  const isAscending = (column === 'name' || column === 'addresses') !== order.isReversed
  const sorted = isAscending ? 'ascending' : 'descending'
  return (
    <div class={`cell cell-${column}`} role="columnheader" aria-sort={isSorted ? sorted : 'none'}>
      <button type="button" onClick={() => onOrder({ by: column, isReversed: isSorted && !order.isReversed })}>
        {heads[column]}
        <span aria-hidden="true">{isSorted ? { ascending: ' ↑', descending: ' ↓' }[sorted] : ''}</span>
      </button>
    </div>
  )
}

interface CellsProps {
  readonly row: ServiceRow
  readonly index: number
  readonly tabIndex: 0 | -1
  readonly activity: Activity
}

function Cells({ row, index, tabIndex, activity }: CellsProps) {
  const { name, addresses, moreAddresses, endpoints, local, state, note } = row
  const connections = activity.connections.get(name) ?? 0
  const rate = activity.rates.get(name)
  return (
    <div class="grid-row" role="none" title={note}>
      <div class="cell cell-name" role="cell">
        <a href={hashOf('service', { name })} data-row={index} tabIndex={tabIndex}>
          {name}
        </a>
      </div>
      <div class="cell cell-addresses mono" role="cell">
        {addresses.join('  ') || '–'}
        {moreAddresses > 0 ? <span class="muted"> +{moreAddresses}</span> : null}
      </div>
      <div class="cell cell-endpoints number" role="cell">
        {formatCount(endpoints)}
        <span class="phone-only"> endpoints</span>
      </div>
      <div class="cell cell-local number" role="cell">
        {formatCount(local)}
        <span class="phone-only"> here</span>
      </div>
      <div class="cell cell-connections number" role="cell">
        {connections === 0 ? <span class="muted">0</span> : formatCount(connections)}
        <span class="phone-only"> connections</span>
      </div>
      <div class="cell cell-rate number" role="cell">
        {rate === undefined ? <span class="muted">–</span> : formatRate(rate)}
        <span class="phone-only"> per second</span>
      </div>
      <div class="cell cell-state" role="cell">
        <StateBadge state={state} />
      </div>
    </div>
  )
}

/** True on a phone, where a row has three lines. */
export function useNarrow(): boolean {
  const query = '(max-width: 760px)'
  const [isNarrow, setNarrow] = useState(() => matchMedia(query).matches)
  useEffect(() => {
    const media = matchMedia(query)
    const read = () => setNarrow(media.matches)
    media.addEventListener('change', read)
    return () => media.removeEventListener('change', read)
  }, [])
  return isNarrow
}
