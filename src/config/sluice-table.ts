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
    help: 'Ports and endpoints of one Service (each endpoint counted once per port, with ClientIP affinity ten times) multiplied by its addresses of one IP family.',
  }),
  declareField('list', {
    path: 'metrics.hosts',
    default: [],
    help: 'Names by which clients reach the metrics server, besides IP addresses, localhost and the name of the node. Requests for other names get 421, because a browser may have been tricked into them. "*" allows every name.',
  }),
  declareField('string', {
    path: 'outliers.ejection',
    default: 'off',
    words: ['off', 'on'],
    help: 'Whether endpoints to which TCP connections fail, while others answer, are left out for a while (docs/health.md). The annotation sluice/outlier-ejection of a Service, on or off, goes before it.',
  }),
  declareField('int32', {
    path: 'outliers.failures',
    default: 3,
    help: 'Connections in a row that must be refused or not answered before an endpoint is left out.',
  }),
  declareField('int32', {
    path: 'outliers.maxPercent',
    default: 50,
    help: 'The share of the endpoints of a Service port that may be left out, in percent. If more of them fail, all are used. The last endpoint is always used.',
  }),
  declareField('duration', {
    path: 'outliers.interval',
    default: 10_000,
    help: 'How long an endpoint is left out before it is tried again. Each failed trial doubles the time.',
  }),
  declareField('duration', {
    path: 'outliers.maxInterval',
    default: 5 * minute,
    help: 'The longest time between two trials of an endpoint.',
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
] as const

export type SluiceRow = (typeof sluiceSettings)[number]

export const sluiceSettingByPath: ReadonlyMap<string, FieldSetting> = new Map(
  sluiceSettings.map((row) => [row.path, row]),
)
