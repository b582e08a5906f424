// Every metric, declared once: upstream's names, types, labels and buckets. Registration and docs/metrics.md both come from here.

import type { Mode } from '../backend/backend.ts'

export interface Declaration {
  readonly name: string
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly labels: readonly string[]
  readonly buckets?: Buckets
  /** Absent: all of them. In other modes the metric is not registered at all. */
  readonly modes?: readonly Mode[]
  /** The nfacct object that is read at each scrape; without nfacct the metric is not registered. */
  readonly nfacct?: string
  readonly stability?: 'ALPHA' | 'BETA' | 'STABLE'
  readonly help: string
}

type Buckets = keyof typeof bucketSets

const range = (from: number, to: number, step: number): number[] =>
  Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step)

export const bucketSets = {
  /** 1 ms doubling to 16 s. */
  EXP: range(0, 14, 1).map((i) => 2 ** i / 1000),
  /** Network programming latency: fine below a minute, coarse to five. */
  NPL: [0.25, 0.5, ...range(1, 59, 1), ...range(60, 115, 5), ...range(120, 300, 30)],
  /** Requests to the API server. */
  REQUEST: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
  /** Bodies, 64 B to 16 MiB. */
  SIZE: [64, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216],
  /** Certificate lives, ten minutes to four years. */
  ROTATION: [600, 1800, 3600, 14_400, 86_400, 604_800, 2_592_000, 7_776_000, 15_552_000, 31_104_000, 124_416_000],
} as const satisfies Record<string, readonly number[]>

const family = ['ip_family'] as const
const servicePort = ['namespace', 'service', 'port', 'ip_family'] as const
/** Series of each of them are bounded: one scrape of a large cluster's node must stay small. */
const counted = 'those of the 200 busiest service ports; the rest together is service="others"'
const kernelModes: readonly Mode[] = ['iptables', 'ipvs', 'nftables']
const ruleModes: readonly Mode[] = ['iptables', 'nftables']

type Rest = Partial<Pick<Declaration, 'buckets' | 'modes' | 'nfacct' | 'stability'>>
const make =
  (type: Declaration['type']) =>
  (name: string, labels: readonly string[], help: string, rest: Rest = {}): Declaration => ({
    name,
    type,
    labels,
    help,
    ...rest,
  })
const counter = make('counter')
const gauge = make('gauge')
const histogram = make('histogram')

/** What kube-proxy calls `kubeproxy_…`; the prefix is added below. */
const proxy: readonly Declaration[] = [
  histogram('sync_proxy_rules_duration_seconds', family, 'Time a sync took, whether it succeeded or not.', {
    buckets: 'EXP',
  }),
  histogram(
    'sync_full_proxy_rules_duration_seconds',
    family,
    'Time a sync took that compared everything with the kernel.',
    { buckets: 'EXP', modes: ruleModes },
  ),
  histogram('sync_partial_proxy_rules_duration_seconds', family, 'Time a sync took that wrote only changes.', {
    buckets: 'EXP',
    modes: ruleModes,
  }),
  gauge('sync_proxy_rules_last_timestamp_seconds', family, 'Unix time at which a sync last succeeded.'),
  gauge('sync_proxy_rules_last_queued_timestamp_seconds', family, 'Unix time at which a sync was last queued.'),
  histogram(
    'network_programming_duration_seconds',
    family,
    'Time from a change of endpoints in the cluster until the kernel has it.',
    { buckets: 'NPL' },
  ),
  gauge('sync_proxy_rules_endpoint_changes_pending', [], 'EndpointSlice changes that no sync has taken up yet.'),
  counter('sync_proxy_rules_endpoint_changes_total', [], 'EndpointSlice events seen.'),
  gauge('sync_proxy_rules_service_changes_pending', [], 'Service changes that no sync has taken up yet.'),
  counter('sync_proxy_rules_service_changes_total', [], 'Service events seen, once for each IP family.'),
  gauge(
    'sync_proxy_rules_no_local_endpoints_total',
    ['traffic_policy', 'ip_family'],
    'Service ports (ipvs: services) whose traffic policy is Local and whose endpoints are all elsewhere.',
  ),
  counter('proxy_healthz_total', ['code'], 'Answers of /healthz on the health port, by status code.'),
  counter('proxy_livez_total', ['code'], 'Answers of /livez on the health port, by status code.'),
  gauge('sync_proxy_rules_iptables_total', ['table', 'ip_family'], 'Rules owned, by table.', { modes: ['iptables'] }),
  gauge('sync_proxy_rules_iptables_last', ['table', 'ip_family'], 'Rules written by the last sync, by table.', {
    modes: ['iptables'],
  }),
  counter('sync_proxy_rules_iptables_restore_failures_total', family, 'Runs of iptables-restore that failed.', {
    modes: ['iptables', 'ipvs'],
  }),
  counter('sync_proxy_rules_iptables_partial_restore_failures_total', family, 'Partial syncs that failed.', {
    modes: ['iptables'],
  }),
  counter(
    'iptables_ct_state_invalid_dropped_packets_total',
    [],
    'Packets dropped because conntrack called them invalid.',
    { modes: ['iptables'], nfacct: 'ct_state_invalid_dropped_pkts' },
  ),
  counter(
    'iptables_localhost_nodeports_accepted_packets_total',
    [],
    'Packets accepted on node ports of the loopback address.',
    { modes: ['iptables'], nfacct: 'localhost_nps_accepted_pkts' },
  ),
  counter('sync_proxy_rules_nftables_sync_failures_total', family, 'Transactions that the kernel refused.', {
    modes: ['nftables'],
  }),
  counter(
    'sync_proxy_rules_nftables_cleanup_failures_total',
    family,
    'Removals of what is no longer in use that failed.',
    { modes: ['nftables'] },
  ),
  histogram('conntrack_reconciler_sync_duration_seconds', family, 'Time it took to find and remove stale UDP flows.', {
    buckets: 'EXP',
    modes: kernelModes,
  }),
  counter('conntrack_reconciler_deleted_entries_total', family, 'Stale UDP flows removed.', { modes: kernelModes }),
]

/** What every Kubernetes binary has. */
const component: readonly Declaration[] = [
  gauge('kubernetes_feature_enabled', ['name', 'stage'], 'Feature gates: 1 if on, 0 if off.', { stability: 'BETA' }),
  gauge(
    'kubernetes_build_info',
    [
      'major',
      'minor',
      'git_version',
      'git_commit',
      'git_tree_state',
      'build_date',
      'go_version',
      'compiler',
      'platform',
    ],
    'Always 1; the labels name the Kubernetes version this proxy stands in for, and the runtime.',
    { stability: 'BETA' },
  ),
  counter('registered_metrics_total', ['stability_level', 'deprecated_version'], 'Metrics registered, by stability.', {
    stability: 'BETA',
  }),
  counter('disabled_metrics_total', [], 'Metrics switched off.', { stability: 'BETA' }),
  counter('hidden_metrics_total', [], 'Metrics hidden.', { stability: 'BETA' }),
  counter('rest_client_requests_total', ['code', 'method', 'host'], 'Requests to the API server.'),
  histogram('rest_client_request_duration_seconds', ['verb', 'host'], 'Time until the API server answered.', {
    buckets: 'REQUEST',
  }),
  histogram(
    'rest_client_rate_limiter_duration_seconds',
    ['verb', 'host'],
    'Time requests waited for the limit of the client itself.',
    { buckets: 'REQUEST' },
  ),
  histogram('rest_client_request_size_bytes', ['verb', 'host'], 'Size of request bodies.', { buckets: 'SIZE' }),
  histogram('rest_client_response_size_bytes', ['verb', 'host'], 'Size of response bodies.', { buckets: 'SIZE' }),
  counter('rest_client_request_retries_total', ['code', 'verb', 'host'], 'Requests that were sent again.'),
  gauge('rest_client_transport_cache_entries', [], 'Connection pools to the API server that are in use.'),
  counter('rest_client_transport_create_calls_total', ['result'], 'Connection pools made.'),
  gauge(
    'rest_client_exec_plugin_ttl_seconds',
    [],
    'Time until a certificate of an exec plugin expires; +Inf without such a certificate.',
  ),
  histogram(
    'rest_client_exec_plugin_certificate_rotation_age',
    [],
    'Age at which certificates of an exec plugin were replaced.',
    { buckets: 'ROTATION' },
  ),
  counter(
    'rest_client_exec_plugin_call_total',
    ['code', 'call_status'],
    'Runs of an exec plugin, by exit code and outcome.',
  ),
]

/** Beyond upstream; nobody's dashboards expect them. The prefix `sluice_` is added below. */
const own: readonly Declaration[] = [
  gauge('build_info', ['version', 'mode'], 'Always 1; the version of this proxy.'),
  counter('object_problems_total', ['kind'], 'Fields of API objects that could not be used.'),
  gauge('conflicts', [], 'Addresses and node ports that more than one service claims now.'),
  gauge('quarantined_services', [], 'Services left out now because the kernel refused something of theirs.'),
  counter('drift_repairs_total', family, 'Times somebody else changed what is ours and it was put right.'),
  gauge(
    'drift_last_timestamp_seconds',
    [...family, 'culprit'],
    'When somebody else last changed what is ours, and who: only the last one of a family is kept.',
  ),
  gauge('entries_held', family, 'Entries the data plane holds.'),
  counter('entries_refused_total', family, 'Entries the kernel refused.'),
  counter('ledger_put_total', family, 'Entries written.'),
  counter('ledger_drop_total', family, 'Entries removed.'),
  counter('service_connections_total', servicePort, `Connections to service ports: ${counted}.`, {
    modes: ['ipvs'],
  }),
  counter(
    'service_packets_total',
    [...servicePort, 'direction'],
    `Packets from (in) and to (out) clients: ${counted}.`,
    {
      modes: ['ipvs'],
    },
  ),
  counter('service_bytes_total', [...servicePort, 'direction'], `Bytes from (in) and to (out) clients: ${counted}.`, {
    modes: ['ipvs'],
  }),
  gauge(
    'backend_figure',
    ['figure', 'ip_family'],
    'Figures of the last sync that a backend reports and that have no metric of their own.',
  ),
]

/** Served at /metrics/slis only. */
export const checks: readonly Declaration[] = [
  gauge('kubernetes_healthcheck', ['name', 'type'], '1 if the check passed when it was last run, else 0.', {
    stability: 'STABLE',
  }),
  counter('kubernetes_healthchecks_total', ['name', 'type', 'status'], 'Runs of checks, by outcome.', {
    stability: 'STABLE',
  }),
]

const named = (prefix: string, list: readonly Declaration[]): Declaration[] =>
  list.map((declaration) => ({ stability: 'ALPHA', ...declaration, name: prefix + declaration.name }))

const groups: readonly { readonly title: string; readonly metrics: readonly Declaration[] }[] = [
  { title: 'kube-proxy', metrics: named('kubeproxy_', proxy) },
  { title: 'Every Kubernetes component', metrics: named('', component) },
  { title: 'Sluice only', metrics: named('sluice_', own) },
  { title: 'At `/metrics/slis`', metrics: checks },
]

/** What a proxy in this mode registers. */
export function declarationsFor(mode: Mode, nfacct: boolean): readonly Declaration[] {
  return groups
    .flatMap((group) => group.metrics)
    .filter((metric) => !checks.includes(metric))
    .filter((metric) => metric.modes === undefined || metric.modes.includes(mode))
    .filter((metric) => metric.nfacct === undefined || nfacct)
}

/** docs/metrics.md. */
export function metricDocs(): string {
  const lines = [
    '# Metrics',
    '',
    'Generated from `src/http/metric-table.ts`; `npx vitest run test/http/metric-table.test.ts -u` writes it anew.',
    '',
    'Served at `/metrics` of the metrics address (`127.0.0.1:10249`). Names, types, labels and buckets of the first two',
    'tables are those of kube-proxy 1.36, so existing dashboards and alerts keep working. `ip_family` is `IPv4` or `IPv6`.',
    'A metric that does not name the mode in use is not registered. `process_*` is there too; `go_*` cannot be, `nodejs_*`',
    'takes its place.',
    '',
    'Buckets:',
    '',
    ...Object.entries(bucketSets).map(([name, buckets]) => `* **${name}**: ${buckets.join(', ')}`),
  ]
  for (const { title, metrics } of groups) {
    lines.push(
      '',
      `## ${title}`,
      '',
      '| Name | Type | Labels | Buckets | Modes | Meaning |',
      '|---|---|---|---|---|---|',
    )
    for (const metric of metrics) lines.push(row(metric))
  }
  return `${lines.join('\n')}\n`
}

function row(metric: Declaration): string {
  const modes = metric.modes?.join(', ') ?? 'all'
  const cells = [
    `\`${metric.name}\``,
    metric.type,
    metric.labels.join(', ') || '–',
    metric.buckets ?? '–',
    metric.nfacct === undefined ? modes : `${modes}, if nfacct works`,
    metric.help,
  ]
  return `| ${cells.join(' | ')} |`
}
