// The first page: what is wrong, figures with their plots over the last hour, and the last syncs.

import type { ReportSummary } from '../../src/http/admin.ts'
import type { Overview } from '../../src/http/admin-page.ts'
import type { Sample } from '../../src/http/admin-samples.ts'
import { CopyCommand } from '../parts/copy-command.tsx'
import { Plot } from '../parts/plot.tsx'
import { Badge, Empty, Section, Waiting } from '../parts/states.tsx'
import { hashOf } from '../route.ts'
import { useLive, useNow } from '../use-live.ts'
import {
  formatAge,
  formatBytes,
  formatClock,
  formatCount,
  formatMs,
  formatRate,
  formatShare,
  plural,
} from '../words.ts'

export function OverviewPage() {
  const { overview, samples } = useLive()
  const now = useNow(5_000)
  if (overview === undefined) return <Waiting what="the proxy" />
  return (
    <>
      <div class="title-row">
        <h1>Overview</h1>
        <p class="muted">
          {overview.node}, mode {overview.mode}, version {overview.version}, up{' '}
          {formatAge(now - Date.parse(overview.startedAt))}
        </p>
      </div>
      <Problems overview={overview} />
      <Tiles overview={overview} samples={samples} />
      <Syncs reports={overview.reports} now={now} />
    </>
  )
}

function Problems({ overview: { problems, savedState } }: { overview: Overview }) {
  const saved = savedState?.inUse === true ? 'The saved state is served: the API server has not answered yet.' : ''
  if (problems.length === 0 && saved === '') {
    return (
      <p class="all-well">
        <span aria-hidden="true">✓</span> Nothing is wrong: every service is programmed as wanted.
      </p>
    )
  }
  return (
    <Section title="What is wrong" class="wrong" end={<CopyCommand words={['status', '--sort-by', 'state']} />}>
      <ul class="problems">
        {saved === '' ? null : <li class="problem-warning">{saved}</li>}
        {problems.map(({ level, text }) => (
          <li key={text} class={`problem-${level}`}>
            <Badge level={level === 'error' ? 'bad' : 'warn'}>{level}</Badge> <span>{text}</span>
          </li>
        ))}
      </ul>
    </Section>
  )
}

interface Figure {
  readonly title: string
  readonly read: (sample: Sample) => number | null
  readonly format: (value: number) => string
  readonly note?: string
  readonly colour?: string
  readonly kind?: 'line' | 'bars'
  readonly page?: string
  /** A value other than 0 is marked. */
  readonly isAlarm?: boolean
}

const figures: readonly Figure[] = [
  { title: 'Services', read: (s) => s.services, format: formatCount, page: 'services' },
  { title: 'Endpoints', read: (s) => s.endpoints, format: formatCount },
  { title: 'Sync latency', read: (s) => s.syncMs, format: formatMs, note: 'longest in 10 s', kind: 'bars' },
  {
    title: 'Programming latency',
    read: (s) => s.programmingMs,
    format: formatMs,
    note: 'API event to kernel, longest in 10 s',
    kind: 'bars',
  },
  { title: 'Event-loop delay', read: (s) => s.loopDelayMs, format: formatMs, colour: 'second' },
  { title: 'Event loop busy', read: (s) => s.loopBusy, format: formatShare, colour: 'second' },
  { title: 'Memory', read: (s) => s.rssBytes, format: formatBytes, note: 'resident set', colour: 'second' },
  {
    title: 'Drift',
    read: (s) => s.drifts,
    format: formatCount,
    note: 'changes of our rules by others',
    isAlarm: true,
    kind: 'bars',
    colour: 'bad',
  },
  {
    title: 'Quarantine',
    read: (s) => s.quarantined,
    format: formatCount,
    note: 'services',
    isAlarm: true,
    colour: 'bad',
  },
  {
    title: 'Conflicts',
    read: (s) => s.conflicts,
    format: formatCount,
    note: 'addresses',
    isAlarm: true,
    colour: 'bad',
  },
]

const rate: Figure = {
  title: 'Connections per second',
  read: (s) => s.connectionsPerSecond,
  format: formatRate,
  note: 'new, to services',
}

const tracked: Figure = {
  title: 'Connections',
  read: (s) => s.tracked,
  format: formatCount,
  note: 'tracked by the kernel',
}

function Tiles({ overview, samples }: { overview: Overview; samples: readonly Sample[] }) {
  const isCounted = samples.some(({ connectionsPerSecond }) => connectionsPerSecond !== null)
  const [services, endpoints, ...others] = figures as [Figure, Figure, ...Figure[]]
  const traffic = isCounted ? [rate, tracked] : [tracked]
  return (
    <div class="tiles">
      {[services, endpoints, ...traffic, ...others].map((figure) => (
        <Tile key={figure.title} figure={figure} samples={samples} now={nowOf(figure, overview, samples)} />
      ))}
    </div>
  )
}

/** The summary is newer than the last sample. */
function nowOf({ title, read }: Figure, overview: Overview, samples: readonly Sample[]): number | null {
  if (title === 'Services') return overview.services
  if (title === 'Quarantine') return overview.quarantined.length
  if (title === 'Conflicts') return overview.conflicts.length
  if (title === 'Connections') return overview.connections?.tracked ?? null
  if (title === 'Drift') return samples.reduce((sum, { drifts }) => sum + drifts, 0)
  return samples.map(read).findLast((value) => value !== null) ?? null
}

function Tile({ figure, samples, now }: { figure: Figure; samples: readonly Sample[]; now: number | null }) {
  const { title, read, format, note, isAlarm = false, page, ...look } = figure
  const isWhole = format === formatCount
  return (
    <section class={`tile ${isAlarm && now !== null && now > 0 ? 'tile-alarm' : ''}`} aria-label={title}>
      <div class="tile-head">
        <h2>{page === undefined ? title : <a href={hashOf(page)}>{title}</a>}</h2>
        <span class="value">{now === null ? '–' : format(now)}</span>
      </div>
      <p class="note">{note ?? ' '}</p>
      <Plot
        title={title}
        times={samples.map(({ at }) => at)}
        values={samples.map(read)}
        format={format}
        isWhole={isWhole}
        {...look}
      />
    </section>
  )
}

function Syncs({ reports, now }: { reports: readonly ReportSummary[]; now: number }) {
  return (
    <Section title="Last syncs" end={<CopyCommand words={['status', '--no-kernel']} />}>
      {reports.length === 0 ? (
        <Empty title="No sync yet" />
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Last syncs">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">when</th>
                <th scope="col">family</th>
                <th scope="col">why</th>
                <th scope="col" class="number">
                  put
                </th>
                <th scope="col" class="number">
                  dropped
                </th>
                <th scope="col" class="number">
                  took
                </th>
                <th scope="col">services</th>
              </tr>
            </thead>
            <tbody>
              {reports.map((report) => (
                <SyncRow key={`${report.startedAt} ${report.family}`} report={report} now={now} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  )
}

function SyncRow({ report, now }: { report: ReportSummary; now: number }) {
  const { startedAt, family, causes, put, dropped, durationMs, services, ok, error } = report
  return (
    <tr>
      <td title={startedAt}>
        {formatClock(startedAt)} <span class="muted">{formatAge(now - Date.parse(startedAt))} ago</span>
      </td>
      <td>IPv{family}</td>
      <td>{causes.join(', ')}</td>
      <td class="number">{formatCount(put)}</td>
      <td class="number">{formatCount(dropped)}</td>
      <td class="number">{formatMs(durationMs)}</td>
      <td class="wide">{ok ? <ServiceLinks services={services} /> : <span class="bad">{error}</span>}</td>
    </tr>
  )
}

const shownServices = 3

export function ServiceLinks({ services }: { services: readonly string[] }) {
  if (services.length === 0) return <span class="muted">–</span>
  const rest = services.length - shownServices
  return (
    <>
      {services.slice(0, shownServices).map((name, index) => (
        <>
          {index > 0 ? ', ' : ''}
          <a href={hashOf('service', { name })}>{name}</a>
        </>
      ))}
      {rest > 0 ? <span class="muted"> and {plural(rest, 'other')}</span> : null}
    </>
  )
}
