// What feeds the metrics: sync reports, API requests, health answers, kernel counters; and the text of /metrics.

import { collectDefaultMetrics, type Registry } from 'prom-client'
import type { PortCounters } from '../backend/backend.ts'
import type { MetricTraits, ProxyMode } from '../backend/proxy-mode.ts'
import type { ChangeKind, JournalListener, SyncReport } from '../engine/journal.ts'
import { describeError } from '../lib/errors.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, systemClock } from '../lib/time.ts'
import { checks, declarationsFor } from './metric-table.ts'
import { Instruments } from './metrics-registry.ts'

interface MeasuredRequest {
  readonly verb: string
  readonly host: string
  /** HTTP status, or `<error>` if there was no answer. */
  readonly code: string
  readonly durationMs: number
  readonly requestBytes: number
  readonly responseBytes: number
  /** A stream: client-go counts it, and measures neither its time nor its size. */
  readonly watch?: boolean
}

export interface BuildVersion {
  /** The Kubernetes version stood in for: `v1.36.4`. */
  readonly kubernetes: string
  readonly sluice: string
  readonly commit?: string
  readonly buildDate?: string
}

interface Feature {
  readonly name: string
  /** `ALPHA`, `BETA`, `DEPRECATED`; '' for GA. */
  readonly stage: string
  readonly enabled: boolean
}

export interface MetricsOptions {
  readonly mode: Pick<ProxyMode, 'name' | 'metrics'>
  readonly version: BuildVersion
  readonly features?: readonly Feature[]
  /** Read at each scrape. */
  readonly conflicts?: () => number
  readonly quarantined?: () => number
  /** nfacct object name to packets, read at each scrape; absent where nfacct does not work. */
  readonly packetCounters?: () => Promise<Readonly<Record<string, number>>>
  /** Traffic by service port, of at most so many of them, read at each scrape. */
  readonly portCounters?: (limit: number) => Promise<readonly PortCounters[]>
  readonly log: Logger
  readonly clock?: Clock
  /** prom-client's process_* and nodejs_*; off only where many proxies share one process. */
  readonly processMetrics?: boolean
}

export type Metrics = ReturnType<typeof createMetrics>

const contentType = 'text/plain; version=0.0.4; charset=utf-8'

export function createMetrics(options: MetricsOptions) {
  const clock = options.clock ?? systemClock
  const declarations = declarationsFor(options.mode, options.packetCounters !== undefined)
  const live = new Instruments(declarations)
  const slis = new Instruments(checks)
  if (options.processMetrics ?? true) collectProcessMetrics(live.registry)
  recordConstants(live, options)
  for (const { stability } of declarations)
    live.add('registered_metrics_total', { stability_level: stability ?? 'ALPHA', deprecated_version: '' })

  return {
    contentType,
    /** For `journal.subscribe`. */
    journal: journalListener(live, options),
    /** The API client's RequestObserver. */
    requests: requestObserver(live),
    /** For ProxyHealth. */
    answered(endpoint: 'healthz' | 'livez', code: number): void {
      live.add(`kubeproxy_proxy_${endpoint}_total`, { code: String(code) })
    },
    /** One look for stale UDP flows. */
    conntrack(family: Family, durationMs: number, deleted: number): void {
      const labels = { ip_family: familyName(family) }
      live.observe('kubeproxy_conntrack_reconciler_sync_duration_seconds', labels, durationMs / 1000)
      live.add('kubeproxy_conntrack_reconciler_deleted_entries_total', labels, deleted)
    },
    /** A check of the metrics server's own /healthz. */
    checked(name: string, type: string, passed: boolean): void {
      slis.set('kubernetes_healthcheck', { name, type }, passed ? 1 : 0)
      slis.add('kubernetes_healthchecks_total', { name, type, status: passed ? 'success' : 'error' })
    },
    async text(): Promise<string> {
      live.flush()
      await refresh(live, options, clock)
      // prom-client 15 writes `Nan`; Go's reader takes it, the format's definition does not.
      return (await live.registry.metrics()).replace(/ Nan$/gm, ' NaN')
    },
    async slis(): Promise<string> {
      const start = Math.round(performance.timeOrigin / 1000)
      const head = '# HELP process_start_time_seconds [ALPHA] Unix time at which the process started.'
      const processStart = `${head}\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds ${start}\n`
      return `${await slis.registry.metrics()}\n${processStart}`
    },
    resetSlis(): void {
      slis.registry.resetMetrics()
    },
  }
}

/**
 * What prom-client knows of a process, but for the distribution of the event loop's lag: for that it wakes the process a hundred times a
 * second, day and night, which costs an idle node more than all of its changes. The lag at the moment of a scrape stays.
 */
function collectProcessMetrics(register: Registry): void {
  collectDefaultMetrics({ register, eventLoopMonitoringPrecision: longestTimerMs })
  for (const figure of ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99']) {
    register.removeSingleMetric(`nodejs_eventloop_lag_${figure}_seconds`)
  }
}

const longestTimerMs = 2 ** 31 - 1

function journalListener(live: Instruments, { mode, clock = systemClock }: MetricsOptions) {
  const prefix = 'kubeproxy_sync_proxy_rules_'
  const of = (kind: 'service' | 'endpoint') => ({
    total: live.series(`${prefix}${kind}_changes_total`, {}),
    pending: live.series(`${prefix}${kind}_changes_pending`, {}),
  })
  const changes: Readonly<Record<ChangeKind, ReturnType<typeof of>>> = { service: of('service'), slice: of('endpoint') }
  const families = { 4: familySeries(live, 4), 6: familySeries(live, 6) }
  const queued = (family: Family, at: number): void => families[family].queued.set(at / 1000)
  const pending = (kind: ChangeKind, count: number): void => changes[kind].pending.set(count)
  const culprits = new Map<Family, string>()

  return {
    queued,
    started: queued,
    pending,
    change(kind: ChangeKind, count: number): void {
      changes[kind].total.add()
      pending(kind, count)
    },
    drift(family: Family, culprit: string): void {
      const ip_family = familyName(family)
      live.add('sluice_drift_repairs_total', { ip_family })
      // Processes come and go: one series per family, or their numbers would fill the scraper.
      const before = culprits.get(family)
      if (before !== undefined) live.remove('sluice_drift_last_timestamp_seconds', { ip_family, culprit: before })
      culprits.set(family, culprit)
      live.set('sluice_drift_last_timestamp_seconds', { ip_family, culprit }, clock.now() / 1000)
    },
    problem({ kind }: { readonly kind: string }): void {
      live.add('sluice_object_problems_total', { kind })
    },
    report(report: SyncReport): void {
      const series = families[report.family]
      recordSync(series, report)
      if (report.ok) recordSuccess(series, report, mode.metrics)
      else recordFailure(live, report, mode.metrics)
      recordFigures(live, report)
    },
  } satisfies JournalListener
}

type FamilySeries = ReturnType<typeof familySeries>

/** What every sync tells. */
function familySeries(live: Instruments, family: Family) {
  const labels = { ip_family: familyName(family) }
  const noLocal = (policy: 'internal' | 'external') =>
    live.series('kubeproxy_sync_proxy_rules_no_local_endpoints_total', { traffic_policy: policy, ...labels })
  const duration = (kind: string) => live.histogram(`kubeproxy_sync_${kind}proxy_rules_duration_seconds`, labels)
  return {
    took: duration(''),
    tookFull: duration('full_'),
    tookPartial: duration('partial_'),
    programmed: live.histogram('kubeproxy_network_programming_duration_seconds', labels),
    queued: live.series('kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds', labels),
    finished: live.series('kubeproxy_sync_proxy_rules_last_timestamp_seconds', labels),
    refused: live.series('sluice_entries_refused_total', labels),
    held: live.series('sluice_entries_held', labels),
    put: live.series('sluice_ledger_put_total', labels),
    dropped: live.series('sluice_ledger_drop_total', labels),
    noLocal: { internal: noLocal('internal'), external: noLocal('external') },
  }
}

function requestObserver(live: Instruments) {
  return {
    request({ verb, host, code, durationMs, requestBytes, responseBytes, watch }: MeasuredRequest): void {
      live.add('rest_client_requests_total', { code, method: verb, host })
      if (watch) return
      live.observe('rest_client_request_duration_seconds', { verb, host }, durationMs / 1000)
      live.observe('rest_client_request_size_bytes', { verb, host }, requestBytes)
      live.observe('rest_client_response_size_bytes', { verb, host }, responseBytes)
    },
    throttled(verb: string, host: string, ms: number): void {
      live.observe('rest_client_rate_limiter_duration_seconds', { verb, host }, ms / 1000)
    },
    retried(verb: string, host: string, code: string): void {
      live.add('rest_client_request_retries_total', { code, verb, host })
    },
    /** A client made its pool of connections. */
    connected(): void {
      live.add('rest_client_transport_create_calls_total', { result: 'miss' })
      live.set('rest_client_transport_cache_entries', {}, 1)
    },
    /** An exec credential plugin ran. */
    plugin(exitCode: number, status: string): void {
      live.add('rest_client_exec_plugin_call_total', { code: String(exitCode), call_status: status })
    },
  }
}

function recordConstants(live: Instruments, { mode, version, features }: MetricsOptions): void {
  const [, major = '', minor = ''] = /^v?(\d+)\.(\d+)/.exec(version.kubernetes) ?? []
  const labels = {
    major,
    minor,
    git_version: version.kubernetes,
    git_commit: version.commit ?? '',
    git_tree_state: '',
    build_date: version.buildDate ?? '',
    go_version: `node ${process.version}`,
    compiler: 'v8',
    platform: `${process.platform}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
  }
  live.set('kubernetes_build_info', labels, 1)
  live.set('sluice_build_info', { version: version.sluice, mode: mode.name }, 1)
  live.set('rest_client_exec_plugin_ttl_seconds', {}, Number.POSITIVE_INFINITY)
  for (const { name, stage, enabled } of features ?? []) {
    live.set('kubernetes_feature_enabled', { name, stage }, enabled ? 1 : 0)
  }
}

function recordSync(series: FamilySeries, report: SyncReport): void {
  const seconds = report.durationMs / 1000
  series.took(seconds)
  if (report.full) series.tookFull(seconds)
  else series.tookPartial(seconds)
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
    series.programmed(Math.max(0, finished - trigger) / 1000)
  }
  const noLocal = noLocalUnit === 'services' ? report.noLocalServices : report.noLocal
  series.noLocal.internal.set(noLocal.internal)
  series.noLocal.external.set(noLocal.external)
}

/** A backend that counts its failures itself says so in its figures; else a failed sync is one failure. */
function recordFailure(live: Instruments, report: SyncReport, { failureFigures }: MetricTraits): void {
  const labels = { ip_family: familyName(report.family) }
  for (const figure of failureFigures(report)) {
    if (report.figures[figure] === undefined) live.add(`kubeproxy_sync_proxy_rules_${figure}_total`, labels)
  }
}

/** `iptables_total{nat}` is kubeproxy_sync_proxy_rules_iptables_total with table="nat"; counters may be named without `_total`. */
function recordFigures(live: Instruments, { family, figures }: SyncReport): void {
  const ipFamily = familyName(family)
  for (const [figure, value] of Object.entries(figures)) {
    const [, base = figure, inner] = /^(\w+)(?:\{(\w+)\})?$/.exec(figure) ?? []
    const full = [`sync_proxy_rules_${base}`, base].flatMap((name) => [`kubeproxy_${name}`, `kubeproxy_${name}_total`])
    const name = full.find((candidate) => live.has(candidate))
    if (name === undefined) {
      live.set('sluice_backend_figure', { figure, ip_family: ipFamily }, value)
      continue
    }
    const labels = { ...(inner === undefined ? {} : { table: inner }), ip_family: ipFamily }
    if (live.counts(name)) live.add(name, labels, value)
    else live.set(name, labels, value)
  }
}

const counterDeadlineMs = 2_000
/** Service ports that have series of their own; each has five. */
const countedPorts = 200

async function refresh(live: Instruments, options: MetricsOptions, clock: Clock): Promise<void> {
  if (options.conflicts !== undefined) live.set('sluice_conflicts', {}, options.conflicts())
  if (options.quarantined !== undefined) live.set('sluice_quarantined_services', {}, options.quarantined())
  const { packetCounters, portCounters } = options
  // The other metrics matter more than these; the last values stay.
  const attempt = async (read: () => Promise<void>) => {
    try {
      await read()
    } catch (error) {
      options.log.error('cannot read packet counters', { error: describeError(error) })
    }
  }
  if (packetCounters !== undefined) {
    await attempt(async () => {
      const packets = await withDeadline(packetCounters(), clock)
      for (const { name, nfacct } of declarationsFor(options.mode, true)) {
        const value = nfacct === undefined ? undefined : packets[nfacct]
        if (value !== undefined) live.set(name, {}, value)
      }
    })
  }
  if (portCounters !== undefined) {
    await attempt(async () => recordPorts(live, await withDeadline(portCounters(countedPorts), clock)))
  }
}

function recordPorts(live: Instruments, ports: readonly PortCounters[]): void {
  const labelled = ports.map((one) => [portLabels(one), one] as const)
  const both = (name: string, of: (one: PortCounters) => readonly [number, number]) =>
    live.replace(
      name,
      labelled.flatMap(([labels, one]) => {
        const [received, sent] = of(one)
        return [[{ ...labels, direction: 'in' }, received] as const, [{ ...labels, direction: 'out' }, sent] as const]
      }),
    )
  live.replace(
    'sluice_service_connections_total',
    labelled.map(([labels, { connections }]) => [labels, connections] as const),
  )
  both('sluice_service_packets_total', ({ packetsIn, packetsOut }) => [packetsIn, packetsOut])
  both('sluice_service_bytes_total', ({ bytesIn, bytesOut }) => [bytesIn, bytesOut])
}

/** Of `ns/name:port`; `ns/name` if the port has no name; the rest has a name only. */
function portLabels({ family, port: text }: PortCounters) {
  const [, namespace = '', service = text, port = ''] = /^([^/]*)\/([^:]*):?(.*)$/.exec(text) ?? []
  return { namespace, service, port, ip_family: familyName(family) }
}

function withDeadline<T>(work: Promise<T>, clock: Clock): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.after(counterDeadlineMs, () => reject(new Error('no answer in time')))
    work.then(resolve, reject).finally(() => timer.cancel())
  })
}
