// Formats an explanation for people: the packet, what becomes of it, each decision, endpoints, and the entries behind it. Pure.

import type { Presence } from '../../backend/backend.ts'
import type { EndpointCandidate, EntrySummary, Explanation } from '../../http/admin.ts'
import { hostPort } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { type Colour, shorten, type Terminal } from '../terminal.ts'
import { formatParagraph, formatTable } from './table.ts'

const colours: Readonly<Record<Explanation['verdict'], Colour>> = {
  forward: 'green',
  reject: 'red',
  drop: 'red',
  pass: 'yellow',
}

const origins = { pod: 'a pod of this node', node: 'this node', outside: 'outside this node' } as const

/** `inNamespace` leads to the network namespace of the proxy; '' if this process is in the same. */
export function formatExplanation(answer: Explanation, terminal: Terminal, inNamespace: string): string {
  const { packet, verdict } = answer
  const target = `${hostPort(packet.to, packet.port)}/${packet.protocol}`
  const heading = `${packet.from} (${origins[packet.origin]}) -> ${target}, on ${answer.node}, mode ${answer.mode}`
  const lines = [
    formatParagraph(terminal.paint('bold', heading), terminal, '  '),
    formatParagraph(`  ${terminal.paint(colours[verdict], describeVerdict(answer))}`, terminal, '    '),
    ...answer.steps.map((step) => formatParagraph(`  - ${step}`, terminal, '    ')),
    ...answer.remarks.map((remark) =>
      formatParagraph(`  ${terminal.paint('yellow', '!')} ${remark}`, terminal, '    '),
    ),
  ]
  return [lines.join(''), endpointTable(answer, terminal), entryList(answer.entries, terminal, inNamespace)]
    .filter((part) => part !== '')
    .join('\n')
}

function endpointTable({ endpoints }: Explanation, terminal: Terminal): string {
  const rows = endpoints.map((endpoint) => {
    const isUsed = endpoint.probability > 0
    const share = isUsed ? `${(endpoint.probability * 100).toFixed(1)}%` : '-'
    return [`  ${endpoint.address}`, endpoint.node || '-', share, isUsed ? sourceSeenBy(endpoint) : '-', endpoint.why]
  })
  return formatTable(['  ENDPOINT', 'NODE', 'SHARE', 'SOURCE SEEN', 'WHY'], rows, terminal)
}

function sourceSeenBy({ snat }: EndpointCandidate): string {
  if (snat === null) return 'unknown'
  return snat ? 'this node' : 'the client'
}

/** Each entry with the command that shows it: a table would be too wide for commands. */
function entryList(entries: readonly EntrySummary[], terminal: Terminal, inNamespace: string): string {
  if (entries.length === 0) return ''
  const blocks = entries.map(({ name, content, command, kernel }) => {
    const text = shorten(content.replaceAll('\n', ' | '), 120)
    return [
      formatParagraph(`  ${describePresence(kernel, terminal)}  ${name}`, terminal, '    '),
      text === '' ? '' : formatParagraph(`    ${text}`, terminal, '      '),
      command === '' ? '' : terminal.paint('dim', `    $ ${inNamespace}${command}`).concat('\n'),
    ].join('')
  })
  return `${terminal.paint('bold', '  IN THE KERNEL')}\n${blocks.join('')}`
}

/** One sentence about what becomes of the packet. */
export function describeVerdict(answer: Explanation): string {
  const service = answer.service === '' ? '' : ` by ${answer.service}${answer.frontend && ` (${answer.frontend})`}`
  const used = answer.endpoints.filter(({ probability }) => probability > 0).length
  switch (answer.verdict) {
    case 'forward': {
      const to = used === 1 ? 'its one endpoint' : `one of ${count(used, 'endpoint')}`
      const affinity = answer.affinitySeconds > 0 ? `, the same for ${answer.affinitySeconds} s (ClientIP)` : ''
      return `forwarded${service} to ${to}${affinity}; source rewritten: ${describeSource(answer)}`
    }
    case 'reject':
      return `rejected${service}: ${answer.reason}`
    case 'drop':
      return `dropped${service}: ${answer.reason}`
    case 'pass':
      return `left alone: ${answer.reason}`
  }
}

function describeSource({ snat, hairpin }: Explanation): string {
  if (snat === null) return 'unknown'
  if (hairpin) return 'only if the client answers itself (hairpin)'
  return snat ? 'yes' : 'no'
}

const presences: Readonly<Record<Presence, readonly [colour: Colour | undefined, text: string]>> = {
  present: ['green', 'yes'],
  byName: ['green', 'yes (by name)'],
  unchecked: [undefined, 'not checked'],
  missing: ['red', 'MISSING'],
  differs: ['red', 'DIFFERS'],
}

function describePresence(presence: Presence, terminal: Terminal): string {
  const [colour, text] = presences[presence]
  return colour === undefined ? text : terminal.paint(colour, text)
}
