// The objects of bench/hostile.ts: the largest that one user may create, each as JSON of a real API server. All but the last two kinds fit
// into etcd's 1.5 MB.

export interface HostileObjects {
  readonly name: string
  readonly services: readonly object[]
  readonly slices: readonly object[]
  /** A slice that changes while the objects stay. */
  readonly changed?: object
}

const list = <T>(length: number, make: (i: number) => T): T[] => Array.from({ length }, (_, i) => make(i))
const ips = (length: number, first = 20): string[] =>
  list(length, (i) => `${first + (i >> 16)}.${(i >> 8) & 255}.${i & 255}.7`)

function service(spec: object, name = 'hostile', loadBalancerIps: readonly string[] = []): object {
  const ip = `10.111.${Number(/\d+$/.exec(name)?.[0] ?? 0) >> 8}.${(Number(/\d+$/.exec(name)?.[0] ?? 0) & 255) + 1}`
  return {
    kind: 'Service',
    apiVersion: 'v1',
    metadata: metadata(name),
    spec: {
      ports: ports(1),
      clusterIP: ip,
      clusterIPs: [ip],
      type: 'ClusterIP',
      sessionAffinity: 'None',
      ipFamilies: ['IPv4'],
      ipFamilyPolicy: 'SingleStack',
      internalTrafficPolicy: 'Cluster',
      ...spec,
    },
    status: { loadBalancer: { ingress: loadBalancerIps.map((ip) => ({ ip, ipMode: 'VIP' })) } },
  }
}

const metadata = (name: string, labels: object = {}) => ({
  name,
  namespace: 'hostile',
  uid: `uid-${name}`,
  resourceVersion: '5000000',
  creationTimestamp: '2026-01-01T00:00:00Z',
  labels,
})

const ports = (length: number) =>
  list(length, (i) => ({ name: `p${i}`, protocol: 'TCP', port: i + 1, targetPort: i + 1 }))

function slice(endpoints: readonly string[], given: { ports?: number; name?: string; service?: string } = {}): object {
  const { service: owner = 'hostile', name = `${owner}-1` } = given
  return {
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    metadata: metadata(name, { 'kubernetes.io/service-name': owner }),
    addressType: 'IPv4',
    endpoints: endpoints.map((ip) => ({
      addresses: [ip],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: 'node-8',
    })),
    ports: list(given.ports ?? 1, (i) => ({ name: `p${i}`, port: i + 1, protocol: 'TCP' })),
  }
}

/** Slices of 1,000 endpoints. */
const slices = (endpoints: number, portsPerSlice = 1): object[] =>
  list(Math.ceil(endpoints / 1000), (i) =>
    slice(ips(endpoints, 60).slice(i * 1000, i * 1000 + 1000), { name: `hostile-${i}`, ports: portsPerSlice }),
  )

const one = [slice(['60.0.0.7'])]
const balancer = { type: 'LoadBalancer' }
const affinity = { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 10_800 } } }
const localBalancer = { ...balancer, externalTrafficPolicy: 'Local' }

function manySlices(): HostileObjects {
  const all = ips(5_000, 60).map((ip, i) => slice([ip], { name: `hostile-${i}` }))
  const changed = slice(['61.0.0.7'], { name: 'hostile-2500' })
  return { name: 'one slice among 5,000', services: [service({})], slices: all, changed }
}

function healthChecks(): HostileObjects {
  const names = list(500, (i) => `check-${i}`)
  return {
    name: '500 health check node ports',
    services: names.map((name, i) =>
      service({ ...localBalancer, healthCheckNodePort: 31_000 + i }, name, [`30.1.${i >> 8}.${i & 255}`]),
    ),
    slices: names.map((name, i) => slice([`60.1.${i >> 8}.${i & 255}`], { service: name })),
  }
}

/** Made one at a time: all of them together take hundreds of MB. */
export const hostileObjects: readonly (() => HostileObjects)[] = [
  () => ({ name: '100,000 external IPs', services: [service({ externalIPs: ips(100_000) })], slices: one }),
  () => ({
    name: '300 ports x 1,000 external IPs',
    services: [service({ ports: ports(300), externalIPs: ips(1_000) })],
    slices: [slice(['60.0.0.7'], { ports: 300 })],
  }),
  () => ({
    name: '20,000 ports',
    services: [service({ ports: ports(20_000) })],
    slices: [slice(['60.0.0.7'], { ports: 20_000 })],
  }),
  () => ({ name: '10,000 endpoints', services: [service({})], slices: slices(10_000) }),
  () => ({
    name: '1,000 endpoints x 100 ports',
    services: [service({ ports: ports(100) })],
    slices: slices(1_000, 100),
  }),
  () => ({ name: 'affinity, 3,000 endpoints', services: [service(affinity)], slices: slices(3_000) }),
  () => ({
    name: '30,000 source ranges',
    services: [
      service({ ...balancer, loadBalancerSourceRanges: ips(30_000).map((ip) => `${ip}/32`) }, 'hostile', ['30.1.1.1']),
    ],
    slices: one,
  }),
  healthChecks,
  manySlices,
  () => ({
    name: '160 ports x 120 external IPs (just allowed)',
    services: [service({ ports: ports(160), externalIPs: ips(120) })],
    slices: [slice(['60.0.0.7'], { ports: 160 })],
  }),
  () => ({
    name: '2,000 source ranges (just allowed)',
    services: [
      service({ ...balancer, loadBalancerSourceRanges: ips(2_000).map((ip) => `${ip}/32`) }, 'hostile', ['30.1.1.1']),
    ],
    slices: one,
  }),
  () => ({
    name: '1,000 endpoints x 20 ports (just allowed)',
    services: [service({ ports: ports(20), externalIPs: ips(2) })],
    slices: slices(1_000, 20),
  }),
]
