// The inputs that fuzzing starts from: valid ones of every form, and those in test/fuzz/found that once revealed a bug.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dirname, '..', '..')

const metadata = {
  namespace: 'default',
  name: 'web',
  uid: '6a1d1f6e-0000-4000-8000-000000000001',
  resourceVersion: '42',
  creationTimestamp: '2026-01-02T03:04:05Z',
  labels: { 'kubernetes.io/service-name': 'web', 'topology.kubernetes.io/zone': 'a' },
  annotations: {
    'sluice/scheduler': 'rr',
    'sluice/weight': '3',
    'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-02T03:04:05.123456Z',
    'k8s.io/initial-events-end': 'true',
  },
}

const service = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata,
  spec: {
    type: 'LoadBalancer',
    clusterIP: '10.0.0.1',
    clusterIPs: ['10.0.0.1', 'fd00::1'],
    ipFamilies: ['IPv4', 'IPv6'],
    ports: [
      { name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30080 },
      { name: 'dns', protocol: 'UDP', port: 53, targetPort: 'dns' },
    ],
    externalIPs: ['192.0.2.1', ' '],
    loadBalancerSourceRanges: ['198.51.100.0/24', 'fd00::/8'],
    externalTrafficPolicy: 'Local',
    internalTrafficPolicy: 'Cluster',
    sessionAffinity: 'ClientIP',
    sessionAffinityConfig: { clientIP: { timeoutSeconds: 10_800 } },
    healthCheckNodePort: 31_000,
  },
  status: { loadBalancer: { ingress: [{ ip: '203.0.113.1', ipMode: 'VIP' }] } },
}

const endpointSlice = {
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata,
  addressType: 'IPv4',
  ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
  endpoints: [
    {
      addresses: ['10.1.0.1'],
      nodeName: 'node-1',
      conditions: { ready: true, serving: true, terminating: false },
      hints: { forZones: [{ name: 'a' }], forNodes: [{ name: 'node-1' }] },
    },
  ],
}

const node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata,
  spec: { podCIDRs: ['10.1.0.0/24', 'fd01::/64'], taints: [{ key: 'a', effect: 'NoSchedule' }] },
  status: {
    addresses: [
      { type: 'InternalIP', address: '192.0.2.2' },
      { type: 'Hostname', address: 'node-1' },
    ],
  },
}

const serviceCidr = {
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata,
  spec: { cidrs: ['10.0.0.0/16'] },
}

const objects: readonly object[] = [service, endpointSlice, node, serviceCidr]

const answers: readonly object[] = [
  ...objects.map((object) => ({ type: 'ADDED', object })),
  { kind: 'ServiceList', metadata: { resourceVersion: '43', continue: 'token' }, items: objects },
  {
    kind: 'Status',
    code: 410,
    reason: 'Expired',
    message: 'too old resource version',
    details: { retryAfterSeconds: 1, causes: [{ reason: 'ResourceVersionTooLarge' }] },
  },
]

const configuration = [
  `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
mode: nftables
clusterCIDR: 10.1.0.0/16
conntrack: { maxPerCore: 32768, tcpCloseWaitTimeout: 1h0m0s }
iptables:
  minSyncPeriod: 1s
  masqueradeBit: 14
nodePortAddresses: [primary, 192.0.2.0/24]
featureGates: { ComponentFlagz: true }
logging: { verbosity: 2, format: text }
`,
  `apiVersion: sluice/v1alpha1
kind: SluiceConfiguration
addresses: { precedence: age }
apiServer: { silence: 5m }
limits:
  portsPerService: 10
metrics: { hosts: ["a", "*"] }
`,
]

const manifests = [
  ...['web.yaml', 'dns.yaml'].map((file) => readFileSync(join(root, 'examples/standalone', file), 'utf8')),
  `a: &x [1, "two"]\nb: *x\n? {c: d}\n: |\n  text\n---\n# comment\n- !!str 1\n...\n`,
]

/** A Service with a name and a port, as kubectl would encode it. */
const protobuf = [
  '6b387300' +
    '0a0d0a0276311207536572766963651a00'.replace(/1a00$/, '') +
    '122a0a120a0377656212001a0764656661756c742200121412121204687474700a03544350185022020850280f',
  '6b3873000a0012060a040a026162',
]

interface GoldenMessage {
  readonly bytes: string
}

const netlink = (): readonly string[] =>
  (
    JSON.parse(readFileSync(join(root, 'test/sys/netlink/nft/nft-goldens.json'), 'utf8')) as readonly GoldenMessage[]
  ).map(({ bytes }) => bytes)

const asBuffers = (texts: readonly string[], encoding: BufferEncoding = 'utf8') =>
  texts.map((text) => Buffer.from(text, encoding))

function readValid(target: string): readonly Buffer[] {
  switch (target) {
    case 'objects':
      return asBuffers(objects.map((object) => JSON.stringify(object)))
    case 'answers':
      return asBuffers(answers.map((answer) => JSON.stringify(answer)))
    case 'configuration':
      return asBuffers(configuration)
    case 'manifests':
      return asBuffers([...manifests, ...objects.map((object) => JSON.stringify(object))])
    case 'protobuf':
      return asBuffers(protobuf, 'hex')
    default:
      return asBuffers(netlink(), 'hex')
  }
}

function readFound(target: string): readonly Buffer[] {
  const folder = join(import.meta.dirname, 'found', target)
  return existsSync(folder) ? readdirSync(folder).map((file) => readFileSync(join(folder, file))) : []
}

export const readSeeds = (target: string): readonly Buffer[] => [...readValid(target), ...readFound(target)]
