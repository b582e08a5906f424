// Metrics that some modes share: durations by kind of sync, stale UDP flows, runs of iptables-restore. Pure.

import { counter, histogram } from '../lib/metric-declaration.ts'

const family = ['ip_family'] as const

/** For modes that compare everything with the kernel in some syncs and write only changes in the others. */
export const syncKindMetrics = [
  histogram(
    'kubeproxy_sync_full_proxy_rules_duration_seconds',
    family,
    'Time a sync took that compared everything with the kernel.',
    { buckets: 'EXP' },
  ),
  histogram(
    'kubeproxy_sync_partial_proxy_rules_duration_seconds',
    family,
    'Time a sync took that wrote only changes.',
    { buckets: 'EXP' },
  ),
]

/** For modes in which the kernel translates UDP flows, so that flows can become stale. */
export const conntrackMetrics = [
  histogram(
    'kubeproxy_conntrack_reconciler_sync_duration_seconds',
    family,
    'Time it took to find and remove stale UDP flows.',
    { buckets: 'EXP' },
  ),
  counter('kubeproxy_conntrack_reconciler_deleted_entries_total', family, 'Stale UDP flows removed.'),
]

/** For modes that count failed runs of iptables-restore. */
export const restoreFailureMetric = counter(
  'kubeproxy_sync_proxy_rules_iptables_restore_failures_total',
  family,
  'Runs of iptables-restore that failed.',
)

/** The figure behind `restoreFailureMetric`. */
export const restoreFailureFigure = 'iptables_restore_failures'
