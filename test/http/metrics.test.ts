// Checks every metric against upstream's name, type, labels and buckets, in its modes and in no other mode.

import { describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { findMode } from '../../src/backend/modes.ts'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import { createMetrics, type Metrics, type MetricsOptions } from '../../src/http/metrics.ts'
import type { RequestObserver } from '../../src/kube/client.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { type Family, parseExposition } from './exposition.ts'
import { recordingLogger } from './http-probe.ts'

// Written out by hand from upstream's documentation, on purpose not derived from the declarations.
const EXP = '0.001,0.002,0.004,0.008,0.016,0.032,0.064,0.128,0.256,0.512,1.024,2.048,4.096,8.192,16.384,+Inf'
const NPL = [
  ...['0.25', '0.5'],
  ...Array.from({ length: 59 }, (_, i) => String(i + 1)),
  ...Array.from({ length: 12 }, (_, i) => String(60 + 5 * i)),
  ...['120', '150', '180', '210', '240', '270', '300', '+Inf'],
].join(',')
const REQUEST = '0.005,0.025,0.1,0.25,0.5,1,2,4,8,15,30,60,+Inf'
const SIZE = '64,256,512,1024,4096,16384,65536,262144,1048576,4194304,16777216,+Inf'

type Row = readonly [name: string, type: string, labels: string, modes: string, buckets?: string]
const upstream: readonly Row[] = [
  ['kubeproxy_sync_proxy_rules_duration_seconds', 'histogram', 'ip_family', 'all', EXP],
  ['kubeproxy_sync_full_proxy_rules_duration_seconds', 'histogram', 'ip_family', 'iptables nftables', EXP],
  ['kubeproxy_sync_partial_proxy_rules_duration_seconds', 'histogram', 'ip_family', 'iptables nftables', EXP],
  ['kubeproxy_sync_proxy_rules_last_timestamp_seconds', 'gauge', 'ip_family', 'all'],
  ['kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds', 'gauge', 'ip_family', 'all'],
  ['kubeproxy_network_programming_duration_seconds', 'histogram', 'ip_family', 'all', NPL],
  ['kubeproxy_sync_proxy_rules_endpoint_changes_pending', 'gauge', '', 'all'],
  ['kubeproxy_sync_proxy_rules_endpoint_changes_total', 'counter', '', 'all'],
  ['kubeproxy_sync_proxy_rules_service_changes_pending', 'gauge', '', 'all'],
  ['kubeproxy_sync_proxy_rules_service_changes_total', 'counter', '', 'all'],
  ['kubeproxy_sync_proxy_rules_no_local_endpoints_total', 'gauge', 'ip_family traffic_policy', 'all'],
  ['kubeproxy_proxy_healthz_total', 'counter', 'code', 'all'],
  ['kubeproxy_proxy_livez_total', 'counter', 'code', 'all'],
  ['kubeproxy_sync_proxy_rules_iptables_total', 'gauge', 'ip_family table', 'iptables'],
  ['kubeproxy_sync_proxy_rules_iptables_last', 'gauge', 'ip_family table', 'iptables'],
  ['kubeproxy_sync_proxy_rules_iptables_restore_failures_total', 'counter', 'ip_family', 'iptables ipvs'],
  ['kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total', 'counter', 'ip_family', 'iptables'],
  ['kubeproxy_iptables_ct_state_invalid_dropped_packets_total', 'counter', '', 'iptables'],
  ['kubeproxy_iptables_localhost_nodeports_accepted_packets_total', 'counter', '', 'iptables'],
  ['kubeproxy_sync_proxy_rules_nftables_sync_failures_total', 'counter', 'ip_family', 'nftables'],
  ['kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total', 'counter', 'ip_family', 'nftables'],
  ['kubeproxy_conntrack_reconciler_sync_duration_seconds', 'histogram', 'ip_family', 'iptables ipvs nftables', EXP],
  ['kubeproxy_conntrack_reconciler_deleted_entries_total', 'counter', 'ip_family', 'iptables ipvs nftables'],
  ['kubernetes_feature_enabled', 'gauge', 'name stage', 'all'],
  [
    'kubernetes_build_info',
    'gauge',
    'build_date compiler git_commit git_tree_state git_version go_version major minor platform',
    'all',
  ],
  ['registered_metrics_total', 'counter', 'deprecated_version stability_level', 'all'],
  ['process_start_time_seconds', 'gauge', '', 'all'],
  ['process_resident_memory_bytes', 'gauge', '', 'all'],
  ['process_cpu_seconds_total', 'counter', '', 'all'],
  ['process_open_fds', 'gauge', '', 'all'],
  ['process_network_receive_bytes_total', 'counter', '', 'all'],
  ['process_network_transmit_bytes_total', 'counter', '', 'all'],
  ['process_virtual_memory_max_bytes', 'gauge', '', 'all'],
  ['rest_client_transport_cert_rotation_gc_calls_total', 'counter', '', 'all'],
  ['rest_client_requests_total', 'counter', 'code host method', 'all'],
  ['rest_client_request_duration_seconds', 'histogram', 'host verb', 'all', REQUEST],
  ['rest_client_rate_limiter_duration_seconds', 'histogram', 'host verb', 'all', REQUEST],
  ['rest_client_request_size_bytes', 'histogram', 'host verb', 'all', SIZE],
  ['rest_client_response_size_bytes', 'histogram', 'host verb', 'all', SIZE],
  ['rest_client_request_retries_total', 'counter', 'code host verb', 'all'],
  ['rest_client_transport_cache_entries', 'gauge', '', 'all'],
  ['rest_client_transport_create_calls_total', 'counter', 'result', 'all'],
  ['rest_client_exec_plugin_ttl_seconds', 'gauge', '', 'all'],
  ['rest_client_exec_plugin_call_total', 'counter', 'call_status code', 'all'],
  ['sluice_build_info', 'gauge', 'mode version', 'all'],
  ['sluice_object_problems_total', 'counter', 'kind', 'all'],
  ['sluice_conflicts', 'gauge', '', 'all'],
  ['sluice_quarantined_services', 'gauge', '', 'all'],
  ['sluice_drift_repairs_total', 'counter', 'ip_family', 'all'],
  ['sluice_drift_last_timestamp_seconds', 'gauge', 'ip_family reason', 'all'],
  ['sluice_invalid_manifests', 'gauge', '', 'all'],
  ['sluice_entries_held', 'gauge', 'ip_family', 'all'],
  ['sluice_entries_refused_total', 'counter', 'ip_family', 'all'],
  ['sluice_ledger_put_total', 'counter', 'ip_family', 'all'],
  ['sluice_ledger_drop_total', 'counter', 'ip_family', 'all'],
  ['sluice_backend_figure', 'gauge', 'figure ip_family', 'all'],
]

const modes: readonly Mode[] = ['userspace', 'iptables', 'ipvs', 'nftables']
const at = Date.UTC(2026, 0, 2, 3, 4, 5)

const make = (mode: Mode, more: Partial<MetricsOptions> = {}): Metrics =>
  createMetrics({
    mode: findMode(mode),
    version: { kubernetes: 'v1.36.4', sluice: '0.1.0' },
    log,
    processMetrics: false,
    ...more,
  })

const report = (mode: Mode, more: Partial<SyncReport> = {}): SyncReport => ({
  backend: mode,
  family: 4,
  startedAt: at,
  causes: [],
  durationMs: 30,
  full: false,
  ok: true,
  put: 0,
  dropped: 0,
  held: 0,
  services: [],
  refused: [],
  triggers: [],
  noLocal: { internal: 0, external: 0 },
  noLocalServices: { internal: 0, external: 0 },
  udpChanged: false,
  figures: {},
  ...more,
})

const failed = { ok: false, error: new ProxyError('iptables-restore', 'refused') }

function feedAll(metrics: Metrics, mode: Mode): void {
  const { journal, requests } = metrics
  journal.started(4, at)
  journal.queued(4, at)
  journal.change('service', 1)
  journal.change('slice', 1)
  journal.drift({ family: 4, culprit: 'nft (pid 7)', reason: 'changed', at })
  journal.problem({ kind: 'Service' })
  const figures = { 'iptables_total{nat}': 9, 'iptables_last{nat}': 3, nftables_cleanup_failures: 1, mystery: 5 }
  journal.report(report(mode, { full: true, triggers: [at], figures }))
  journal.report(report(mode, failed))
  metrics.answered('healthz', 200)
  metrics.answered('livez', 200)
  metrics.conntrack(4, 5, 2)
  requests.connected()
  requests.plugin(0, 'no_error')
  requests.request({ verb: 'GET', host: 'h', code: '200', durationMs: 1, requestBytes: 1, responseBytes: 1 })
  requests.throttled('GET', 'h', 1)
  requests.retried('GET', 'h', '429')
}

const find = (families: Map<string, Family>, name: string, labels: Record<string, string> = {}) =>
  [...families.values()]
    .flatMap((family) => family.samples)
    .find(
      (sample) => sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value),
    )?.value

const read = async (metrics: Metrics) => parseExposition(await metrics.text())
const IPv4 = { ip_family: 'IPv4' }
const sync = 'kubeproxy_sync_proxy_rules_'

describe.each(modes)('in %s mode', (mode) => {
  it('has every metric of the mode with type, labels and buckets, and none of other modes', async () => {
    const metrics = make(mode, {
      processMetrics: true,
      features: [{ name: 'ContextualLogging', stage: 'BETA', enabled: true }],
      packetCounters: async () => ({ ct_state_invalid_dropped_pkts: 7, localhost_nps_accepted_pkts: 8 }),
    })
    feedAll(metrics, mode)
    const families = await read(metrics)
    for (const [name, type, labels, inModes, buckets] of upstream) {
      const family = families.get(name)
      if (inModes !== 'all' && !inModes.split(' ').includes(mode)) {
        expect(family, name).toBeUndefined()
        continue
      }
      expect(family?.type, name).toBe(type)
      const samples = family?.samples ?? []
      expect(samples.length, name).toBeGreaterThan(0)
      const names = new Set(samples.flatMap((sample) => Object.keys(sample.labels)).filter((label) => label !== 'le'))
      expect([...names].sort().join(' '), name).toBe(labels)
      const edges = samples.filter((sample) => sample.name.endsWith('_bucket')).map((sample) => sample.labels.le)
      if (buckets !== undefined) expect(edges.join(','), name).toBe(buckets)
    }
    const known = new Set(upstream.map(([name]) => name))
    const unknown = [...families.keys()].filter((name) => name.startsWith('kubeproxy_') && !known.has(name))
    expect(unknown).toEqual([])
  })
})

describe('sources of metrics', () => {
  it('starts plain counters at 0 and labelled ones without series', async () => {
    const families = await read(make('iptables'))
    expect(find(families, `${sync}service_changes_total`)).toBe(0)
    expect(families.get('kubeproxy_proxy_healthz_total')?.samples).toEqual([])
    expect(families.get(`${sync}duration_seconds`)?.samples).toEqual([])
  })

  it('has nfacct counters only if nfacct works', async () => {
    const names = [...(await read(make('iptables'))).keys()]
    expect(names.filter((name) => /^kubeproxy.*packets/.test(name))).toEqual([])
  })

  it('measures a sync that succeeded', async () => {
    const metrics = make('nftables')
    metrics.journal.report(
      report('nftables', {
        full: true,
        put: 4,
        dropped: 2,
        held: 12,
        triggers: [at - 970, at - 1_970, at + 60_000],
        noLocal: { internal: 3, external: 1 },
      }),
    )
    const families = await read(metrics)
    expect(find(families, `${sync}duration_seconds_sum`, IPv4)).toBe(0.03)
    expect(find(families, `${sync}duration_seconds_bucket`, { ...IPv4, le: '0.016' })).toBe(0)
    expect(find(families, `${sync}duration_seconds_bucket`, { ...IPv4, le: '0.032' })).toBe(1)
    expect(find(families, 'kubeproxy_sync_full_proxy_rules_duration_seconds_count', IPv4)).toBe(1)
    expect(find(families, 'kubeproxy_sync_partial_proxy_rules_duration_seconds_count', IPv4)).toBeUndefined()
    expect(find(families, `${sync}last_timestamp_seconds`, IPv4)).toBe((at + 30) / 1000)
    expect(find(families, 'kubeproxy_network_programming_duration_seconds_count', IPv4)).toBe(3)
    expect(find(families, 'kubeproxy_network_programming_duration_seconds_sum', IPv4)).toBe(3)
    expect(find(families, `${sync}no_local_endpoints_total`, { traffic_policy: 'internal', ...IPv4 })).toBe(3)
    expect(find(families, `${sync}no_local_endpoints_total`, { traffic_policy: 'external', ...IPv4 })).toBe(1)
    expect(find(families, 'sluice_entries_held', IPv4)).toBe(12)
    expect(find(families, 'sluice_ledger_put_total', IPv4)).toBe(4)
    expect(find(families, 'sluice_ledger_drop_total', IPv4)).toBe(2)
    expect(find(families, `${sync}nftables_sync_failures_total`, IPv4)).toBeUndefined()
  })

  it('does not count changes without an effect as a sync, but as programmed', async () => {
    const metrics = make('nftables')
    metrics.journal.report(report('nftables', { idle: true, triggers: [at - 970], figures: { of_the_last_sync: 5 } }))
    const families = await read(metrics)
    expect(find(families, `${sync}duration_seconds_count`, IPv4)).toBeUndefined()
    expect(families.get('sluice_backend_figure')?.samples).toEqual([])
    expect(find(families, `${sync}last_timestamp_seconds`, IPv4)).toBe((at + 30) / 1000)
    expect(find(families, 'kubeproxy_network_programming_duration_seconds_count', IPv4)).toBe(1)
  })

  it('does not count a failed sync as programmed', async () => {
    const metrics = make('nftables')
    metrics.journal.report(report('nftables', { ...failed, family: 6, triggers: [at] }))
    const families = await read(metrics)
    const labels = { ip_family: 'IPv6' }
    expect(find(families, `${sync}duration_seconds_count`, labels)).toBe(1)
    expect(find(families, `${sync}nftables_sync_failures_total`, labels)).toBe(1)
    expect(families.get('kubeproxy_network_programming_duration_seconds')?.samples).toEqual([])
    expect(families.get(`${sync}last_timestamp_seconds`)?.samples).toEqual([])
  })

  it('counts a failed iptables sync once, partial syncs separately, and not what the backend counts itself', async () => {
    const metrics = make('iptables')
    metrics.journal.report(report('iptables', { ...failed, full: true }))
    metrics.journal.report(report('iptables', failed))
    metrics.journal.report(report('iptables', { ...failed, full: true, figures: { iptables_restore_failures: 3 } }))
    metrics.journal.report(report('iptables', { figures: { iptables_restore_failures: 1 } }))
    const families = await read(metrics)
    expect(find(families, `${sync}iptables_restore_failures_total`, IPv4)).toBe(6)
    expect(find(families, `${sync}iptables_partial_restore_failures_total`, IPv4)).toBe(1)
  })

  it('counts only iptables’ own failures in ipvs mode, and services instead of ports', async () => {
    const metrics = make('ipvs')
    metrics.journal.report(report('ipvs', failed))
    metrics.journal.report(report('ipvs', { ok: false, error: new ProxyError('netlink', 'refused') }))
    const noLocalServices = { internal: 1, external: 2 }
    metrics.journal.report(report('ipvs', { noLocal: { internal: 9, external: 9 }, noLocalServices }))
    const families = await read(metrics)
    expect(find(families, `${sync}iptables_restore_failures_total`, IPv4)).toBe(1)
    expect(find(families, `${sync}no_local_endpoints_total`, { traffic_policy: 'external', ...IPv4 })).toBe(2)
  })

  it('records the figures of a backend: sets gauges, adds to counters, and shows the rest unchanged', async () => {
    const metrics = make('iptables')
    const figures = { 'iptables_total{nat}': 5, 'iptables_total{filter}': 6, 'iptables_last{nat}': 1, odd: 4 }
    metrics.journal.report(report('iptables', { figures }))
    metrics.journal.report(report('iptables', { figures: { ...figures, 'iptables_total{nat}': 3 } }))
    const families = await read(metrics)
    expect(find(families, `${sync}iptables_total`, { table: 'nat', ...IPv4 })).toBe(3)
    expect(find(families, `${sync}iptables_total`, { table: 'filter', ...IPv4 })).toBe(6)
    expect(find(families, `${sync}iptables_last`, { table: 'nat', ...IPv4 })).toBe(1)
    expect(find(families, 'sluice_backend_figure', { figure: 'odd', ...IPv4 })).toBe(4)
  })

  it('counts changes that the store reports, a service once for each family, and shows pending changes', async () => {
    const metrics = make('nftables')
    metrics.journal.change('service', 1)
    metrics.journal.change('service', 2)
    metrics.journal.change('slice', 1)
    let families = await read(metrics)
    expect(find(families, `${sync}service_changes_total`)).toBe(2)
    expect(find(families, `${sync}service_changes_pending`)).toBe(2)
    expect(find(families, `${sync}endpoint_changes_total`)).toBe(1)
    expect(find(families, `${sync}endpoint_changes_pending`)).toBe(1)
    metrics.journal.pending('service', 0)
    families = await read(metrics)
    expect(find(families, `${sync}service_changes_pending`)).toBe(0)
    expect(find(families, `${sync}service_changes_total`)).toBe(2)
  })

  it('records when a sync was queued, and the start of the loop', async () => {
    const metrics = make('nftables')
    metrics.journal.started(4, at)
    expect(find(await read(metrics), `${sync}last_queued_timestamp_seconds`, IPv4)).toBe(at / 1000)
    metrics.journal.queued(4, at + 500)
    expect(find(await read(metrics), `${sync}last_queued_timestamp_seconds`, IPv4)).toBe(at / 1000 + 0.5)
  })

  it('records what a journal reports', async () => {
    const metrics = make('nftables')
    const journal = new SyncJournal({ log })
    const leave = journal.subscribe(metrics.journal)
    journal.report(report('nftables', { put: 1 }))
    journal.drift({ family: 6, culprit: 'nft (pid 7)', reason: 'changed', at })
    journal.drift({ family: 6, culprit: 'firewalld (pid 8)', reason: 'changed', at })
    journal.problem({ kind: 'EndpointSlice', object: 'a/b', uid: '', field: 'x', message: 'y' })
    leave()
    journal.drift({ family: 6, culprit: 'another program', reason: 'reports-lost', at })
    const families = await read(metrics)
    expect(find(families, 'sluice_ledger_put_total', IPv4)).toBe(1)
    expect(find(families, 'sluice_drift_repairs_total', { ip_family: 'IPv6' })).toBe(2)
    const last = families.get('sluice_drift_last_timestamp_seconds')
    expect(last?.samples.map(({ labels }) => labels)).toEqual([{ ip_family: 'IPv6', reason: 'changed' }])
    expect(find(families, 'sluice_object_problems_total', { kind: 'EndpointSlice' })).toBe(1)
  })

  it('measures requests, and only counts watches', async () => {
    const metrics = make('nftables')
    const requests: RequestObserver = metrics.requests
    const common = { verb: 'GET', watch: false }
    const seen = { ...common, host: 'api:6443', code: '200', durationMs: 20, requestBytes: 0, responseBytes: 600 }
    requests.request(seen)
    requests.request({ ...seen, durationMs: 5_000, watch: true })
    requests.request({ ...seen, code: '<error>' })
    const families = parseExposition(await metrics.text())
    const labels = { host: 'api:6443' }
    expect(find(families, 'rest_client_requests_total', { ...labels, code: '200', method: 'GET' })).toBe(2)
    expect(find(families, 'rest_client_requests_total', { ...labels, code: '<error>' })).toBe(1)
    expect(find(families, 'rest_client_request_duration_seconds_count', labels)).toBe(2)
    expect(find(families, 'rest_client_response_size_bytes_sum', labels)).toBe(1200)
  })

  it('shows versions, feature gates and the number of registered metrics', async () => {
    const features = [
      { name: 'A', stage: '', enabled: true },
      { name: 'B', stage: 'ALPHA', enabled: false },
    ]
    const families = await read(
      make('nftables', { features, conflicts: () => 2, quarantined: () => 3, invalidManifests: () => 1 }),
    )
    expect(find(families, 'kubernetes_build_info', { major: '1', minor: '36', git_version: 'v1.36.4' })).toBe(1)
    expect(find(families, 'kubernetes_feature_enabled', { name: 'A', stage: '' })).toBe(1)
    expect(find(families, 'kubernetes_feature_enabled', { name: 'B', stage: 'ALPHA' })).toBe(0)
    expect(find(families, 'rest_client_exec_plugin_ttl_seconds')).toBe(Number.POSITIVE_INFINITY)
    expect(find(families, 'sluice_conflicts')).toBe(2)
    expect(find(families, 'sluice_quarantined_services')).toBe(3)
    expect(find(families, 'sluice_invalid_manifests')).toBe(1)
    const alpha = find(families, 'registered_metrics_total', { stability_level: 'ALPHA', deprecated_version: '' })
    expect(alpha).toBe([...families.values()].filter(({ help }) => help.startsWith('[ALPHA]')).length)
  })

  it('shows how much the history holds, and whether it cannot be written', async () => {
    const history = { records: 12, bytes: 9_000, unwritten: true }
    const text = await make('nftables', { history: () => history }).text()
    for (const line of ['history_records 12', 'history_bytes 9000', 'history_unwritten 1']) {
      expect(text).toContain(`\nsluice_${line}\n`)
    }
  })

  it('escapes quotes and newlines in label values', async () => {
    const metrics = make('nftables')
    metrics.journal.problem({ kind: 'a"b\\c\nd' })
    expect(await metrics.text()).toContain('sluice_object_problems_total{kind="a\\"b\\\\c\\nd"} 1\n')
  })
})

describe('nfacct counters', () => {
  it('are read at each scrape, and keep their values when reading fails', async () => {
    let packets = 5
    const lines = recordingLogger()
    const metrics = make('iptables', {
      log: lines,
      packetCounters: async () => {
        if (packets < 0) throw new Error('no nfacct today')
        return { ct_state_invalid_dropped_pkts: packets }
      },
    })
    const name = 'kubeproxy_iptables_ct_state_invalid_dropped_packets_total'
    expect(find(await read(metrics), name)).toBe(5)
    packets = 9
    expect(find(await read(metrics), name)).toBe(9)
    expect(find(await read(metrics), 'kubeproxy_iptables_localhost_nodeports_accepted_packets_total')).toBe(0)
    packets = -1
    expect(find(await read(metrics), name)).toBe(9)
    expect(lines.lines.join()).toContain('no nfacct today')
  })

  it('show the traffic of service ports, and drop ports that are gone', async () => {
    const counted = (port: string) =>
      ({ family: 4, port, connections: 3, packetsIn: 20, packetsOut: 30, bytesIn: 4000, bytesOut: 5000 }) as const
    let ports = [counted('ns/web:http'), counted('ns/plain'), counted('others')]
    const portCounters = async () => ports
    const metrics = make('ipvs', { portCounters })
    const text = await metrics.text()
    const web = 'namespace="ns",service="web",port="http",ip_family="IPv4"'
    expect(text).toContain(`sluice_service_connections_total{${web}} 3\n`)
    expect(text).toContain(`sluice_service_packets_total{${web},direction="in"} 20\n`)
    expect(text).toContain(`sluice_service_bytes_total{${web},direction="out"} 5000\n`)
    expect(text).toContain('{namespace="ns",service="plain",port="",ip_family="IPv4"} 3\n')
    expect(text).toContain('{namespace="",service="others",port="",ip_family="IPv4"} 3\n')
    ports = ports.slice(1)
    expect(await metrics.text()).not.toContain('service="web"')
    expect(await make('nftables', { portCounters }).text()).toContain('sluice_service_connections_total{')
  })

  it('do not delay a scrape without limit', async () => {
    const clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
    const metrics = make('iptables', { clock, packetCounters: () => new Promise(() => {}) })
    const text = metrics.text()
    clock.advanceSync(2_000)
    expect(find(parseExposition(await text), `${sync}service_changes_total`)).toBe(0)
  })
})
