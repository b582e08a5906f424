// The table of our own settings: one row for each field of SluiceConfiguration v1alpha1, which kube-proxy does not have. Pure.
//
// To add a field, add a row. The type `SluiceConfig`, the file format and docs/sluice-config.md follow from it.

import { declareField, type FieldSetting } from './setting.ts'

const minute = 60_000

export const sluiceSettings = [
  declareField('string', {
    path: 'addresses.precedence',
    default: 'kind',
    words: ['kind', 'age'],
    help: 'Which Service holds an address that several want. kind: a cluster IP goes before a load-balancer IP, and that before an external IP; the older Service wins within a kind. age: the older Service always wins, also over a pod of another Service.',
  }),
  declareField('duration', {
    path: 'apiServer.silence',
    default: 5 * minute,
    help: 'How long the API server may be silent before /healthz and /livez mention it. The status code does not change.',
  }),
  declareField('list', {
    path: 'canary.addresses',
    default: [],
    help: 'Addresses for a Service of this proxy alone, at most one per IP family, with which it checks its own data path (docs/health.md). The node needs a route to them, as to cluster IPs, and no Service may have them. Empty: there is no check.',
  }),
  declareField('duration', {
    path: 'canary.interval',
    live: true,
    default: 30_000,
    help: 'The time between two checks. At least 1s.',
  }),
  declareField('int32', {
    path: 'canary.failures',
    live: true,
    default: 3,
    help: 'Checks in a row that must fail before the data path counts as broken.',
  }),
  declareField('string', {
    path: 'canary.healthz',
    live: true,
    default: 'report',
    words: ['report', 'fail'],
    help: 'What /healthz says while the data path is broken. report: one field more. fail: also the status code 503, so that load balancers leave this node out.',
  }),
  declareField('string', {
    path: 'draining.local',
    live: true,
    default: 'off',
    words: ['off', 'on'],
    help: 'Whether external traffic of a Service with externalTrafficPolicy Local is forwarded to other nodes for a while after the last endpoint on this node has gone (docs/health.md). The annotation sluice/local-drain of a Service, on, off or a duration, goes before it.',
  }),
  declareField('duration', {
    path: 'draining.time',
    live: true,
    default: 30_000,
    help: 'For how long it is forwarded: longer than the load balancer needs to notice that the health check port fails.',
  }),
  declareField('string', {
    path: 'balancing.algorithm',
    live: true,
    default: 'mode',
    words: ['mode', 'random', 'round-robin', 'consistent-hash'],
    help: 'How an endpoint is chosen for a connection (docs/health.md). mode: as the proxy mode does by itself. The annotation sluice/algorithm of a Service goes before it.',
  }),
  declareField('duration', {
    path: 'balancing.slowStart',
    live: true,
    default: 0,
    help: 'The time in which a new endpoint gets its whole share of the connections. 0s: at once. The annotation sluice/slow-start of a Service goes before it.',
  }),
  declareField('string', {
    path: 'balancing.weights',
    live: true,
    default: 'none',
    words: ['none', 'node-capacity'],
    help: 'Where the weights of endpoints come from if neither the Service (sluice/weights) nor one of its EndpointSlices (sluice/weight) has an annotation for them. none: all are equal. node-capacity: from the allocatable CPU of their nodes (docs/health.md).',
  }),
  declareField('string', {
    path: 'fleet.namespace',
    default: '',
    help: 'Namespace in which the proxy publishes a short report of its state, in a Lease named after the Node, for `sluice nodes`. Empty: it publishes none. deploy/fleet.yaml has the namespace sluice-nodes and the rights; docs/fleet.md says what is published.',
  }),
  declareField('duration', {
    path: 'fleet.interval',
    default: minute,
    help: 'How often the report is written. All proxies of a cluster need the same interval, since they are compared at its multiples.',
  }),
  declareField('int32', {
    path: 'history.size',
    default: 5_000,
    help: 'How many syncs `sluice history` remembers, each with its causes and effects (docs/history.md).',
  }),
  declareField('int32', {
    path: 'history.maxBytes',
    default: 4 << 20,
    help: 'The memory that the history may take. With history.directory each of the two files may take as much.',
  }),
  declareField('string', {
    path: 'history.directory',
    default: '',
    help: 'Directory in which the history is kept, so that it reaches over restarts; it is made if it is missing. Empty: the history is in memory only.',
  }),
  declareField('int32', {
    path: 'limits.portsPerService',
    default: 2_000,
    help: 'Ports that one Service may have.',
  }),
  declareField('int32', {
    path: 'limits.addressesPerService',
    default: 2_000,
    help: 'External IPs and load-balancer IPs that one Service may have in one IP family.',
  }),
  declareField('int32', {
    path: 'limits.frontendsPerService',
    default: 20_000,
    help: 'Ports of one Service multiplied by its addresses of one IP family: cluster IP, node port, external and load-balancer IPs.',
  }),
  declareField('int32', {
    path: 'limits.sourceRangesPerService',
    default: 2_000,
    help: 'Entries of loadBalancerSourceRanges of one Service multiplied by its ports and its load-balancer IPs of one IP family.',
  }),
  declareField('int32', {
    path: 'limits.endpointsPerService',
    default: 20_000,
    help: 'Endpoints of one Service in one IP family, each counted once per port.',
  }),
  declareField('int32', {
    path: 'limits.slicesPerService',
    default: 1_000,
    help: 'EndpointSlices of one Service in one IP family.',
  }),
  declareField('int32', {
    path: 'limits.entriesPerService',
    default: 100_000,
    help: 'Ports and endpoints of one Service (each endpoint counted once per port, with ClientIP affinity ten times, with weights or a slow start up to 16 times, with consistent hashing as the slots of its table) multiplied by its addresses of one IP family.',
  }),
  declareField('list', {
    path: 'metrics.hosts',
    default: [],
    help: 'Names by which clients reach the metrics server, besides IP addresses, localhost and the name of the node. Requests for other names get 421, because a browser may have been tricked into them. "*" allows every name.',
  }),
  declareField('string', {
    path: 'outliers.ejection',
    live: true,
    default: 'off',
    words: ['off', 'on'],
    help: 'Whether endpoints to which TCP connections fail, while others answer, are left out for a while (docs/health.md). The annotation sluice/outlier-ejection of a Service, on or off, goes before it.',
  }),
  declareField('int32', {
    path: 'outliers.failures',
    live: true,
    default: 3,
    help: 'Connections in a row that must be refused or not answered before an endpoint is left out.',
  }),
  declareField('int32', {
    path: 'outliers.maxPercent',
    live: true,
    default: 50,
    help: 'The share of the endpoints of a Service port that may be left out, in percent. If more of them fail, all are used. The last endpoint is always used.',
  }),
  declareField('duration', {
    path: 'outliers.interval',
    live: true,
    default: 10_000,
    help: 'How long an endpoint is left out before it is tried again. Each failed trial doubles the time.',
  }),
  declareField('duration', {
    path: 'outliers.maxInterval',
    live: true,
    default: 5 * minute,
    help: 'The longest time between two trials of an endpoint.',
  }),
  declareField('string', {
    path: 'probes.nodes',
    live: true,
    default: 'users',
    words: ['users', 'all'],
    help: 'Which nodes probe the endpoints of a Service with the annotation sluice/probe (docs/health.md). users: nodes with a new connection to the Service in the last five minutes. all: every node.',
  }),
  declareField('duration', {
    path: 'probes.interval',
    live: true,
    default: 10_000,
    help: 'The time between two probes of an endpoint, unless the annotation sluice/probe says otherwise. At least 1s.',
  }),
  declareField('duration', {
    path: 'probes.timeout',
    live: true,
    default: 1_000,
    help: 'The time in which a probe must be answered, unless the annotation says otherwise.',
  }),
  declareField('int32', {
    path: 'probes.failures',
    live: true,
    default: 3,
    help: 'Probes in a row that must fail before an endpoint is left out, unless the annotation says otherwise.',
  }),
  declareField('int32', {
    path: 'probes.successes',
    live: true,
    default: 1,
    help: 'Probes in a row that must succeed before the endpoint is used again, unless the annotation says otherwise.',
  }),
  declareField('int32', {
    path: 'probes.perSecond',
    live: true,
    default: 50,
    help: 'Probes of all Services together that this node starts per second. Probes that are due earlier wait.',
  }),
  declareField('int32', {
    path: 'probes.atOnce',
    live: true,
    default: 32,
    help: 'Probes of all Services together that may wait for an answer at the same time.',
  }),
  declareField('string', {
    path: 'resets.connections',
    live: true,
    default: 'off',
    words: ['off', 'on'],
    help: 'Whether connections to an endpoint that is gone are ended: TCP clients get a reset, UDP clients an error (docs/health.md). The annotation sluice/reset-connections of a Service, on, off or a duration, goes before it.',
  }),
  declareField('duration', {
    path: 'resets.grace',
    live: true,
    default: 5_000,
    help: 'How long an endpoint must be gone from all EndpointSlices of the Service before its connections are ended.',
  }),
  declareField('string', {
    path: 'state.directory',
    default: '/var/lib/sluice/proxy',
    help: 'Directory in which the last good state is kept (docs/health.md), from which the proxy serves if the API server does not answer at its start. The default is used only if it exists; another directory is made. Empty: no state is kept.',
  }),
  declareField('duration', {
    path: 'state.maxAge',
    default: 24 * 60 * minute,
    help: 'A saved state that is older is not used.',
  }),
  declareField('int32', {
    path: 'state.maxBytes',
    default: 256 << 20,
    help: 'A larger state is neither saved nor used.',
  }),
  declareField('bool', {
    path: 'traffic.counters',
    default: true,
    keepsZero: true,
    help: 'Whether connections are counted per Service port and endpoint (docs/traffic.md). False: nothing is counted, and nothing of the data plane is made for it.',
  }),
  declareField('bool', {
    path: 'traffic.accounting',
    default: false,
    help: 'Whether packets and bytes are counted in modes whose rules count connections only, nftables and iptables (docs/traffic.md). Off by default, because it sets net.netfilter.nf_conntrack_acct, a sysctl of the whole node that stays set, and because the proxy then hears of the end of every connection to a Service.',
  }),
  declareField('int32', {
    path: 'traffic.metricPorts',
    default: 200,
    keepsZero: true,
    help: 'How many Service ports, the busiest, have metrics of their own; all others are counted together as service="others". 0: there are no metrics per Service port.',
  }),
] as const

export type SluiceRow = (typeof sluiceSettings)[number]

export const sluiceSettingByPath: ReadonlyMap<string, FieldSetting> = new Map(
  sluiceSettings.map((row) => [row.path, row]),
)
