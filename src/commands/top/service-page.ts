// Formats the page of one service in the live view: policies, addresses, endpoints with their connections, and its recent changes. Pure.

import type { FrontendSummary, PortSummary, ServiceSummary } from '../../http/admin.ts'
import { familyName, hostPort } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { describeReport } from './event-lines.ts'
import { type FlowCounts, flowKey, type LiveTable, type ServiceHistory } from './live-document.ts'
import { plain, type ScreenLine } from './screen-text.ts'

/** `history` is undefined until it has been read. */
export function formatService(
  table: LiveTable,
  service: string,
  history: ServiceHistory | undefined,
): readonly ScreenLine[] {
  const { document, flows } = table
  const families = document.services.filter((one) => one.service === service)
  const changes = document.changes.find((one) => one.service === service)?.count ?? 0
  return [
    { text: `Service ${service}`, colour: 'bold' },
    ...(families.length === 0 ? [plain('  It is no longer programmed here.')] : []),
    ...families.flatMap((one) => formatFamily(one, flows)),
    {
      text: `Recent changes (${count(changes, 'sync')} of the last ${document.summary.reports.length})`,
      colour: 'bold',
    },
    ...formatHistory(history?.service === service ? history : undefined, document.now),
  ]
}

function formatFamily(summary: ServiceSummary, flows: FlowCounts): readonly ScreenLine[] {
  const { family, pending, entries, quarantine, lost, wrong } = summary
  const state = pending ? ', a change waits for a sync' : ''
  const problems = [...(quarantine === '' ? [] : [`quarantined: ${quarantine}`]), ...wrong, ...lost]
  return [
    plain(`  ${familyName(family)}: ${count(summary.ports.length, 'port')}, ${entries} kernel objects${state}`),
    ...problems.map((text): ScreenLine => ({ text: `  ! ${text}`, colour: 'red' })),
    ...summary.ports.flatMap((port) => formatPort(port, flows)),
  ]
}

function formatPort(port: PortSummary, flows: FlowCounts): readonly ScreenLine[] {
  const affinity = port.affinitySeconds === 0 ? '' : `, ClientIP affinity ${port.affinitySeconds} s`
  const endpoints = port.endpoints.map(({ address, local }) => {
    const where = local ? ', on this node' : ''
    return plain(`      ${address}  ${count(flows.get(flowKey(port.name, address)) ?? 0, 'connection')}${where}`)
  })
  const none: ScreenLine = { text: '      none: connections are refused', colour: 'yellow' }
  return [
    { text: `  ${port.name}/${port.protocol}`, colour: 'cyan' },
    plain(`    policy: internal ${port.internal}, external ${port.external}${affinity}`),
    plain('    addresses'),
    ...port.frontends.map((frontend) => plain(`      ${describeFrontend(frontend)}`)),
    plain(`    endpoints (${port.endpoints.length})`),
    ...(endpoints.length === 0 ? [none] : endpoints),
  ]
}

function describeFrontend({ kind, ip, port, answersAt }: FrontendSummary): string {
  const address = ip === '' ? `:${port}` : hostPort(ip, port)
  if (answersAt === address) return `${kind} ${address}`
  return answersAt === '' ? `${kind} ${address}, not served` : `${kind} ${address}, answers at ${answersAt}`
}

function formatHistory(history: ServiceHistory | undefined, now: number): readonly ScreenLine[] {
  if (history === undefined) return [plain('  …')]
  if (history.reports.length === 0) return [plain('  none in the last syncs')]
  return history.reports.map((report) =>
    plain(
      `  ${formatAge(now - Date.parse(report.startedAt)).padStart(4)} ago  ${describeReport({ ...report, services: [] })}`,
    ),
  )
}
