// Feeds the metrics of syncs, changes and drift from the engine's journal.

import type { MetricTraits } from '../../backend/proxy-mode.ts'
import type { ChangeKind, DriftRecord, JournalListener, SyncReport } from '../../engine/journal.ts'
import { type Family, familyName } from '../../lib/ip.ts'
import type { MetricsRegistry } from '../registry/metrics-registry.ts'

const prefix = 'kubeproxy_sync_proxy_rules_'

/** Returns the listener for `journal.subscribe`. */
export function recordSyncs(registry: MetricsRegistry, traits: MetricTraits) {
  const changes: Readonly<Record<ChangeKind, ChangeSeries>> = {
    service: makeChangeSeries(registry, 'service'),
    slice: makeChangeSeries(registry, 'endpoint'),
  }
  const families = { 4: makeFamilySeries(registry, 4), 6: makeFamilySeries(registry, 6) }
  const queued = (family: Family, at: number): void => families[family].queued.set(at / 1000)
  const pending = (kind: ChangeKind, count: number): void => changes[kind].pending.set(count)

  return {
    queued,
    started: queued,
    pending,
    change(kind: ChangeKind, count: number): void {
      changes[kind].total.add()
      pending(kind, count)
    },
    drift: (drift: DriftRecord): void => recordDrift(registry, drift),
    problem({ kind }: { readonly kind: string }): void {
      registry.add('sluice_object_problems_total', { kind })
    },
    report(report: SyncReport): void {
      const series = families[report.family]
      if (report.ok) recordSuccess(series, report, traits)
      if (report.idle) return
      recordSync(series, report)
      if (!report.ok) recordFailure(registry, report, traits)
      recordFigures(registry, report)
    },
  } satisfies JournalListener
}

type ChangeSeries = ReturnType<typeof makeChangeSeries>

const makeChangeSeries = (registry: MetricsRegistry, kind: 'service' | 'endpoint') => ({
  total: registry.series(`${prefix}${kind}_changes_total`, {}),
  pending: registry.series(`${prefix}${kind}_changes_pending`, {}),
})

type FamilySeries = ReturnType<typeof makeFamilySeries>

/** The series that every sync of a family changes. */
function makeFamilySeries(registry: MetricsRegistry, family: Family) {
  const labels = { ip_family: familyName(family) }
  const noLocal = (policy: 'internal' | 'external') =>
    registry.series(`${prefix}no_local_endpoints_total`, { traffic_policy: policy, ...labels })
  const duration = (kind: string) =>
    registry.bufferedHistogram(`kubeproxy_sync_${kind}proxy_rules_duration_seconds`, labels)
  return {
    observeDuration: duration(''),
    observeFullDuration: duration('full_'),
    observePartialDuration: duration('partial_'),
    observeLatency: registry.bufferedHistogram('kubeproxy_network_programming_duration_seconds', labels),
    queued: registry.series(`${prefix}last_queued_timestamp_seconds`, labels),
    finished: registry.series(`${prefix}last_timestamp_seconds`, labels),
    refused: registry.series('sluice_entries_refused_total', labels),
    held: registry.series('sluice_entries_held', labels),
    put: registry.series('sluice_ledger_put_total', labels),
    dropped: registry.series('sluice_ledger_drop_total', labels),
    noLocal: { internal: noLocal('internal'), external: noLocal('external') },
  }
}

function recordDrift(registry: MetricsRegistry, { family, reason, at }: DriftRecord): void {
  const ip_family = familyName(family)
  registry.add('sluice_drift_repairs_total', { ip_family })
  registry.set('sluice_drift_last_timestamp_seconds', { ip_family, reason }, at / 1000)
}

function recordSync(series: FamilySeries, report: SyncReport): void {
  const seconds = report.durationMs / 1000
  series.observeDuration(seconds)
  if (report.full) series.observeFullDuration(seconds)
  else series.observePartialDuration(seconds)
  series.refused.add(report.refused.length)
  series.held.set(report.held)
  series.put.add(report.put)
  series.dropped.add(report.dropped)
}

function recordSuccess(series: FamilySeries, report: SyncReport, { noLocalUnit }: MetricTraits): void {
  const finished = report.startedAt + report.durationMs
  series.finished.set(finished / 1000)
  for (const trigger of report.triggers) {
    // Clocks of the control plane may be ahead of this node's.
    series.observeLatency(Math.max(0, finished - trigger) / 1000)
  }
  const noLocal = noLocalUnit === 'services' ? report.noLocalServices : report.noLocal
  series.noLocal.internal.set(noLocal.internal)
  series.noLocal.external.set(noLocal.external)
}

/** A failed sync counts as one failure, unless the backend counts its failures itself and reports them in its figures. */
function recordFailure(registry: MetricsRegistry, report: SyncReport, { failureFigures }: MetricTraits): void {
  const labels = { ip_family: familyName(report.family) }
  for (const figure of failureFigures(report)) {
    if (report.figures[figure] === undefined) registry.add(`${prefix}${figure}_total`, labels)
  }
}

/** `iptables_total{nat}` is kubeproxy_sync_proxy_rules_iptables_total with table="nat"; counters may be named without `_total`. */
function recordFigures(registry: MetricsRegistry, { family, figures }: SyncReport): void {
  const ipFamily = familyName(family)
  for (const [figure, value] of Object.entries(figures)) {
    const [, base = figure, table] = /^(\w+)(?:\{(\w+)\})?$/.exec(figure) ?? []
    const name = findMetricName(registry, base)
    const labels = { ...(table === undefined ? {} : { table }), ip_family: ipFamily }
    if (name === undefined) registry.set('sluice_backend_figure', { figure, ip_family: ipFamily }, value)
    else if (registry.isCounter(name)) registry.add(name, labels, value)
    else registry.set(name, labels, value)
  }
}

const findMetricName = (registry: MetricsRegistry, figure: string): string | undefined =>
  [`sync_proxy_rules_${figure}`, figure]
    .flatMap((name) => [`kubeproxy_${name}`, `kubeproxy_${name}_total`])
    .find((name) => registry.has(name))
