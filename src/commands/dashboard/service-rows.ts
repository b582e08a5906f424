// Makes the rows of the list of services: one per service, with all its ports and families, from the proxy's summaries. Pure.

import type { PortSummary, ServiceSummary, Summary } from '../../http/admin.ts'
import type { Overview, ServiceRow, ServiceState } from '../../http/admin-page.ts'
import { listProblems } from '../top/live-problems.ts'

/** More addresses do not fit into a row. */
const shownAddresses = 3

export function makeServiceRows(summaries: readonly ServiceSummary[]): readonly ServiceRow[] {
  const groups = new Map<string, ServiceSummary[]>()
  for (const summary of summaries) {
    const group = groups.get(summary.service)
    if (group === undefined) groups.set(summary.service, [summary])
    else group.push(summary)
  }
  return [...groups].map(([name, group]) => makeRow(name, group))
}

function makeRow(name: string, group: readonly ServiceSummary[]): ServiceRow {
  const ports = group.flatMap((summary) => summary.ports)
  const addresses = [...new Set(ports.flatMap(listAddresses))]
  const endpoints = new Map(ports.flatMap((port) => port.endpoints.map(({ address, local }) => [address, local])))
  const [state, note] = judge(group, ports)
  return {
    name,
    addresses: addresses.slice(0, shownAddresses),
    moreAddresses: Math.max(0, addresses.length - shownAddresses),
    ports: ports.length,
    endpoints: endpoints.size,
    local: [...endpoints.values()].filter(Boolean).length,
    state,
    note,
  }
}

const listAddresses = ({ frontends, protocol }: PortSummary): readonly string[] =>
  frontends.flatMap(({ answersAt }) => (answersAt === '' ? [] : [`${answersAt}/${protocol}`]))

function judge(group: readonly ServiceSummary[], ports: readonly PortSummary[]): readonly [ServiceState, string] {
  const find = (read: (one: ServiceSummary) => string | undefined) =>
    group.map(read).find((text) => (text ?? '') !== '')
  const quarantine = find((one) => one.quarantine)
  if (quarantine !== undefined) return ['quarantined', quarantine]
  const wrong = find((one) => one.wrong[0])
  if (wrong !== undefined) return ['wrong', wrong]
  const lost = find((one) => one.lost[0])
  if (lost !== undefined) return ['conflict', lost]
  const ejected = ports.flatMap((port) => port.ejected)[0]
  if (ejected !== undefined) return ['ejected', ejected]
  if (group.some(({ pending }) => pending)) return ['pending', 'a change waits for a sync']
  const empty = ports.find(({ endpoints }) => endpoints.length === 0)
  if (empty !== undefined) return ['empty', `${empty.name} has no usable endpoint`]
  return ['ok', '']
}

/** The last syncs that the first page shows. */
const shownReports = 12

export function makeOverview(summary: Summary, now: number): Overview {
  const { node, mode, pid, version, startedAt, services, families, conflicts, quarantined, drifts } = summary
  const { counters, connections = null, savedState, reports } = summary
  const problems = listProblems({ summary, now, services: [], connections: [], changes: [] })
  return {
    node,
    mode,
    pid,
    version,
    startedAt,
    revision: JSON.stringify([pid, startedAt, counters]),
    services,
    families,
    conflicts,
    quarantined,
    drifts,
    counters,
    connections,
    savedState,
    reports: reports.slice(0, shownReports),
    problems: problems.map(({ text, colour }) => ({ level: colour === 'red' ? 'error' : 'warning', text })),
  }
}
