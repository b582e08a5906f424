// Generates Services and EndpointSlices of which about half are valid, for tests that compare what two servers say about them.

import fc from 'fast-check'

export type RandomObject = Readonly<Record<string, unknown>>

/** A value that is usually absent. */
const rarely = <T>(...values: readonly T[]): fc.Arbitrary<T | undefined> =>
  fc.oneof({ arbitrary: fc.constant(undefined), weight: 15 }, { arbitrary: fc.constantFrom(...values), weight: 1 })
/** A value that is usually good. */
const usually = <T>(good: readonly T[], bad: readonly T[]): fc.Arbitrary<T> =>
  fc.oneof({ arbitrary: fc.constantFrom(...good), weight: 60 }, { arbitrary: fc.constantFrom(...bad), weight: 1 })

const withoutUndefined = (object: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined))

const record = (fields: Record<string, fc.Arbitrary<unknown>>): fc.Arbitrary<Record<string, unknown>> =>
  fc.record(fields).map(withoutUndefined)

const labels = rarely<unknown>({ app: 'web' }, { 'a/b': 'c' }, { 'no good': 'x' }, { app: 'no good' }, { '': 'x' }, {})

const servicePort = record({
  name: usually<unknown>(['a', 'b', 'http', 'c-1'], [undefined, 'A', 'a_b', 'x'.repeat(64), '']),
  port: usually<unknown>([80, 81, 443, 53, 65_535], [0, -1, 65_536, undefined, '80', 80.5]),
  protocol: usually<unknown>([undefined, 'TCP', 'UDP', 'SCTP'], ['tcp', '', 'FOO']),
  targetPort: usually<unknown>([undefined, 8080, 'http'], [0, -1, 70_000, 'Not_Valid', '', 'x'.repeat(16), '80']),
  nodePort: usually<unknown>([undefined, undefined, 30_001, 30_002, 31_000], [0, 80, -1, 40_000, 70_000]),
  appProtocol: rarely<unknown>('http', 'kubernetes.io/h2c', 'a b', ''),
})

const serviceSpec = record({
  type: usually<unknown>(
    [undefined, 'ClusterIP', 'NodePort', 'LoadBalancer', 'LoadBalancer'],
    ['ExternalName', 'Foo', ''],
  ),
  clusterIP: usually<unknown>(
    [undefined, undefined, 'None', '', '10.96.77.1', '10.96.77.2'],
    ['1.2.3.4', 'zz', '010.96.0.1'],
  ),
  clusterIPs: rarely<unknown>(
    ['10.96.77.3'],
    ['None'],
    ['10.96.77.3', '10.96.77.4'],
    ['10.96.77.3', 'fd00::1'],
    ['zz'],
    [],
  ),
  ports: fc.oneof(
    { arbitrary: fc.array(servicePort, { minLength: 1, maxLength: 1 }), weight: 8 },
    { arbitrary: fc.array(servicePort, { minLength: 2, maxLength: 3 }), weight: 6 },
    { arbitrary: fc.constantFrom<unknown[]>([], ['x']), weight: 1 },
  ),
  selector: rarely<unknown>({ app: 'web' }, { 'no good': 'x' }, { app: 'no good' }, {}),
  sessionAffinity: rarely<unknown>('None', 'ClientIP', 'ClientIP', 'x', ''),
  sessionAffinityConfig: rarely<unknown>(
    { clientIP: { timeoutSeconds: 60 } },
    { clientIP: { timeoutSeconds: 0 } },
    { clientIP: { timeoutSeconds: 86_401 } },
    { clientIP: {} },
    {},
  ),
  externalIPs: rarely<unknown>(
    ['192.0.2.1'],
    ['127.0.0.1'],
    ['zz'],
    ['::1'],
    ['0.0.0.0'],
    ['fe80::1'],
    ['192.0.2.1', '192.0.2.1'],
    ['224.0.0.1'],
  ),
  externalTrafficPolicy: rarely<unknown>('Local', 'Local', 'Cluster', 'x', ''),
  internalTrafficPolicy: rarely<unknown>('Local', 'Cluster', 'x', ''),
  ipFamilies: rarely<unknown>(
    ['IPv4'],
    ['IPv6'],
    ['IPv4', 'IPv6'],
    ['IPv4', 'IPv4'],
    ['x'],
    ['IPv4', 'IPv6', 'IPv4'],
    [],
  ),
  ipFamilyPolicy: rarely<unknown>('SingleStack', 'PreferDualStack', 'RequireDualStack', 'x', ''),
  loadBalancerIP: rarely<unknown>('192.0.2.9', '127.0.0.1', 'zz'),
  loadBalancerSourceRanges: rarely<unknown>(['10.0.0.0/8'], ['10.0.0.1/8'], [' 10.0.0.0/8 '], ['10.0.0.0'], ['zz'], []),
  loadBalancerClass: rarely<unknown>('example.com/lb', 'lb', 'a b', ''),
  allocateLoadBalancerNodePorts: rarely<unknown>(true, false),
  healthCheckNodePort: rarely<unknown>(30_500, 80, 0, -1),
  externalName: rarely<unknown>('example.com', 'a_b', ''),
  trafficDistribution: rarely<unknown>('PreferClose', 'PreferSameNode', 'x', ''),
  publishNotReadyAddresses: rarely<unknown>(true, 'x'),
  nonsense: rarely<unknown>(1),
})

const metadata = record({
  name: usually<unknown>(['web', 'api-1', 'a', 'x1'], ['A_b', '-x', 'x'.repeat(64), '1abc', 'a.b']),
  labels,
  annotations: rarely<unknown>({ a: 'b' }, { 'no good': 'x' }, { 'A/b': 'c' }),
})

export const randomService: fc.Arbitrary<RandomObject> = fc
  .record({ metadata, spec: serviceSpec })
  .map((parts) => ({ apiVersion: 'v1', kind: 'Service', ...parts }))

const endpoint = record({
  addresses: usually<unknown>(
    [['10.1.0.1'], ['10.1.0.2'], ['10.1.1.3']],
    [
      [],
      ['zz'],
      ['127.0.0.1'],
      ['0.0.0.0'],
      ['169.254.1.1'],
      ['224.0.0.1'],
      ['::1'],
      ['10.1.0.1', '10.1.0.2'],
      ['010.1.0.1'],
      undefined,
    ],
  ),
  conditions: rarely<unknown>({ ready: true }, { ready: false, serving: true, terminating: true }, { ready: 'x' }, {}),
  hostname: rarely<unknown>('a', 'A_b', ''),
  nodeName: rarely<unknown>('node-1', 'A_b', ''),
  zone: rarely<unknown>('east', ''),
  hints: rarely<unknown>(
    { forZones: [{ name: 'east' }] },
    { forZones: [{ name: 'east' }, { name: 'east' }] },
    { forZones: [{ name: '' }] },
    { forZones: [{ name: 'no good' }] },
    { forNodes: [{ name: 'node-1' }] },
    {},
  ),
  targetRef: rarely<unknown>({ kind: 'Pod', name: 'p', namespace: 'default' }, {}),
})

const slicePort = record({
  name: usually<unknown>([undefined, '', 'a', 'http', 'b'], ['A', 'a_b', 'x'.repeat(64)]),
  port: usually<unknown>([undefined, 80, 8080], [0, -1, 65_536, '80']),
  protocol: usually<unknown>([undefined, 'TCP', 'UDP', 'SCTP'], ['tcp', '', 'FOO']),
  appProtocol: rarely<unknown>('http', 'a b', ''),
})

export const randomSlice: fc.Arbitrary<RandomObject> = fc
  .record({
    metadata: fc.tuple(metadata, fc.constantFrom('web', 'api-1')).map(([given, service]) => ({
      ...given,
      labels: { 'kubernetes.io/service-name': service, ...((given.labels ?? {}) as object) },
    })),
    addressType: usually<unknown>(['IPv4', 'IPv4', 'IPv4', 'IPv6', 'FQDN'], ['', 'IPv5', undefined, 4]),
    endpoints: fc.oneof(
      { arbitrary: fc.array(endpoint, { maxLength: 3 }), weight: 15 },
      { arbitrary: fc.constant(undefined), weight: 1 },
    ),
    ports: fc.oneof({ arbitrary: fc.array(slicePort, { maxLength: 3 }), weight: 9 }, fc.constant(undefined)),
    nonsense: rarely<unknown>(1),
  })
  .map((parts) => withoutUndefined({ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', ...parts }))
