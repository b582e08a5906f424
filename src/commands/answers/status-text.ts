// Formats the answer of `sluice status` for people: the proxy, its last syncs, a table of services, and everything that is wrong.

import { describeInvalidManifest } from '../../daemon/manifest-problems.ts'
import type { BaseSummary, FrontendSummary, PortSummary, SavedStateSummary, ServiceSummary } from '../../http/admin.ts'
import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { describeHolder } from '../../model/conflicts.ts'
import { shorten, type Terminal } from '../terminal.ts'
import { describeQuarantined } from './quarantine-lines.ts'
import { countEndpoints, type FamilyStatusAnswer, isIdle, type StatusAnswer } from './status-answer.ts'
import { formatParagraph, formatTable } from './table.ts'

/** `now` is a time in milliseconds, for ages. `isDetailed` also shows the ports of each service. */
export function formatStatus(answer: StatusAnswer, now: number, isDetailed: boolean, terminal: Terminal): string {
  const details = isDetailed ? answer.services.map((one) => portTable(one, terminal)) : []
  const none = answer.services.length === 0 ? 'No service matches.\n' : ''
  return [
    formatHead(answer, now, terminal),
    serviceTable(answer, terminal) || none,
    ...details,
    formatProblems(answer, now, terminal),
  ]
    .filter((part) => part !== '')
    .join('\n')
}

function formatHead({ node, mode, proxy, families, services }: StatusAnswer, now: number, terminal: Terminal): string {
  const hash = `State hash: ${families.map(({ family, stateHash }) => `${familyName(family)} ${stateHash}`).join('  ')}`
  if (proxy === null) {
    const what = `No proxy was asked: this is what should be programmed on ${node} in mode ${mode}. ${count(services.length, 'service')}.`
    return formatParagraph(what, terminal) + formatParagraph(hash, terminal, '  ')
  }
  const age = formatAge(now - Date.parse(proxy.startedAt))
  const lines = [
    `${terminal.paint('bold', `Proxy on ${node}`)}: mode ${mode}, pid ${proxy.pid}, version ${proxy.version}, up ${age}, ${count(proxy.services, 'service')}`,
    hash,
    ...families.map((one) => describeFamily(one, now, terminal)),
  ]
  const { connections } = proxy
  if (connections !== undefined) lines.push(`Connections tracked: ${connections.tracked} of ${connections.limit}`)
  if (proxy.savedState !== null) lines.push(describeSavedState(proxy.savedState, now, terminal))
  return lines.map((line) => formatParagraph(line, terminal, '  ')).join('')
}

function describeSavedState({ inUse, savedAt, problem }: SavedStateSummary, now: number, terminal: Terminal): string {
  const age = savedAt === null ? '' : formatAge(now - Date.parse(savedAt))
  if (inUse)
    return terminal.paint('yellow', `Serves the state saved ${age} ago: the API server has not sent its own yet`)
  if (problem !== '') return terminal.paint('yellow', `Saved state: ${problem}`)
  return savedAt === null ? 'Saved state: not written yet' : `Saved state: written ${age} ago`
}

function describeFamily({ family, lastSync, base }: FamilyStatusAnswer, now: number, terminal: Terminal): string {
  const name = familyName(family)
  if (lastSync === null || lastSync === undefined) return `${name}: ${terminal.paint('yellow', 'has not synced yet')}`
  const { startedAt, durationMs, full, put, dropped, held, ok, error } = lastSync
  const age = formatAge(now - Date.parse(startedAt))
  const state = ok ? 'ok' : terminal.paint('red', `FAILED: ${error}`)
  const kind = full ? 'full' : 'partial'
  const rest = `${Math.round(durationMs)} ms, ${kind}, put ${put}, dropped ${dropped}, holds ${held}`
  const shared = base === null ? '' : `; shared rules ${describeKernel(base)}`
  return `${name}: last sync ${age} ago, ${state}, ${rest}${shared}`
}

function serviceTable({ services }: StatusAnswer, terminal: Terminal): string {
  const rows = services.map((one) => [
    one.service,
    familyName(one.family),
    String(one.ports.length),
    String(countEndpoints(one)),
    describeKernel(one),
    describeState(one, terminal),
  ])
  return formatTable(['SERVICE', 'FAMILY', 'PORTS', 'ENDPOINTS', 'IN KERNEL', 'STATE'], rows, terminal)
}

function describeKernel({ inKernel, entries }: Pick<BaseSummary, 'inKernel' | 'entries'>): string {
  if (inKernel === undefined || (entries > 0 && inKernel.unchecked === entries)) return 'not checked'
  const found = `${inKernel.present + inKernel.byName}/${entries}`
  return inKernel.unchecked === 0 ? found : `${found}, ${inKernel.unchecked} not checked`
}

function describeState(one: ServiceSummary, terminal: Terminal): string {
  if (one.quarantine !== '') return terminal.paint('red', `quarantined: ${shorten(one.quarantine, 60)}`)
  if (one.wrong.length > 0) {
    const entries = one.wrong.length === 1 ? '1 entry is' : `${one.wrong.length} entries are`
    return terminal.paint('red', `${entries} wrong in the kernel`)
  }
  if (one.lost.length > 0) return terminal.paint('yellow', `address not available: ${one.lost[0]}`)
  const ejected = one.ports.flatMap((port) => port.ejected)
  if (ejected.length > 0) return terminal.paint('yellow', `ejected ${shorten(ejected[0] as string, 60)}`)
  const draining = one.ports.find((port) => port.drainingUntil !== '')
  if (draining !== undefined) return terminal.paint('yellow', `draining until ${draining.drainingUntil}`)
  if (one.pending) return terminal.paint('yellow', 'change waits for a sync')
  return isIdle(one) ? terminal.paint('yellow', 'no endpoints') : terminal.paint('green', 'ok')
}

function portTable({ ports }: ServiceSummary, terminal: Terminal): string {
  const rows = ports.map((port) => [
    `${port.name}/${port.protocol}`,
    port.frontends.map(describeFrontend).join(', ') || '-',
    describePolicies(port),
    port.endpoints.map(describeEndpoint).join(', ') || 'none',
  ])
  return formatTable(['PORT', 'ADDRESSES', 'POLICY', 'ENDPOINTS'], rows, terminal)
}

const describeFrontend = ({ kind, answersAt }: FrontendSummary): string => `${kind} ${answersAt || '(not served)'}`

const weightSources = { 'node-capacity': 'by node capacity', 'smallest-node': 'as the smallest node' }

function describeEndpoint(endpoint: PortSummary['endpoints'][number]): string {
  const { address, local, weight = 1, weightFrom, startingPercent } = endpoint
  const source = weightFrom === undefined ? '' : ` ${weightSources[weightFrom]}`
  const remarks = [
    ...(local ? ['this node'] : []),
    ...(weight === 1 && source === '' ? [] : [`weight ${weight}${source}`]),
    ...(startingPercent === undefined ? [] : [`starting, ${startingPercent} %`]),
  ]
  return remarks.length === 0 ? address : `${address} (${remarks.join(', ')})`
}

function describePolicies({ internal, external, affinitySeconds, algorithm }: PortSummary): string {
  const affinity = affinitySeconds === 0 ? '' : `, ClientIP ${affinitySeconds}s`
  return `internal ${internal}, external ${external}${affinity}${algorithm === undefined ? '' : `, ${algorithm}`}`
}

function formatProblems({ proxy, families, services }: StatusAnswer, now: number, terminal: Terminal): string {
  const lines = [
    ...(proxy?.invalidManifests ?? []).map(
      (problem) => `invalid manifest ${describeInvalidManifest(problem)}; the objects of its last valid content stay`,
    ),
    ...families.flatMap(({ family, base }) => (base?.wrong ?? []).map((entry) => `${familyName(family)}: ${entry}`)),
    ...services.flatMap(({ service, wrong }) => wrong.map((entry) => `${service}: ${entry}`)),
    ...(proxy?.conflicts ?? []).map(
      (conflict) => `${conflict.frontend} is claimed by service ${conflict.loser}, but ${describeHolder(conflict)}`,
    ),
    ...describeQuarantined(proxy?.quarantined ?? [], now),
  ]
  return lines.map((line) => formatParagraph(`${terminal.paint('red', '!')} ${line}`, terminal, '  ')).join('')
}
