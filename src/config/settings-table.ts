// The settings table: one row for each field of KubeProxyConfiguration v1alpha1, with its flag if it has one. Pure.
//
// To add a field or a flag, add a row:
//  - a field, with or without a flag: a row here, or in logging-table.ts for a field below `logging`;
//  - a flag without a field: a row in flags/flag-table.ts.
// The kind of a row names its codec in codecs.ts; a value of a new kind needs a codec there. The parser, the defaults, the file format,
// usage texts and docs/flags.md follow from the row, and so do the types: `Config` in configuration.ts has the field at the row's path, and
// `values` of parseFlags has the flag. A value that can be wrong although its codec accepts it needs a check in validate.ts.
// `npm run docs` writes docs/flags.md.

import { loggingSettings } from './logging-table.ts'
import { declareField, type FieldSetting } from './setting.ts'

/** The ports of the health and metrics servers unless others are given. */
export const healthzPort = 10256
export const metricsPort = 10249

const second = 1000
const minute = 60 * second
const hour = 60 * minute

/** Validation also allows an empty mode and detectLocalMode; the platform defaults replace it. */
export const proxyModes = ['iptables', 'ipvs', 'nftables', 'userspace'] as const
export const localModes = ['ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'] as const

const asIs = '0 leaves the kernel setting as it is.'

const general = [
  declareField('gates', {
    flag: 'feature-gates',
    path: 'featureGates',
    default: {},
    omitted: true,
    help: 'Feature gates to change, as name=true or name=false. Every gate of Kubernetes 1.36 is accepted.',
  }),
  declareField('string', {
    flag: 'kubeconfig',
    path: 'clientConnection.kubeconfig',
    default: '',
    help: 'Kubeconfig file for the API server. If this and --master are empty, the in-cluster configuration is used.',
  }),
  declareField('string', {
    path: 'clientConnection.acceptContentTypes',
    default: '',
    help: 'Accept header for reading from the API server. If it is empty, contentType decides.',
  }),
  declareField('string', {
    flag: 'kube-api-content-type',
    path: 'clientConnection.contentType',
    default: 'application/vnd.kubernetes.protobuf',
    help: 'Type in which the API server is asked to answer: application/vnd.kubernetes.protobuf or application/json.',
  }),
  declareField('float32', {
    flag: 'kube-api-qps',
    path: 'clientConnection.qps',
    default: 5,
    help: 'Requests per second to the API server. A negative number means no limit.',
  }),
  declareField('int32', {
    flag: 'kube-api-burst',
    path: 'clientConnection.burst',
    default: 10,
    help: 'Requests that may be made at once before the rate limit applies.',
  }),
  declareField('string', {
    flag: 'hostname-override',
    path: 'hostnameOverride',
    default: '',
    beatsFile: true,
    help: 'Name of the Node that this proxy runs on. Empty means the host name.',
  }),
  declareField('ip', {
    flag: 'bind-address',
    path: 'bindAddress',
    default: '0.0.0.0',
    help: "The node's primary IP, if it differs from the one of the Node object. No socket is bound to it.",
  }),
  declareField('ipPort', {
    flag: 'healthz-bind-address',
    path: 'healthzBindAddress',
    default: '0.0.0.0:10256',
    help: 'Address of the health server.',
  }),
  declareField('ipPort', {
    flag: 'metrics-bind-address',
    path: 'metricsBindAddress',
    default: '127.0.0.1:10249',
    help: 'Address of the metrics server.',
  }),
  declareField('bool', {
    flag: 'bind-address-hard-fail',
    path: 'bindAddressHardFail',
    default: false,
    help: 'Exit when the health or metrics address cannot be bound, instead of trying again every 5s.',
  }),
  declareField('bool', {
    flag: 'profiling',
    path: 'enableProfiling',
    default: false,
    help: 'Serve /debug pages on the metrics server.',
  }),
  declareField('string', {
    flag: 'show-hidden-metrics-for-version',
    path: 'showHiddenMetricsForVersion',
    default: '',
    help: 'Show the metrics that were hidden in this version. Only the previous minor version is allowed.',
  }),
  declareField('string', {
    flag: 'proxy-mode',
    path: 'mode',
    label: 'ProxyMode',
    words: proxyModes,
    default: '',
    help: 'How services are programmed: iptables (also when empty), ipvs, nftables or userspace.',
  }),
  declareField('duration', {
    flag: 'config-sync-period',
    path: 'configSyncPeriod',
    default: 15 * minute,
    help: 'How often kube-proxy handles its cached objects again. Accepted for compatibility: this proxy needs no such resync.',
  }),
  declareField('int32', {
    flag: 'oom-score-adj',
    path: 'oomScoreAdj',
    default: -999,
    keepsZero: true,
    help: 'oom_score_adj of this process, from -1000 to 1000.',
  }),
]

const modes = [
  declareField('int32', {
    flag: 'iptables-masquerade-bit',
    path: 'iptables.masqueradeBit',
    default: 14,
    keepsZero: true,
    help: 'Bit of the firewall mark, 0 to 31, that requests source NAT in iptables and ipvs mode.',
  }),
  declareField('bool', {
    flag: 'masquerade-all',
    path: 'iptables.masqueradeAll',
    default: false,
    help: 'Apply source NAT to everything that is sent to cluster IPs, in every mode.',
  }),
  declareField('bool', {
    flag: 'iptables-localhost-nodeports',
    path: 'iptables.localhostNodePorts',
    default: true,
    keepsZero: true,
    help: 'Serve node ports on 127.0.0.0/8 in iptables mode.',
  }),
  declareField('duration', {
    flag: 'iptables-sync-period',
    path: 'iptables.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired, in every mode but ipvs.',
  }),
  declareField('duration', {
    flag: 'iptables-min-sync-period',
    path: 'iptables.minSyncPeriod',
    default: second,
    help: 'Minimum time between two syncs, in every mode but ipvs; syncs that cost less than 50 ms of CPU wait for less. 0 programs every change at once.',
  }),
  declareField('duration', {
    flag: 'ipvs-sync-period',
    path: 'ipvs.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired in ipvs mode.',
  }),
  declareField('duration', {
    flag: 'ipvs-min-sync-period',
    path: 'ipvs.minSyncPeriod',
    default: second,
    fileDefault: 0,
    help: 'Minimum time between two syncs in ipvs mode; syncs that cost less than 50 ms of CPU wait for less. In a file the default is 0.',
  }),
  declareField('string', {
    flag: 'ipvs-scheduler',
    path: 'ipvs.scheduler',
    default: '',
    help: 'IPVS scheduler. Empty means rr.',
  }),
  declareField('list', {
    flag: 'ipvs-exclude-cidrs',
    path: 'ipvs.excludeCIDRs',
    default: [],
    help: 'CIDRs whose virtual servers the proxy does not touch.',
  }),
  declareField('bool', {
    flag: 'ipvs-strict-arp',
    path: 'ipvs.strictARP',
    default: false,
    help: 'Set arp_ignore to 1 and arp_announce to 2.',
  }),
  declareField('duration', {
    flag: 'ipvs-tcp-timeout',
    path: 'ipvs.tcpTimeout',
    default: 0,
    help: `Timeout of idle TCP connections in IPVS. ${asIs}`,
  }),
  declareField('duration', {
    flag: 'ipvs-tcpfin-timeout',
    path: 'ipvs.tcpFinTimeout',
    default: 0,
    help: `Timeout of TCP connections after a FIN in IPVS. ${asIs}`,
  }),
  declareField('duration', {
    flag: 'ipvs-udp-timeout',
    path: 'ipvs.udpTimeout',
    default: 0,
    help: `Timeout of UDP flows in IPVS. ${asIs}`,
  }),
  declareField('int32', {
    path: 'nftables.masqueradeBit',
    default: 14,
    keepsZero: true,
    help: 'Bit of the firewall mark, 0 to 31, that requests source NAT in nftables mode.',
  }),
  declareField('bool', {
    path: 'nftables.masqueradeAll',
    default: false,
    help: 'Apply source NAT to everything that is sent to cluster IPs, in nftables mode.',
  }),
  declareField('duration', {
    path: 'nftables.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired in nftables mode.',
  }),
  declareField('duration', {
    path: 'nftables.minSyncPeriod',
    default: second,
    help: 'Minimum time between two syncs in nftables mode; syncs that cost less than 50 ms of CPU wait for less.',
  }),
  declareField('portRange', {
    flag: 'proxy-port-range',
    path: 'portRange',
    default: '',
    help: 'Ports that userspace mode listens on. If empty, the kernel chooses.',
  }),
  declareField('duration', {
    flag: 'udp-timeout',
    path: 'udpIdleTimeout',
    default: 250,
    omitted: true,
    help: 'How long userspace mode keeps an idle UDP flow open.',
  }),
]

const traffic = [
  declareField('string', {
    flag: 'detect-local-mode',
    path: 'detectLocalMode',
    label: 'LocalMode',
    words: localModes,
    default: '',
    help: 'How traffic of local pods is recognised: ClusterCIDR (also when empty), NodeCIDR, BridgeInterface or InterfaceNamePrefix.',
  }),
  declareField('string', {
    flag: 'pod-bridge-interface',
    path: 'detectLocal.bridgeInterface',
    default: '',
    help: 'Name of the bridge of local pods, for BridgeInterface.',
  }),
  declareField('string', {
    flag: 'pod-interface-name-prefix',
    path: 'detectLocal.interfaceNamePrefix',
    default: '',
    help: 'Prefix of the interface names of local pods, for InterfaceNamePrefix.',
  }),
  declareField('string', {
    flag: 'cluster-cidr',
    path: 'clusterCIDR',
    default: '',
    help: 'CIDR of all pods, or one of each family separated by a comma, for ClusterCIDR.',
  }),
  declareField('list', {
    flag: 'nodeport-addresses',
    path: 'nodePortAddresses',
    default: [],
    help: 'Node addresses that serve node ports: CIDRs, localhost, all, or just primary. Empty means all, or primary in nftables mode.',
  }),
  declareField('int32', {
    flag: 'conntrack-max-per-core',
    path: 'conntrack.maxPerCore',
    default: 32 * 1024,
    keepsZero: true,
    help: 'Connections to track per CPU core. 0 leaves the limit as it is and ignores --conntrack-min.',
  }),
  declareField('int32', {
    flag: 'conntrack-min',
    path: 'conntrack.min',
    default: 128 * 1024,
    keepsZero: true,
    help: 'Minimum number of connections to track, whatever the number of cores.',
  }),
  declareField('duration', {
    flag: 'conntrack-tcp-timeout-established',
    path: 'conntrack.tcpEstablishedTimeout',
    default: 24 * hour,
    keepsZero: true,
    help: `Timeout of idle established TCP connections. ${asIs}`,
  }),
  declareField('duration', {
    flag: 'conntrack-tcp-timeout-close-wait',
    path: 'conntrack.tcpCloseWaitTimeout',
    default: hour,
    keepsZero: true,
    help: `Timeout of TCP connections in CLOSE_WAIT. ${asIs}`,
  }),
  declareField('bool', {
    flag: 'conntrack-tcp-be-liberal',
    path: 'conntrack.tcpBeLiberal',
    default: false,
    help: 'Set nf_conntrack_tcp_be_liberal to 1.',
  }),
  declareField('duration', {
    flag: 'conntrack-udp-timeout',
    path: 'conntrack.udpTimeout',
    default: 0,
    help: `Timeout of unanswered UDP flows. ${asIs}`,
  }),
  declareField('duration', {
    flag: 'conntrack-udp-timeout-stream',
    path: 'conntrack.udpStreamTimeout',
    default: 0,
    help: `Timeout of answered UDP flows. ${asIs}`,
  }),
]

const windows = 'Windows only: accepted, no effect.'
const foreign = [
  declareField('string', { path: 'winkernel.networkName', default: '', help: windows }),
  declareField('string', { path: 'winkernel.sourceVip', default: '', help: windows }),
  declareField('bool', { path: 'winkernel.enableDSR', default: false, help: windows }),
  declareField('string', { path: 'winkernel.rootHnsEndpointName', default: '', help: windows }),
  declareField('bool', { path: 'winkernel.forwardHealthCheckVip', default: false, help: windows }),
  declareField('bool', { path: 'windowsRunAsService', default: false, omitted: true, help: windows }),
  declareField('string', {
    flag: 'resource-container',
    path: 'resourceContainer',
    default: '',
    omitted: true,
    help: 'Cgroup that kube-proxy moved itself into until 1.15.',
    deprecated: 'it has no effect: the container runtime or systemd places the process in a cgroup',
  }),
]

/** Every field. The rows keep their literal types, from which the types of flags and of the configuration are derived. */
export const fieldSettings = [...general, ...loggingSettings, ...modes, ...traffic, ...foreign]

export type FieldRow = (typeof fieldSettings)[number]

/** Rows by v1alpha1 path. */
export const settingByPath: ReadonlyMap<string, FieldSetting> = new Map(fieldSettings.map((row) => [row.path, row]))
