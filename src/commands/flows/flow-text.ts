// Formats flows for people: a table, one line per flow that begins or ends, and what is not shown. Pure.

import type { FlowVerdict } from '../../engine/flows/flow-verdicts.ts'
import type { FlowCoverage, FlowList, FlowSummary } from '../../http/admin-flows.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { formatBytes } from '../answers/format-bytes.ts'
import { formatTable } from '../answers/table.ts'
import type { Colour, Terminal } from '../terminal.ts'

const colours: Readonly<Record<FlowVerdict, Colour>> = {
  open: 'green',
  closed: 'dim',
  expired: 'dim',
  reset: 'yellow',
  refused: 'red',
  'timed-out': 'red',
  rejected: 'red',
  dropped: 'red',
}

export function formatFlows({ flows }: FlowList, terminal: Terminal, now: number): string {
  if (flows.length === 0) return 'No flows to services.\n'
  const rows = flows.map((flow) => [
    terminal.paint(colours[flow.verdict], flow.verdict),
    describeSince(flow, now),
    flow.protocol,
    nameEnd(flow.from, flow.fromPod),
    nameService(flow),
    describeEnd(flow),
    describeTraffic(flow),
  ])
  return formatTable(['VERDICT', 'SINCE', 'PROTOCOL', 'CLIENT', 'SERVICE', 'ENDPOINT', 'IN / OUT'], rows, terminal)
}

export function formatFlowLine(flow: FlowSummary, terminal: Terminal, now: number): string {
  const time = (flow.endedAt ?? flow.startedAt ?? new Date(now).toISOString()).slice(11, 19)
  const lasted = describeLength(flow)
  const traffic = flow.traffic === null || flow.endedAt === null ? '' : `, ${describeTraffic(flow)}`
  const verdict = terminal.paint(colours[flow.verdict], flow.verdict.padEnd(9))
  const path = `${nameEnd(flow.from, flow.fromPod)} -> ${nameService(flow)} -> ${describeEnd(flow)}`
  return `${time}  ${verdict} ${flow.protocol}  ${path}${lasted}${traffic}\n`
}

/** '' if everything is shown. */
export function describeCoverage({ sampled, lost, skipped, remarks }: FlowCoverage): string {
  return [
    ...(sampled > 1 ? [`There are too many flows: sampled 1 of ${sampled}.`] : []),
    ...(lost > 0 ? [`The kernel dropped notifications ${count(lost, 'time')}: some flows are missing.`] : []),
    ...(skipped > 0 ? [`${count(skipped, 'flow')} not shown.`] : []),
    ...remarks,
  ]
    .map((sentence) => `${sentence}\n`)
    .join('')
}

const nameEnd = (address: string, pod: string): string => (pod === '' ? address : `${pod} (${address})`)

const nameService = ({ service, to }: FlowSummary): string => `${service} (${to})`

function describeEnd({ endpoint, endpointPod, rule, verdict }: FlowSummary): string {
  if (rule !== '') return `${verdict} by ${rule}`
  return endpoint === '' ? 'none' : nameEnd(endpoint, endpointPod)
}

function describeSince({ startedAt }: FlowSummary, now: number): string {
  return startedAt === null ? '-' : formatAge(now - Date.parse(startedAt))
}

function describeLength({ startedAt, endedAt, rule }: FlowSummary): string {
  if (startedAt === null || endedAt === null || rule !== '') return ''
  return `, after ${((Date.parse(endedAt) - Date.parse(startedAt)) / 1000).toFixed(3)} s`
}

function describeTraffic({ traffic }: FlowSummary): string {
  return traffic === null ? '-' : `${formatBytes(traffic.bytesIn)} / ${formatBytes(traffic.bytesOut)}`
}
