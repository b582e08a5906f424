// What the live view shows: answers of the proxy at one moment, and the rows made of them. Pure.

import type { ChangeCount, Connections, PortSummary, ReportSummary, ServiceSummary, Summary } from '../../http/admin.ts'
import type { PortTraffic, Traffic } from '../../http/admin-traffic.ts'

/** The answers of a proxy at one moment. */
export interface LiveDocument {
  readonly summary: Summary
  readonly services: readonly ServiceSummary[]
  readonly connections: readonly Connections[]
  readonly changes: readonly ChangeCount[]
  /** What was counted; undefined if the proxy cannot tell. */
  readonly traffic?: Traffic | undefined
  /** Unix ms. */
  readonly now: number
}

/** What a service's own page needs besides the document. */
export interface ServiceHistory {
  readonly service: string
  /** Newest first. */
  readonly reports: readonly ReportSummary[]
}

/** One service port. A service without ports, for example a quarantined one, has one row of its own. */
export interface LiveRow {
  readonly id: string
  readonly service: string
  /** `ns/name:port`; the protocol follows if it is not TCP. */
  readonly name: string
  readonly summary: ServiceSummary
  readonly port: PortSummary | undefined
  readonly connections: number
  readonly changes: number
  /** What was counted for the port; undefined if nothing was. */
  readonly counted: PortTraffic | undefined
  /** Why the service does not work as it should; '' if it does. */
  readonly problem: string
}

export const sortOrders = ['name', 'connections', 'changes'] as const
export type SortOrder = (typeof sortOrders)[number]

/** Connections by service port and endpoint. */
export type FlowCounts = ReadonlyMap<string, number>

export const countFlows = (connections: readonly Connections[]): FlowCounts =>
  new Map(connections.map(({ service, endpoint, count }) => [flowKey(service, endpoint), count]))

export const flowKey = (port: string, endpoint: string): string => `${port} ${endpoint}`

/** Everything that is shown and does not depend on the size of the screen; computed once per document, sort order and filter. */
export interface LiveTable {
  readonly document: LiveDocument
  readonly flows: FlowCounts
  /** The rows that match the filter, in their order. */
  readonly rows: readonly LiveRow[]
  /** Their ids. */
  readonly ids: readonly string[]
  /** The number of rows without the filter. */
  readonly total: number
}

export function makeTable(document: LiveDocument, sort: SortOrder, filter: string): LiveTable {
  const flows = countFlows(document.connections)
  const changes = new Map(document.changes.map(({ service, count }) => [service, count]))
  const counted = new Map(
    document.traffic?.ports.map((one) => [`${one.family} ${one.service}:${one.port}`.replace(/:$/, ''), one]),
  )
  const all = document.services.flatMap((service) =>
    makeRows(service, flows, { changes: changes.get(service.service) ?? 0, counted }),
  )
  const wanted = filter.toLowerCase()
  const found = wanted === '' ? all : all.filter((row) => matches(row, wanted))
  const rows = found.toSorted(comparators[sort])
  return { document, flows, rows, ids: rows.map(({ id }) => id), total: all.length }
}

interface RowFigures {
  readonly changes: number
  readonly counted: ReadonlyMap<string, PortTraffic>
}

function makeRows(summary: ServiceSummary, flows: FlowCounts, { changes, counted }: RowFigures): readonly LiveRow[] {
  const { service, family } = summary
  const problem = describeProblem(summary)
  const base = { service, summary, changes, problem }
  if (summary.ports.length === 0)
    return [{ ...base, id: `${family} ${service}`, name: service, port: undefined, connections: 0, counted: undefined }]
  return summary.ports.map((port) => {
    const name = port.protocol === 'tcp' ? port.name : `${port.name}/${port.protocol}`
    const connections = sum(port.endpoints.map(({ address }) => flows.get(flowKey(port.name, address)) ?? 0))
    return {
      ...base,
      id: `${family} ${name}`,
      name,
      port,
      connections,
      counted: counted.get(`${family} ${port.name}`),
    }
  })
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0)

function describeProblem({ quarantine, wrong, lost }: ServiceSummary): string {
  if (quarantine !== '') return `quarantined: ${quarantine}`
  return wrong[0] ?? lost[0] ?? ''
}

/** A filter matches names, addresses and endpoints. */
const matches = ({ name, port }: LiveRow, wanted: string): boolean =>
  name.toLowerCase().includes(wanted) ||
  port?.frontends.some(({ ip, answersAt }) => ip.includes(wanted) || answersAt.includes(wanted)) === true ||
  port?.endpoints.some(({ address }) => address.includes(wanted)) === true

type Comparator = (a: LiveRow, b: LiveRow) => number

const byName: Comparator = (a, b) => {
  if (a.id === b.id) return 0
  return a.name < b.name || (a.name === b.name && a.id < b.id) ? -1 : 1
}

const comparators: Readonly<Record<SortOrder, Comparator>> = {
  name: byName,
  connections: (a, b) => b.connections - a.connections || byName(a, b),
  changes: (a, b) => b.changes - a.changes || byName(a, b),
}
