// Declares every metric that all modes have, with kube-proxy's names, types, labels and buckets. Each mode declares its own metrics.
// Registration and docs/metrics.md follow from these declarations.

import { modes } from '../backend/modes.ts'
import type { ProxyMode } from '../backend/proxy-mode.ts'
import { bucketSets, counter, gauge, histogram, type MetricDeclaration } from '../lib/metric-declaration.ts'

const family = ['ip_family'] as const

const countingServices = modes.filter(({ metrics }) => metrics.noLocalUnit === 'services').map(({ name }) => name)

/** kube-proxy's metrics; the prefix `kubeproxy_` is added below. */
const proxyMetrics: readonly MetricDeclaration[] = [
  histogram(
    'sync_proxy_rules_duration_seconds',
    family,
    'Duration of a sync that had something to write, whether it succeeded or not.',
    {
      buckets: 'EXP',
    },
  ),
  gauge(
    'sync_proxy_rules_last_timestamp_seconds',
    family,
    'Unix time at which a sync last succeeded, or found nothing to write.',
  ),
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
    `Service ports (${countingServices.join(', ')}: services) whose traffic policy is Local and whose endpoints are all elsewhere.`,
  ),
  counter('proxy_healthz_total', ['code'], 'Answers of /healthz on the health port, by status code.'),
  counter('proxy_livez_total', ['code'], 'Answers of /livez on the health port, by status code.'),
]

/** The metrics that every Kubernetes component has. */
const componentMetrics: readonly MetricDeclaration[] = [
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
    'Always 1; the labels name the Kubernetes version that this proxy is compatible with, and the runtime.',
    { stability: 'BETA' },
  ),
  counter('registered_metrics_total', ['stability_level', 'deprecated_version'], 'Metrics registered, by stability.', {
    stability: 'BETA',
  }),
  counter('disabled_metrics_total', [], 'Metrics switched off.', { stability: 'BETA' }),
  counter('hidden_metrics_total', [], 'Metrics hidden.', { stability: 'BETA' }),
  counter('process_network_receive_bytes_total', [], 'Bytes that the network namespace received in IP packets.'),
  counter('process_network_transmit_bytes_total', [], 'Bytes that the network namespace sent in IP packets.'),
  gauge('process_virtual_memory_max_bytes', [], 'Limit of the address space.'),
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
  counter(
    'rest_client_transport_cert_rotation_gc_calls_total',
    [],
    'Certificate rotations that ended with their connection pool; always 0, since there is one pool.',
  ),
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

const servicePort = ['namespace', 'service', 'port', 'ip_family'] as const
/** The number of series is limited, so that one scrape of a large cluster's node stays small. */
const counted =
  ': those of the `traffic.metricPorts` busiest service ports; the rest together is service="others" ([traffic.md](traffic.md))'

/** Metrics that kube-proxy does not have; the prefix `sluice_` is added below. */
const ownMetrics: readonly MetricDeclaration[] = [
  gauge('build_info', ['version', 'mode'], 'Always 1; the version of this proxy.'),
  counter('object_problems_total', ['kind'], 'Fields of API objects that could not be used.'),
  gauge(
    'api_server_silence_seconds',
    [],
    'Time since the API server last sent anything: an answer, a change or a bookmark; since the start if it never did.',
  ),
  gauge('conflicts', [], 'Addresses and node ports that a service claims now and does not get.'),
  gauge('quarantined_services', [], 'Services that are left out now because the kernel refused one of their entries.'),
  gauge(
    'invalid_manifests',
    [],
    'Files in the directory of `sluice up --manifests` that are invalid now; the objects of their last valid content stay.',
  ),
  counter(
    'drift_repairs_total',
    family,
    'Times that another program changed the rules of the proxy and the proxy repaired them.',
  ),
  gauge(
    'drift_last_timestamp_seconds',
    [...family, 'reason'],
    'Unix time at which the proxy last noticed that another program changed its rules. `reason`: `changed`; `reports-lost` if the kernel dropped reports of changes; `refused` if rules that were there before are refused; `undeletable` if a chain of the proxy is still used.',
  ),
  gauge(
    'ejected_endpoints',
    [],
    'Endpoints that are left out of a service port now, because connections to them or probes of them fail.',
  ),
  counter('ejections_total', [], 'Changes of the endpoints of a service port after which some of them are left out.'),
  counter(
    'connection_events_lost_total',
    [],
    'Times that the kernel dropped notifications about connections, because there were too many; the proxy then looks away for a second.',
  ),
  gauge('probed_endpoints', [], 'Endpoints that this node probes now, counted once per service port.'),
  counter(
    'probes_total',
    ['kind', 'result'],
    'Probes of endpoints that have ended. `kind`: `tcp`, `http`, `https`, `grpc`. `result`: `success`, `failure`, or `unknown` if this machine could not dial.',
  ),
  counter(
    'probes_delayed_total',
    [],
    'Probes that started more than a second late, because `probes.perSecond` or `probes.atOnce` allows no more.',
  ),
  gauge('flow_watchers', [], 'Commands and pages that follow flows now; without any, the proxy listens to nothing.'),
  counter(
    'flow_events_lost_total',
    [],
    'Times that the kernel dropped notifications about flows while someone followed them.',
  ),
  counter(
    'accounting_events_lost_total',
    [],
    'Times that the kernel dropped notifications about connections that ended, whose packets and bytes are missing then; always 0 without `traffic.accounting`.',
  ),
  histogram(
    'canary_programming_duration_seconds',
    family,
    'Time from a change of the endpoint of the canary, as if the API server had sent it, until its first packet arrived by the address of the service.',
    { buckets: 'EXP' },
  ),
  histogram(
    'canary_connect_duration_seconds',
    family,
    'Time that the connection of the canary to its own service took.',
    { buckets: 'EXP' },
  ),
  counter('canary_failures_total', family, 'Checks of the canary in which the data path of this node did not work.'),
  gauge('canary_broken', family, '1 while the data path of this node counts as broken, as the canary sees it.'),
  gauge(
    'saved_state_in_use',
    [],
    '1 while the proxy serves the state that it saved on disk, because the API server has not sent its own since the start.',
  ),
  gauge(
    'draining_ports',
    [],
    'Service ports with policy Local whose external traffic is forwarded to other nodes now, because the last endpoint on this node has gone.',
  ),
  counter('reset_connections_total', ['protocol'], 'Connections that were ended because their endpoint is gone.'),
  counter('settings_applied_total', [], 'Times that new values of our own settings took effect without a restart.'),
  gauge(
    'settings_refused',
    [],
    '1 while the file of our own settings has changed and is not valid, so that the old settings stay.',
  ),
  gauge('history_records', [], 'Syncs that `sluice history` remembers now.'),
  gauge('history_bytes', [], 'Memory that the history takes now.'),
  gauge('history_unwritten', [], '1 while the history cannot be written on disk, so that a restart would lose a part.'),
  gauge('saved_state_written_bytes', [], 'Bytes written since the start to save the state on disk.'),
  counter(
    'early_connections_removed_total',
    family,
    'Tracked TCP and SCTP connections, untranslated and without a reply, that were removed because their destination has become a frontend.',
  ),
  counter('service_connections_total', servicePort, `Connections to service ports${counted}.`),
  counter(
    'service_packets_total',
    [...servicePort, 'direction'],
    `Packets from (in) and to (out) clients, where they are counted${counted}.`,
  ),
  counter(
    'service_bytes_total',
    [...servicePort, 'direction'],
    `Bytes from (in) and to (out) clients, where they are counted${counted}.`,
  ),
  gauge('entries_held', family, 'Entries the data plane holds.'),
  counter('entries_refused_total', family, 'Entries the kernel refused.'),
  counter('ledger_put_total', family, 'Entries written.'),
  counter('ledger_drop_total', family, 'Entries removed.'),
  gauge(
    'backend_figure',
    ['figure', 'ip_family'],
    'Figures of the last sync that a backend reports and that have no metric of their own.',
  ),
]

/** The metrics of /metrics/slis. */
export const sliDeclarations: readonly MetricDeclaration[] = [
  gauge('kubernetes_healthcheck', ['name', 'type'], '1 if the check passed when it was last run, else 0.', {
    stability: 'STABLE',
  }),
  counter('kubernetes_healthchecks_total', ['name', 'type', 'status'], 'Runs of checks, by outcome.', {
    stability: 'STABLE',
  }),
]

const withPrefix = (prefix: string, list: readonly MetricDeclaration[]): MetricDeclaration[] =>
  list.map((declaration) => withStability({ ...declaration, name: prefix + declaration.name }))

const withStability = (declaration: MetricDeclaration): MetricDeclaration => ({ stability: 'ALPHA', ...declaration })

/** The metrics that every mode has. */
const common = {
  kubeProxy: withPrefix('kubeproxy_', proxyMetrics),
  component: withPrefix('', componentMetrics),
  sluice: withPrefix('sluice_', ownMetrics),
}

/** Returns the metrics that a proxy in this mode registers. */
export function declarationsFor(
  { metrics }: Pick<ProxyMode, 'metrics'>,
  nfacct: boolean,
): readonly MetricDeclaration[] {
  const ofMode = metrics.declarations.map(withStability).filter((metric) => metric.nfacct === undefined || nfacct)
  return [...Object.values(common).flat(), ...ofMode]
}

/** Returns the metrics of all modes whose names begin with the prefix, each once. */
function modeMetrics(prefix: string): readonly MetricDeclaration[] {
  const all = modes.flatMap(({ metrics }) => metrics.declarations).filter(({ name }) => name.startsWith(prefix))
  return [...new Map(all.map((metric) => [metric.name, metric])).values()]
}

const groups: readonly { readonly title: string; readonly metrics: readonly MetricDeclaration[] }[] = [
  { title: 'kube-proxy', metrics: [...common.kubeProxy, ...modeMetrics('kubeproxy_')] },
  { title: 'Every Kubernetes component', metrics: common.component },
  { title: 'Sluice only', metrics: [...common.sluice, ...modeMetrics('sluice_')] },
  { title: 'At `/metrics/slis`', metrics: sliDeclarations },
]

/** Returns docs/metrics.md. */
export function formatMetricDocs(): string {
  const lines = [
    '# Metrics',
    '',
    'Generated from `src/http/metric-table.ts` and the modes; run `npm run docs` after a change.',
    '',
    'Served at `/metrics` of the metrics address (`127.0.0.1:10249`). Names, types, labels and buckets of the first two',
    'tables are those of kube-proxy 1.36, so existing dashboards and alerts keep working ([monitoring.md](monitoring.md)). `ip_family` is `IPv4` or `IPv6`.',
    'A metric is registered only in the modes of its row. `process_*` is served too, and `nodejs_*` instead of `go_*`',
    '(`nodejs_gc_duration_seconds` has the buckets COLLECTION). A client whose `Accept`',
    'prefers `application/openmetrics-text`, as Prometheus does, gets OpenMetrics 1.0 with the same series, labels and values; there are no exemplars.',
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
    for (const metric of metrics) lines.push(formatRow(metric))
  }
  return `${lines.join('\n')}\n`
}

function formatRow(metric: MetricDeclaration): string {
  const declaring = modes.filter(({ metrics }) => metrics.declarations.some(({ name }) => name === metric.name))
  const modeNames = declaring.map(({ name }) => name).sort()
  const names = modeNames.length === 0 ? 'all' : modeNames.join(', ')
  const cells = [
    `\`${metric.name}\``,
    metric.type,
    metric.labels.join(', ') || '–',
    metric.buckets ?? '–',
    metric.nfacct === undefined ? names : `${names}, if nfacct works`,
    metric.help,
  ]
  return `| ${cells.join(' | ')} |`
}
