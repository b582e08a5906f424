// Syncs as a timeline: when, why, by which object and manager, and what was put and dropped.

import type { HistoryRecord } from '../../src/http/admin-history.ts'
import { ServiceLinks } from '../pages/overview-page.tsx'
import { useNow } from '../use-live.ts'
import { formatAge, formatClock, formatCount, formatMs, plural } from '../words.ts'
import { Badge } from './states.tsx'

export function Timeline({ records }: { records: readonly HistoryRecord[] }) {
  const now = useNow(5_000)
  return (
    <ol class="timeline">
      {records.map((record) => (
        <li key={record.sync} class={lookOf(record)}>
          <p class="timeline-head">
            <time dateTime={record.at} title={record.at}>
              {formatClock(record.at)}
            </time>{' '}
            <span class="muted">
              {formatAge(now - Date.parse(record.at))} ago, sync {record.sync}, IPv{record.family}
            </span>{' '}
            {record.ok ? null : <Badge level="bad">failed</Badge>}
            {record.causes.includes('drift') ? <Badge level="warn">drift repaired</Badge> : null}
          </p>
          <Causes record={record} />
          <Effects record={record} />
        </li>
      ))}
    </ol>
  )
}

function lookOf({ ok, causes }: HistoryRecord): string {
  if (!ok) return 'timeline-bad'
  return causes.includes('drift') ? 'timeline-warn' : ''
}

type ObjectChange = HistoryRecord['objects'][number]
const shownObjects = 4

function Causes({ record: { causes, objects, moreObjects, notes } }: { record: HistoryRecord }) {
  const rest = moreObjects + Math.max(0, objects.length - shownObjects)
  return (
    <ul class="causes">
      {notes.map(({ kind, service, text }) => (
        <li key={`${kind} ${service} ${text}`}>
          {kind}: {text || service || 'all services'}
        </li>
      ))}
      {objects.slice(0, shownObjects).map((change) => (
        <li key={`${change.kind} ${change.name} ${change.resourceVersion}`}>
          <ChangedObject change={change} />
        </li>
      ))}
      {rest > 0 ? <li class="muted">and {plural(rest, 'more object')}</li> : null}
      {notes.length + objects.length === 0 ? <li>{causes.join(', ')}</li> : null}
    </ul>
  )
}

const shownParts = 6

function ChangedObject({ change }: { change: ObjectChange }) {
  const { kind, name, action, resourceVersion, manager, parts, moreParts } = change
  const by = manager === '' ? '' : ` by ${manager}`
  const version = resourceVersion === '' ? '' : `, version ${resourceVersion}`
  const rest = moreParts + Math.max(0, parts.length - shownParts)
  return (
    <>
      {kind} <b>{name}</b> {action}
      <span class="muted">
        {by}
        {version}
      </span>
      {parts.length === 0 ? null : (
        <ul class="parts mono">
          {parts.slice(0, shownParts).map(({ part, before, after }) => (
            <li key={part}>{describePart(part, before, after)}</li>
          ))}
          {rest > 0 ? <li class="muted">and {formatCount(rest)} more</li> : null}
        </ul>
      )}
    </>
  )
}

function describePart(part: string, before: string, after: string): string {
  if (before === '') return `+ ${part} ${after}`
  return after === '' ? `− ${part} ${before}` : `~ ${part} ${before} → ${after}`
}

function Effects({ record }: { record: HistoryRecord }) {
  const { put, dropped, durationMs, services, error, refused } = record
  return (
    <p class="muted">
      {plural(put, 'entry').replace('entrys', 'entries')} put, {formatCount(dropped)} dropped in {formatMs(durationMs)}
      {services.length === 0 ? null : (
        <>
          ; <ServiceLinks services={services} />
        </>
      )}
      {error === '' ? null : <span class="bad"> {error}</span>}
      {refused.map((one) => (
        <span key={one.id} class="bad">
          {' '}
          {one.service} was refused: {one.error}
        </span>
      ))}
    </p>
  )
}
