// Creates all metrics of a proxy, connects what feeds them, and writes the text of /metrics and /metrics/slis.

import type { ProxyMode } from '../backend/proxy-mode.ts'
import { type Family, familyName } from '../lib/ip.ts'
import { type Clock, systemClock } from '../lib/time.ts'
import { platform } from '../sys/platform/platform.ts'
import { type KernelCounters, readKernelCounters } from './feeds/kernel-metrics.ts'
import { readProcessMetrics } from './feeds/process-metrics.ts'
import { recordRequests } from './feeds/request-metrics.ts'
import { createRuntimeMetrics } from './feeds/runtime-metrics.ts'
import { recordSyncs } from './feeds/sync-metrics.ts'
import { declarationsFor, sliDeclarations } from './metric-table.ts'
import { MetricsRegistry } from './registry/metrics-registry.ts'

export interface BuildVersion {
  /** The Kubernetes version that this proxy is compatible with: `v1.36.4`. */
  readonly kubernetes: string
  readonly sluice: string
  readonly commit?: string
  readonly buildDate?: string
}

interface FeatureState {
  readonly name: string
  /** `ALPHA`, `BETA`, `DEPRECATED`; '' for GA. */
  readonly stage: string
  readonly enabled: boolean
}

interface HistoryFigures {
  readonly records: number
  readonly bytes: number
  /** True while records cannot be written on disk. */
  readonly unwritten: boolean
}

export interface MetricsOptions extends KernelCounters {
  readonly mode: Pick<ProxyMode, 'name' | 'metrics'>
  readonly version: BuildVersion
  readonly features?: readonly FeatureState[]
  /** Milliseconds since the API server last sent anything. Called at each scrape. */
  readonly apiServerSilentMs?: () => number
  /** Called at each scrape. */
  readonly conflicts?: () => number
  /** Called at each scrape. */
  readonly quarantined?: () => number
  /** Called at each scrape. */
  readonly invalidManifests?: () => number
  /** Called at each scrape. */
  readonly savedState?: () => { readonly inUse: boolean; readonly bytesWritten: number }
  /** Called at each scrape. */
  readonly history?: () => HistoryFigures
  readonly clock?: Clock
  /** False leaves out process_* and nodejs_*, for tests with many proxies in one process. */
  readonly processMetrics?: boolean
}

export type Metrics = ReturnType<typeof createMetrics>

const contentType = 'text/plain; version=0.0.4; charset=utf-8'

export function createMetrics(options: MetricsOptions) {
  const { mode, clock = systemClock } = options
  const declarations = declarationsFor(mode, options.packetCounters !== undefined)
  const registry = new MetricsRegistry(declarations)
  const slis = new MetricsRegistry(sliDeclarations)
  const runtime = (options.processMetrics ?? true) ? createRuntimeMetrics() : undefined
  setConstants(registry, options)
  for (const { stability } of declarations) {
    registry.add('registered_metrics_total', { stability_level: stability ?? 'ALPHA', deprecated_version: '' })
  }
  return {
    contentType,
    journal: recordSyncs(registry, mode.metrics),
    requests: recordRequests(registry),
    /** Called when the health server has answered. */
    answered(endpoint: 'healthz' | 'livez', code: number): void {
      registry.add(`kubeproxy_proxy_${endpoint}_total`, { code: String(code) })
    },
    /** Called after each search for stale UDP flows. */
    conntrack: recordStaleFlows(registry),
    /** Called when the file of our own settings was read again. */
    settings: recordSettings(registry),
    ...recordResilience(registry),
    /** Called while someone follows flows. */
    flows: recordFlows(registry),
    /** Called while packets and bytes are counted from connection tracking. */
    accounting: recordAccounting(registry),
    /** Called after each search for connections that clients dialled too early. */
    earlyFlows(family: Family, removed: number): void {
      registry.add('sluice_early_connections_removed_total', { ip_family: familyName(family) }, removed)
    },
    /** Called after each check of the metrics server's own /healthz. */
    checked(name: string, type: string, passed: boolean): void {
      slis.set('kubernetes_healthcheck', { name, type }, passed ? 1 : 0)
      slis.add('kubernetes_healthchecks_total', { name, type, status: passed ? 'success' : 'error' })
    },
    async text(): Promise<string> {
      readGauges(registry, options)
      readProcessMetrics(registry)
      await readKernelCounters(registry, declarations, options, clock)
      return runtime === undefined ? registry.text() : `${registry.text()}\n${runtime.text()}`
    },
    slis: (): string => `${slis.text()}\n${processStart()}`,
    resetSlis: (): void => slis.reset(),
  }
}

const recordResilience = (registry: MetricsRegistry) => ({
  draining: (ports: number): void => registry.set('sluice_draining_ports', {}, ports),
  resetConnections: (protocol: string, ended: number): void =>
    registry.add('sluice_reset_connections_total', { protocol }, ended),
  /** Called by the ejection of endpoints to which connections fail. */
  outliers: recordOutliers(registry),
  /** Called by the probes of endpoints. */
  probes: recordProbes(registry),
  /** Called by the canary. */
  canary: recordCanary(registry),
})

const recordCanary = (registry: MetricsRegistry) => ({
  answered(family: Family, programmingMs: number, connectMs: number): void {
    const labels = { ip_family: familyName(family) }
    registry.observe('sluice_canary_programming_duration_seconds', labels, programmingMs / 1000)
    registry.observe('sluice_canary_connect_duration_seconds', labels, connectMs / 1000)
  },
  failed: (family: Family): void => registry.add('sluice_canary_failures_total', { ip_family: familyName(family) }),
  broken: (family: Family, isBroken: boolean): void =>
    registry.set('sluice_canary_broken', { ip_family: familyName(family) }, isBroken ? 1 : 0),
})

const recordStaleFlows =
  (registry: MetricsRegistry) =>
  (family: Family, durationMs: number, deleted: number): void => {
    const labels = { ip_family: familyName(family) }
    registry.observe('kubeproxy_conntrack_reconciler_sync_duration_seconds', labels, durationMs / 1000)
    registry.add('kubeproxy_conntrack_reconciler_deleted_entries_total', labels, deleted)
  }

const recordOutliers = (registry: MetricsRegistry) => ({
  set: (ejected: number): void => registry.set('sluice_ejected_endpoints', {}, ejected),
  ejected: (): void => registry.add('sluice_ejections_total', {}),
  lost: (): void => registry.add('sluice_connection_events_lost_total', {}),
})

const recordSettings = (registry: MetricsRegistry) => ({
  applied: (): void => registry.add('sluice_settings_applied_total', {}),
  refused: (isRefused: boolean): void => registry.set('sluice_settings_refused', {}, isRefused ? 1 : 0),
})

const recordProbes = (registry: MetricsRegistry) => ({
  set: (probed: number): void => registry.set('sluice_probed_endpoints', {}, probed),
  ended: (kind: string, result: 'success' | 'failure' | 'unknown'): void =>
    registry.add('sluice_probes_total', { kind, result }),
  delayed: (count: number): void => registry.add('sluice_probes_delayed_total', {}, count),
})

const recordFlows = (registry: MetricsRegistry) => ({
  watchers: (count: number): void => registry.set('sluice_flow_watchers', {}, count),
  lost: (): void => registry.add('sluice_flow_events_lost_total', {}),
})

const recordAccounting = (registry: MetricsRegistry) => ({
  lost: (): void => registry.add('sluice_accounting_events_lost_total', {}),
})

function readGauges(registry: MetricsRegistry, options: MetricsOptions): void {
  const { apiServerSilentMs, conflicts, quarantined, invalidManifests } = options
  const { records = 0, bytes = 0, unwritten = false } = options.history?.() ?? {}
  registry.set('sluice_history_records', {}, records)
  registry.set('sluice_history_bytes', {}, bytes)
  registry.set('sluice_history_unwritten', {}, unwritten ? 1 : 0)
  const { inUse = false, bytesWritten = 0 } = options.savedState?.() ?? {}
  registry.set('sluice_saved_state_in_use', {}, inUse ? 1 : 0)
  registry.set('sluice_saved_state_written_bytes', {}, bytesWritten)
  if (apiServerSilentMs !== undefined) {
    registry.set('sluice_api_server_silence_seconds', {}, apiServerSilentMs() / 1000)
  }
  if (conflicts !== undefined) registry.set('sluice_conflicts', {}, conflicts())
  if (quarantined !== undefined) registry.set('sluice_quarantined_services', {}, quarantined())
  if (invalidManifests !== undefined) registry.set('sluice_invalid_manifests', {}, invalidManifests())
}

function processStart(): string {
  const name = 'process_start_time_seconds'
  const value = Math.round(performance.timeOrigin / 1000)
  return `# HELP ${name} [ALPHA] Unix time at which the process started.\n# TYPE ${name} gauge\n${name} ${value}\n`
}

function setConstants(registry: MetricsRegistry, { mode, version, features }: MetricsOptions): void {
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
    platform: `${platform.name.toLowerCase()}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
  }
  registry.set('kubernetes_build_info', labels, 1)
  registry.set('sluice_build_info', { version: version.sluice, mode: mode.name }, 1)
  registry.set('rest_client_exec_plugin_ttl_seconds', {}, Number.POSITIVE_INFINITY)
  registry.set('rest_client_transport_cert_rotation_gc_calls_total', {}, 0)
  for (const { name, stage, enabled } of features ?? []) {
    registry.set('kubernetes_feature_enabled', { name, stage }, enabled ? 1 : 0)
  }
}
