// Shows a running proxy live: on a terminal a view that is redrawn in place, elsewhere one line per event.

import { describeInvalidManifest } from '../../daemon/manifest-problems.ts'
import type {
  AdminEvent,
  Connections,
  InvalidManifest,
  ReportSummary,
  ServiceSummary,
  Summary,
} from '../../http/admin.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import { ProxyError } from '../../lib/errors.ts'
import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { describeHolder } from '../../model/conflicts.ts'
import { fitLine, formatAge, formatTable, type Terminal } from '../terminal.ts'

const refreshMs = 1_000
const shownServices = 15
const shownReports = 5

/** Shows the proxy until the signal aborts. If the proxy stops answering, the view prints why and ends. */
export async function watchProxy(proxy: AdminClient, terminal: Terminal, signal: AbortSignal): Promise<void> {
  try {
    await (terminal.interactive ? redraw(proxy, terminal, signal) : printEvents(proxy, terminal, signal))
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    if (!signal.aborted) terminal.note(`${error.message}\n`)
  }
}

async function printEvents(proxy: AdminClient, terminal: Terminal, signal: AbortSignal): Promise<void> {
  await proxy.events((event) => terminal.write(`${new Date().toISOString()} ${describeEvent(event)}\n`), signal)
}

export function describeEvent(event: AdminEvent): string {
  switch (event.kind) {
    case 'sync':
      return describeReport(event.report)
    case 'conflict':
      return `conflict: ${event.conflict.frontend} is claimed by ${event.conflict.loser}, but ${describeHolder(event.conflict)}`
    case 'resolved':
      return `conflict resolved: ${event.conflict.frontend} of ${event.conflict.loser}`
    case 'drift':
      return `rules were changed by ${event.drift.culprit} (${familyName(event.drift.family)}); repairing`
    case 'manifests':
      return describeManifests(event.invalid)
    case 'problem':
      return `bad object ${event.object}: ${event.message}`
  }
}

const describeManifests = (invalid: readonly InvalidManifest[]): string =>
  invalid.length === 0
    ? 'all manifests are valid'
    : invalid.map((problem) => `invalid manifest ${describeInvalidManifest(problem)}`).join('; ')

function describeReport(report: ReportSummary): string {
  const { family, ok, error, put, dropped, durationMs, services } = report
  const result = ok ? `put ${put}, dropped ${dropped}, ${durationMs.toFixed(1)} ms` : `FAILED: ${error}`
  const names = services.length === 0 ? '' : `: ${services.slice(0, 4).join(', ')}${services.length > 4 ? ', …' : ''}`
  return `sync ${familyName(family)} ${result}${names}`
}

async function redraw(proxy: AdminClient, terminal: Terminal, signal: AbortSignal): Promise<void> {
  let lines = 0
  while (!signal.aborted) {
    const [summary, services, connections] = await Promise.all([
      proxy.summary(),
      proxy.services('', false),
      proxy.connections(),
    ])
    const text = formatView(summary, services, connections, terminal)
    // The escape codes move up to the first line of the last view and clear everything below.
    terminal.write(`${lines === 0 ? '' : `\x1b[${lines}A\x1b[J`}${text}`)
    lines = text.split('\n').length - 1
    await waitForRefresh(signal)
  }
}

/** Resolves after the refresh interval, or at once when the signal aborts. */
function waitForRefresh(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(finish, refreshMs)
    function finish() {
      clearTimeout(timer)
      signal.removeEventListener('abort', finish)
      resolve()
    }
    signal.addEventListener('abort', finish, { once: true })
  })
}

export function formatView(
  summary: Summary,
  services: readonly ServiceSummary[],
  connections: readonly Connections[],
  terminal: Terminal,
): string {
  const flows = new Map<string, number>()
  for (const one of connections) flows.set(`${one.service} ${one.endpoint}`, one.count)
  const rows = services
    .slice(0, shownServices)
    .flatMap((one) =>
      one.ports.map((port) => [
        `${port.name}/${port.protocol}`,
        port.frontends.map(({ answersAt }) => answersAt).join(' '),
        port.endpoints.map(({ address }) => `${address} (${flows.get(`${port.name} ${address}`) ?? 0})`).join('  ') ||
          terminal.paint('yellow', 'none: refused'),
      ]),
    )
  const more = services.length > shownServices ? `… and ${services.length - shownServices} more\n` : ''
  const reports = summary.reports
    .slice(0, shownReports)
    .map(
      (report) =>
        `  ${formatAge(Date.now() - Date.parse(report.startedAt)).padStart(4)} ago  ${describeReport(report)}\n`,
    )
  return [
    `\n${count(summary.services, 'service')}, ${summary.connections?.tracked ?? 0} connections tracked, state ${summary.families[0]?.stateHash ?? ''}\n`,
    formatTable(['SERVICE PORT', 'ADDRESSES', 'ENDPOINTS (CONNECTIONS)'], rows, terminal),
    more,
    'Last syncs\n',
    ...reports,
  ]
    .join('')
    .split('\n')
    .map((line) => fitLine(line, terminal.columns))
    .join('\n')
}
