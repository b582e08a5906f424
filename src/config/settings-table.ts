// Every field of KubeProxyConfiguration v1alpha1 with the flag that means the same: parsing, help, docs and defaults all come from here.

import { loggingSettings } from './logging-table.ts'
import { type Setting, setting } from './setting.ts'

const second = 1000
const minute = 60 * second
const hour = 60 * minute
const asIs = '0 leaves the kernel setting as it is.'

const general: readonly Setting[] = [
  setting('gates', {
    flag: 'feature-gates',
    path: 'featureGates',
    default: {},
    omitted: true,
    help: 'Feature gates to change, as name=true or name=false. Every gate of Kubernetes 1.36 is accepted.',
  }),
  setting('string', {
    flag: 'kubeconfig',
    path: 'clientConnection.kubeconfig',
    default: '',
    help: 'Kubeconfig file for the API server. With this and --master empty, the in-cluster configuration is used.',
  }),
  setting('string', {
    path: 'clientConnection.acceptContentTypes',
    default: '',
    help: 'Accept header for the API server. Accepted for compatibility: JSON is always used.',
  }),
  setting('string', {
    flag: 'kube-api-content-type',
    path: 'clientConnection.contentType',
    default: 'application/vnd.kubernetes.protobuf',
    help: 'Content type of requests. Accepted for compatibility: JSON is always used.',
  }),
  setting('float32', {
    flag: 'kube-api-qps',
    path: 'clientConnection.qps',
    default: 5,
    help: 'Requests per second to the API server. Negative: no limit.',
  }),
  setting('int32', {
    flag: 'kube-api-burst',
    path: 'clientConnection.burst',
    default: 10,
    help: 'Requests that may be made at once before the rate limit counts.',
  }),
  setting('string', {
    flag: 'hostname-override',
    path: 'hostnameOverride',
    default: '',
    beatsFile: true,
    help: 'Name of the Node this proxy runs on. Empty: the host name.',
  }),
  setting('ip', {
    flag: 'bind-address',
    path: 'bindAddress',
    default: '0.0.0.0',
    help: "The node's primary IP, if it is to be another one than the Node object says. Nothing is bound to it.",
  }),
  setting('ipPort', {
    flag: 'healthz-bind-address',
    path: 'healthzBindAddress',
    default: '0.0.0.0:10256',
    help: 'Address of the health server.',
  }),
  setting('ipPort', {
    flag: 'metrics-bind-address',
    path: 'metricsBindAddress',
    default: '127.0.0.1:10249',
    help: 'Address of the metrics server.',
  }),
  setting('bool', {
    flag: 'bind-address-hard-fail',
    path: 'bindAddressHardFail',
    default: false,
    help: 'Exit when the health or metrics address cannot be bound, instead of trying again every 5s.',
  }),
  setting('bool', {
    flag: 'profiling',
    path: 'enableProfiling',
    default: false,
    help: 'Serve /debug pages on the metrics server.',
  }),
  setting('string', {
    flag: 'show-hidden-metrics-for-version',
    path: 'showHiddenMetricsForVersion',
    default: '',
    help: 'Show the metrics that were hidden in this version. Only the previous minor version is allowed.',
  }),
  setting('string', {
    flag: 'proxy-mode',
    path: 'mode',
    label: 'ProxyMode',
    default: '',
    help: 'How services are programmed: iptables (also when empty), ipvs, nftables or userspace.',
  }),
  setting('duration', {
    flag: 'config-sync-period',
    path: 'configSyncPeriod',
    default: 15 * minute,
    help: 'How often objects from the API server are looked at again.',
  }),
  setting('int32', {
    flag: 'oom-score-adj',
    path: 'oomScoreAdj',
    default: -999,
    keepsZero: true,
    help: 'oom_score_adj of this process, from -1000 to 1000.',
  }),
]

const modes: readonly Setting[] = [
  setting('int32', {
    flag: 'iptables-masquerade-bit',
    path: 'iptables.masqueradeBit',
    default: 14,
    keepsZero: true,
    help: 'Bit of the firewall mark, 0 to 31, that asks for source NAT in iptables and ipvs mode.',
  }),
  setting('bool', {
    flag: 'masquerade-all',
    path: 'iptables.masqueradeAll',
    default: false,
    help: 'Source NAT for everything sent to cluster IPs, in every mode.',
  }),
  setting('bool', {
    flag: 'iptables-localhost-nodeports',
    path: 'iptables.localhostNodePorts',
    default: true,
    keepsZero: true,
    help: 'Serve node ports on 127.0.0.0/8 in iptables mode.',
  }),
  setting('duration', {
    flag: 'iptables-sync-period',
    path: 'iptables.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired, in every mode but ipvs.',
  }),
  setting('duration', {
    flag: 'iptables-min-sync-period',
    path: 'iptables.minSyncPeriod',
    default: second,
    help: 'Least time between two syncs, in every mode but ipvs. 0: every change is programmed at once.',
  }),
  setting('duration', {
    flag: 'ipvs-sync-period',
    path: 'ipvs.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired in ipvs mode.',
  }),
  setting('duration', {
    flag: 'ipvs-min-sync-period',
    path: 'ipvs.minSyncPeriod',
    default: second,
    fileDefault: 0,
    help: 'Least time between two syncs in ipvs mode. A file that does not give it means 0.',
  }),
  setting('string', {
    flag: 'ipvs-scheduler',
    path: 'ipvs.scheduler',
    default: '',
    help: 'IPVS scheduler. Empty: rr.',
  }),
  setting('list', {
    flag: 'ipvs-exclude-cidrs',
    path: 'ipvs.excludeCIDRs',
    default: [],
    help: 'Virtual servers in these CIDRs are left alone.',
  }),
  setting('bool', {
    flag: 'ipvs-strict-arp',
    path: 'ipvs.strictARP',
    default: false,
    help: 'Set arp_ignore to 1 and arp_announce to 2.',
  }),
  setting('duration', {
    flag: 'ipvs-tcp-timeout',
    path: 'ipvs.tcpTimeout',
    default: 0,
    help: `Timeout of idle TCP connections in IPVS. ${asIs}`,
  }),
  setting('duration', {
    flag: 'ipvs-tcpfin-timeout',
    path: 'ipvs.tcpFinTimeout',
    default: 0,
    help: `Timeout of TCP connections after a FIN in IPVS. ${asIs}`,
  }),
  setting('duration', {
    flag: 'ipvs-udp-timeout',
    path: 'ipvs.udpTimeout',
    default: 0,
    help: `Timeout of UDP flows in IPVS. ${asIs}`,
  }),
  setting('int32', {
    path: 'nftables.masqueradeBit',
    default: 14,
    keepsZero: true,
    help: 'Bit of the firewall mark, 0 to 31, that asks for source NAT in nftables mode.',
  }),
  setting('bool', {
    path: 'nftables.masqueradeAll',
    default: false,
    help: 'Source NAT for everything sent to cluster IPs in nftables mode.',
  }),
  setting('duration', {
    path: 'nftables.syncPeriod',
    default: 30 * second,
    help: 'How often rules are checked and repaired in nftables mode.',
  }),
  setting('duration', {
    path: 'nftables.minSyncPeriod',
    default: second,
    help: 'Least time between two syncs in nftables mode.',
  }),
  setting('portRange', {
    flag: 'proxy-port-range',
    path: 'portRange',
    default: '',
    help: 'Ports that userspace mode listens on. Empty: the kernel chooses.',
  }),
  setting('duration', {
    flag: 'udp-timeout',
    path: 'udpIdleTimeout',
    default: 250,
    omitted: true,
    help: 'How long userspace mode keeps an idle UDP flow open.',
  }),
]

const traffic: readonly Setting[] = [
  setting('string', {
    flag: 'detect-local-mode',
    path: 'detectLocalMode',
    label: 'LocalMode',
    default: '',
    help: 'How traffic of local pods is recognised: ClusterCIDR (also when empty), NodeCIDR, BridgeInterface or InterfaceNamePrefix.',
  }),
  setting('string', {
    flag: 'pod-bridge-interface',
    path: 'detectLocal.bridgeInterface',
    default: '',
    help: 'Name of the bridge of local pods, for BridgeInterface.',
  }),
  setting('string', {
    flag: 'pod-interface-name-prefix',
    path: 'detectLocal.interfaceNamePrefix',
    default: '',
    help: 'How names of interfaces of local pods begin, for InterfaceNamePrefix.',
  }),
  setting('string', {
    flag: 'cluster-cidr',
    path: 'clusterCIDR',
    default: '',
    help: 'CIDR of all pods, or one of each family separated by a comma, for ClusterCIDR.',
  }),
  setting('list', {
    flag: 'nodeport-addresses',
    path: 'nodePortAddresses',
    default: [],
    help: 'Node addresses that serve node ports: CIDRs, localhost, all, or just primary. Empty: all; in nftables mode primary.',
  }),
  setting('int32', {
    flag: 'conntrack-max-per-core',
    path: 'conntrack.maxPerCore',
    default: 32 * 1024,
    keepsZero: true,
    help: 'Connections to track per CPU core. 0 leaves the limit as it is and ignores --conntrack-min.',
  }),
  setting('int32', {
    flag: 'conntrack-min',
    path: 'conntrack.min',
    default: 128 * 1024,
    keepsZero: true,
    help: 'Connections to track at least, however few the cores.',
  }),
  setting('duration', {
    flag: 'conntrack-tcp-timeout-established',
    path: 'conntrack.tcpEstablishedTimeout',
    default: 24 * hour,
    keepsZero: true,
    help: `Timeout of idle established TCP connections. ${asIs}`,
  }),
  setting('duration', {
    flag: 'conntrack-tcp-timeout-close-wait',
    path: 'conntrack.tcpCloseWaitTimeout',
    default: hour,
    keepsZero: true,
    help: `Timeout of TCP connections in CLOSE_WAIT. ${asIs}`,
  }),
  setting('bool', {
    flag: 'conntrack-tcp-be-liberal',
    path: 'conntrack.tcpBeLiberal',
    default: false,
    help: 'Set nf_conntrack_tcp_be_liberal to 1.',
  }),
  setting('duration', {
    flag: 'conntrack-udp-timeout',
    path: 'conntrack.udpTimeout',
    default: 0,
    help: `Timeout of unanswered UDP flows. ${asIs}`,
  }),
  setting('duration', {
    flag: 'conntrack-udp-timeout-stream',
    path: 'conntrack.udpStreamTimeout',
    default: 0,
    help: `Timeout of answered UDP flows. ${asIs}`,
  }),
]

const windows = 'Windows only: accepted, no effect.'
const foreign: readonly Setting[] = [
  setting('string', { path: 'winkernel.networkName', default: '', help: windows }),
  setting('string', { path: 'winkernel.sourceVip', default: '', help: windows }),
  setting('bool', { path: 'winkernel.enableDSR', default: false, help: windows }),
  setting('string', { path: 'winkernel.rootHnsEndpointName', default: '', help: windows }),
  setting('bool', { path: 'winkernel.forwardHealthCheckVip', default: false, help: windows }),
  setting('bool', { path: 'windowsRunAsService', default: false, omitted: true, help: windows }),
  setting('string', {
    flag: 'resource-container',
    path: 'resourceContainer',
    default: '',
    omitted: true,
    help: 'Cgroup that kube-proxy moved itself into until 1.15.',
    deprecated: 'it has no effect: the container runtime or systemd places the process in a cgroup',
  }),
]

export const fieldSettings: readonly Setting[] = [...general, ...loggingSettings, ...modes, ...traffic, ...foreign]

/** Rows by v1alpha1 path. */
export const settingByPath: ReadonlyMap<string, Setting> = new Map(
  fieldSettings.flatMap((row) => (row.path === undefined ? [] : [[row.path, row] as const])),
)
