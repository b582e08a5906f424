// Formats the history for people: one sync per paragraph, with its causes and its effects; and the difference between two points. Pure.

import type { DifferenceAnswer, HistoryAnswer, HistoryRecord } from '../../http/admin-history.ts'
import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatParagraph } from '../answers/table.ts'
import type { Terminal } from '../terminal.ts'

type ObjectChange = HistoryRecord['objects'][number]
type PartChange = ObjectChange['parts'][number]
type EntryWrite = HistoryRecord['entries'][number]

/** Entries of one sync that are named. */
const shownEntries = 8
const shownParts = 12
/** The settings that a new object has anyway. */
const quietParts = new Set(['uid', 'type', 'externalTrafficPolicy', 'internalTrafficPolicy'])

export function formatHistory(answer: HistoryAnswer, now: number, terminal: Terminal): string {
  const { records, oldest, truncated } = answer
  const reach =
    oldest === null
      ? 'No sync is recorded yet.'
      : `The history begins with sync ${oldest.sync} at ${showTime(oldest.at, now)}.`
  const more = truncated ? ' Older syncs are left out: --limit shows more of them.' : ''
  // The newest comes last, where the eye of the reader is.
  const paragraphs = records.toReversed().map((record) => formatRecord(record, now, terminal))
  const none = records.length === 0 && oldest !== null ? 'No sync matches.\n' : ''
  return `${paragraphs.join('')}${none}${terminal.paint('dim', `${reach}${more}`)}\n`
}

function formatRecord(record: HistoryRecord, now: number, terminal: Terminal): string {
  const { sync, at, family, durationMs, ok } = record
  const head = `${terminal.paint('bold', showTime(at, now))} sync ${sync} (${familyName(family)}, ${durationMs.toFixed(1)} ms)`
  const causes = describeCauses(record)
  const effect = ok ? describeEffect(record) : terminal.paint('red', `FAILED: ${record.error}`)
  const refused = record.refused.map(({ service, id, error }) =>
    terminal.paint('red', `refused: ${service || 'base'}${id === '' ? '' : `, ${id}`}: ${error}`),
  )
  const [first = 'no cause is recorded', ...rest] = causes
  const lines = [...rest, effect, ...refused]
  return [
    formatParagraph(`${head}: ${first}`, terminal, '    '),
    ...lines.map((line) => formatParagraph(`    ${line}`, terminal, '      ')),
  ].join('')
}

const words: Readonly<Record<HistoryRecord['causes'][number], string>> = {
  start: 'the proxy started',
  change: 'a service was planned again',
  node: 'the node changed',
  drift: 'another program changed our rules',
  retry: 'a failed sync was tried again',
  rest: 'the rest of earlier changes',
  period: 'the longest time without a sync was over',
}

function describeCauses({ causes, objects, moreObjects, notes }: HistoryRecord): readonly string[] {
  const named = [...notes.map(describeNote), ...objects.map(describeObject)]
  if (moreObjects > 0) named.push(`and ${count(moreObjects, 'more object')}`)
  return named.length > 0 ? named : [causes.map((cause) => words[cause]).join(', ')]
}

function describeNote({ kind, service, text }: HistoryRecord['notes'][number]): string {
  const about = service === '' ? '' : ` ${service}`
  if (kind === 'drift') return `rules were changed by ${text}; repaired`
  if (kind === 'ejection') return `ejected endpoints of${about} changed: ${text}`
  if (kind === 'settings') return `settings changed: ${text}`
  if (kind === 'capacity') return `the capacity of nodes changed: ${text}`
  if (kind === 'drain') return `service${about}: ${text}`
  if (kind === 'retry') return `retry of${about || ' the base'}: ${text}`
  return kind === 'node' ? `the node changed: ${text}` : text
}

function describeObject(change: ObjectChange): string {
  const { kind, name, action, parts, moreParts } = change
  const shown = parts.filter(({ part }) => action === 'changed' || !quietParts.has(part))
  const list = shown.slice(0, shownParts).map(describePart)
  const rest = shown.length - list.length + moreParts
  if (rest > 0) list.push(`and ${rest} more`)
  return `${kind} ${name} ${action}${describeOrigin(change)}${list.length === 0 ? '' : `: ${list.join(', ')}`}`
}

function describeOrigin({ resourceVersion, manager, operation, subresource, action }: ObjectChange): string {
  const facts: string[] = []
  if (resourceVersion !== '') facts.push(`resourceVersion ${resourceVersion}`)
  const via = [operation === 'Apply' ? 'apply' : '', subresource].filter((word) => word !== '').join(', ')
  if (manager !== '') facts.push(`by ${manager}${via === '' ? '' : ` (${via})`}`)
  else if (action === 'deleted') facts.push('by whom is only in the audit log')
  else facts.push('by an unnamed manager')
  return ` (${facts.join(', ')})`
}

function describePart({ part, before, after }: PartChange): string {
  if (before === '') return `${part} added${after.startsWith('port ') ? '' : ` (${after})`}`
  return after === '' ? `${part} removed` : `${part} from ${before} to ${after}`
}

function describeEffect({ put, dropped, entries, full }: HistoryRecord): string {
  if (put + dropped === 0)
    return full ? 'everything was compared, nothing had to be written' : 'nothing had to be written'
  const names = entries.slice(0, shownEntries).map(describeEntry)
  const rest = put + dropped - names.length
  if (rest > 0) names.push(`and ${rest} more`)
  return `put ${put}, dropped ${dropped}: ${names.join(', ')}`
}

const describeEntry = ({ id, before, after }: EntryWrite): string => {
  if (after === '') return `-${id}`
  if (before === after) return `restored ${id}`
  return before === '' ? `+${id}` : `~${id}`
}

export function formatDifference(answer: DifferenceAnswer, terminal: Terminal): string {
  const { from, to, syncs, services, entries, repairs, gaps } = answer
  const lines = [
    `Between sync ${from} and sync ${to} (${count(syncs, 'recorded sync')}):`,
    ...services.flatMap(({ service, parts }) => [
      terminal.paint('bold', service === '' ? 'the node' : `service ${service}`),
      ...parts.map((part) => `  ${paintPart(part, terminal)}`),
    ]),
    ...(services.length === 0 ? ['No frontend, endpoint or setting of a service differs.'] : []),
    ...(entries.length === 0 ? [] : [terminal.paint('bold', `${entries.length} entries differ`)]),
    ...entries.map((entry) => `  ${describeEntry(entry)} (${familyName(entry.family)})`),
    ...(repairs === 0
      ? []
      : [
          `Rules were repaired in ${count(repairs, 'sync')} in between: sluice history shows by whom they were changed.`,
        ]),
    ...gaps.map((gap) => terminal.paint('yellow', `Not known: ${gap}.`)),
  ]
  return lines.map((line) => formatParagraph(line, terminal, '    ')).join('')
}

function paintPart(change: PartChange, terminal: Terminal): string {
  const { part, before, after } = change
  if (before === '') return terminal.paint('green', `+ ${part} (${after})`)
  if (after === '') return terminal.paint('red', `- ${part} (${before})`)
  return terminal.paint('yellow', `~ ${part}: ${before} before, ${after} after`)
}

/** A time of today without its date, in the local zone. */
function showTime(at: string, now: number): string {
  const [date, today] = [new Date(at), new Date(now)]
  const two = (value: number) => String(value).padStart(2, '0')
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  if (date.toDateString() === today.toDateString()) return clock
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`
}
