// Generates hostile API objects: valid ones that want what belongs to others, and valid ones in which a few fields are mutated.

import fc from 'fast-check'

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json }

export interface ValidObject {
  readonly resource: 'services' | 'endpointslices' | 'servicecidrs' | 'nodes'
  readonly object: Json
}

/** Kept in two parts, so that a counterexample can be printed: a mutation may nest a value thousands of levels deep. */
export interface HostileObject {
  readonly valid: ValidObject
  readonly mutations: readonly Mutation[]
}

/** What belongs to the service that no object may disturb, and to the proxy. */
export interface Targets {
  readonly clusterIps: readonly string[]
  readonly podIps: readonly string[]
  readonly reservedIps: readonly string[]
  readonly ports: readonly number[]
}

/** The most elements that a list gets; the etcd limit of 1.5 MB allows some ten thousand. */
const longList = 3000
/** Levels that one mutation adds. An object has up to three mutations, and JSON.stringify of the test itself must survive their sum. */
const deepest = 1000

const plainNames = ['a', 'b', 'c', 'web', 'kubernetes']
const oddNames = [
  '__proto__',
  'constructor',
  'toString',
  '',
  ' ',
  '.',
  '../../etc',
  'x\u0000y',
  'a"; flush ruleset; "',
  '-A KUBE-SERVICES -j DROP',
  '\u202egnp.exe',
  '\ud800',
  'a\nCOMMIT\n*nat',
  'n'.repeat(253),
  'n'.repeat(100_000),
]
const name = fc.oneof({ weight: 9, arbitrary: fc.constantFrom(...plainNames) }, fc.constantFrom(...oddNames))
const namespace = fc.oneof({ weight: 9, arbitrary: fc.constantFrom('t1', 't2') }, fc.constantFrom(...oddNames))

const number = fc.constantFrom(-1, 0, 1, 53, 80, 443, 30_000, 65_535, 65_536, 2 ** 31, 2 ** 53, 1e308, 0.5, -0)
const port = fc.oneof({ weight: 6, arbitrary: fc.constantFrom(1, 53, 80, 443, 6443, 8080, 10_256, 65_535) }, number)
const time = fc.constantFrom('2024-01-01T00:00:00Z', '1970-01-01T00:00:00Z', '9999-12-31T23:59:59Z', 'yesterday')

const oddIps = [
  '0.0.0.0',
  '255.255.255.255',
  '127.0.0.1',
  '::',
  '::1',
  '::ffff:10.0.0.1',
  'fe80::1%eth0',
  '010.0.0.1',
  '1.2.3',
  '',
]
const freeIps = ['172.30.1.1', '172.30.1.2', '172.30.1.3', '198.51.100.1', 'fd00:30::1', 'fd00:30::2']
const cidr = fc.constantFrom(
  '0.0.0.0/0',
  '::/0',
  '10.0.0.0/8',
  '10.0.0.1/32',
  '10.0.0.0/33',
  'fd00::/8',
  '/',
  '1/1',
  '192.0.2.0/24',
)
const protocol = fc.constantFrom('TCP', 'UDP', 'SCTP', 'tcp', 'ICMP', '')
const portName = fc.oneof({ weight: 6, arbitrary: fc.constantFrom('', 'http', 'dns') }, fc.constantFrom(...oddNames))

/** Few elements most of the time, thousands now and then. */
function list<T>(element: fc.Arbitrary<T>, many: (i: number) => T): fc.Arbitrary<readonly T[]> {
  const long = fc.integer({ min: 10, max: longList }).map((count) => Array.from({ length: count }, (_, i) => many(i)))
  return fc.oneof({ weight: 200, arbitrary: fc.array(element, { maxLength: 4 }) }, { weight: 1, arbitrary: long })
}

const numberedIp = (i: number) => `100.64.${(i >> 8) & 255}.${i & 255}`

function metadataOf(labels: fc.Arbitrary<Json>) {
  return fc.record({ namespace, name, uid: name, creationTimestamp: time, labels })
}

function services(targets: Targets): fc.Arbitrary<ValidObject> {
  const anyIp = fc.constantFrom(...freeIps, ...oddIps, ...targets.clusterIps, ...targets.podIps, ...targets.reservedIps)
  // An API server gives a cluster IP and a node port to one service only: those of the protected service are not generated here.
  const clusterIps = fc.constantFrom(
    ['172.30.1.1'],
    ['172.30.1.2'],
    ['172.30.1.3', 'fd00:30::1'],
    ['fd00:30::2'],
    ['None'],
  )
  const nodePort = fc.constantFrom(0, 30_001, 30_002, 32_767, 10_256)
  const ports = list(
    fc.record({ name: portName, protocol, port: fc.oneof(port, fc.constantFrom(...targets.ports)), nodePort }),
    (i) => ({ name: `p${i}`, protocol: 'TCP', port: 1 + i, nodePort: 0 }),
  )
  const spec = fc.record({
    type: fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName', 'None'),
    clusterIps,
    ports,
    externalIPs: list(anyIp, numberedIp),
    loadBalancerSourceRanges: list(cidr, (i) => `${numberedIp(i)}/32`),
    externalTrafficPolicy: fc.constantFrom('Cluster', 'Local', 'Nowhere'),
    internalTrafficPolicy: fc.constantFrom('Cluster', 'Local', ''),
    sessionAffinity: fc.constantFrom('None', 'ClientIP'),
    sessionAffinityConfig: fc.record({ clientIP: fc.record({ timeoutSeconds: number }) }),
    healthCheckNodePort: nodePort,
  })
  const ingress = list(fc.record({ ip: anyIp, ipMode: fc.constantFrom('VIP', 'Proxy') }), (i) => ({
    ip: numberedIp(i),
    ipMode: 'VIP',
  }))
  return fc
    .record({ metadata: metadataOf(fc.constant({})), spec, ingress })
    .map(({ metadata, spec: given, ingress }) => {
      const { clusterIps: ips, ...rest } = given
      const ipFamilies = ips.map((ip) => (ip.includes(':') ? 'IPv6' : 'IPv4'))
      const object = {
        apiVersion: 'v1',
        kind: 'Service',
        metadata,
        spec: { ...rest, clusterIP: ips[0] as string, clusterIPs: ips, ipFamilies },
        status: { loadBalancer: { ingress } },
      }
      return { resource: 'services' as const, object: object as Json }
    })
}

function slices(targets: Targets): fc.Arbitrary<ValidObject> {
  const podIp = fc.constantFrom('10.0.1.1', '10.0.1.2', 'fd01::1', ...targets.podIps, ...targets.reservedIps, ...oddIps)
  const endpoint = fc.record({
    addresses: fc.array(podIp, { maxLength: 2 }),
    nodeName: fc.constantFrom<string>('here', 'there', ''),
    conditions: fc.record({ ready: fc.boolean(), serving: fc.boolean(), terminating: fc.boolean() }),
    hints: fc.record({ forZones: fc.array(fc.record({ name }), { maxLength: 2 }) }),
  })
  const parts = {
    metadata: metadataOf(fc.record({ 'kubernetes.io/service-name': name })),
    addressType: fc.constantFrom('IPv4', 'IPv4', 'IPv6', 'FQDN'),
    ports: list(fc.record({ name: portName, protocol, port }), (i) => ({ name: `p${i}`, protocol: 'TCP', port: 8080 })),
    endpoints: list(endpoint, (i) => ({
      addresses: [numberedIp(i)],
      nodeName: 'there',
      conditions: { ready: true, serving: true, terminating: false },
      hints: { forZones: [] },
    })),
  }
  return fc.record(parts).map((given) => ({
    resource: 'endpointslices' as const,
    object: { apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', ...given } as Json,
  }))
}

const serviceCidrs: fc.Arbitrary<ValidObject> = fc
  .record({ name, cidrs: list(cidr, (i) => `${numberedIp(i)}/32`) })
  .map(({ name, cidrs }) => ({
    resource: 'servicecidrs',
    object: { apiVersion: 'networking.k8s.io/v1', kind: 'ServiceCIDR', metadata: { name }, spec: { cidrs } },
  }))

const nodes: fc.Arbitrary<ValidObject> = fc
  .record({
    zone: name,
    podCIDRs: list(cidr, (i) => `${numberedIp(i)}/32`),
    addresses: list(
      fc.record({ type: fc.constantFrom('InternalIP', 'Hostname'), address: fc.constantFrom(...oddIps) }),
      (i) => ({ type: 'ExternalIP', address: numberedIp(i) }),
    ),
  })
  .map(({ zone, podCIDRs, addresses }) => ({
    resource: 'nodes',
    object: {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: 'here', labels: { 'topology.kubernetes.io/zone': zone } },
      spec: { podCIDRs },
      status: { addresses },
    } as Json,
  }))

// ---- Mutations. ----

/** Replaces, removes or repeats the value that `path` leads to; each number chooses one of the children there. */
interface Mutation {
  readonly path: readonly number[]
  readonly change: { readonly replace: Json } | 'remove' | { readonly repeat: number } | { readonly nest: number }
}

const junk: fc.Arbitrary<Json> = fc.oneof(
  fc.constantFrom<Json>(null, true, '', [], {}, [[]], [null], { a: null }),
  number,
  fc.constantFrom(...oddNames, ...oddIps),
)

const mutation: fc.Arbitrary<Mutation> = fc.record({
  path: fc.array(fc.nat(20), { minLength: 1, maxLength: 6 }),
  change: fc.oneof(
    { weight: 6, arbitrary: junk.map((replace) => ({ replace })) },
    { weight: 3, arbitrary: fc.constant('remove' as const) },
    { weight: 1, arbitrary: fc.integer({ min: 2, max: 500 }).map((repeat) => ({ repeat })) },
    { weight: 1, arbitrary: fc.integer({ min: 1, max: deepest }).map((nest) => ({ nest })) },
  ),
})

const mutate = (value: Json, mutation: Mutation): Json => mutateAt(value, mutation, 0)

function mutateAt(value: Json, { path, change }: Mutation, depth: number): Json {
  const children = typeof value === 'object' && value !== null ? Object.keys(value) : []
  if (depth === path.length || children.length === 0) return changed(value, change)
  const chosen = children[(path[depth] as number) % children.length] as string
  // A hostile object must not name the protected service: otherwise a mutant would be that service itself.
  if (depth === 0 && (chosen === 'kind' || chosen === 'apiVersion')) return value
  const below = (value as Record<string, Json>)[chosen] as Json
  const next =
    depth + 1 === path.length && change === 'remove' ? undefined : mutateAt(below, { path, change }, depth + 1)
  if (Array.isArray(value)) return value.flatMap((one, i) => replaced(one, String(i) === chosen, next))
  const rest = Object.entries(value as Record<string, Json>)
  return Object.fromEntries(rest.flatMap(([key, one]) => replaced(one, key === chosen, next).map((it) => [key, it])))
}

const replaced = (value: Json, isChosen: boolean, next: Json | undefined): readonly Json[] => {
  if (!isChosen) return [value]
  return next === undefined ? [] : [next]
}

function changed(value: Json, change: Mutation['change']): Json {
  if (change === 'remove') return null
  if ('replace' in change) return change.replace
  if ('repeat' in change) return Array.from({ length: change.repeat }, () => value)
  let nested: Json = value
  for (let i = 0; i < change.nest; i++) nested = i % 2 === 0 ? [nested] : { a: nested }
  return nested
}

export function hostileObjects(targets: Targets): fc.Arbitrary<HostileObject> {
  const base = fc.oneof(
    { weight: 8, arbitrary: services(targets) },
    { weight: 8, arbitrary: slices(targets) },
    { weight: 1, arbitrary: serviceCidrs },
    { weight: 1, arbitrary: nodes },
  )
  const mutations = fc.oneof(
    { weight: 1, arbitrary: fc.constant([]) },
    { weight: 2, arbitrary: fc.array(mutation, { minLength: 1, maxLength: 3 }) },
  )
  return fc.record({ valid: base, mutations })
}

export interface BuiltObject extends ValidObject {
  /** Identifies the object on the server, which stores one object per namespace and name. */
  readonly id: string
}

export function buildObject({ valid, mutations }: HostileObject): BuiltObject {
  const object = mutations.reduce(mutate, valid.object)
  return { resource: valid.resource, id: identify(object), object }
}

function identify(object: Json): string {
  const { metadata } = (object ?? {}) as { metadata?: { namespace?: Json; name?: Json } }
  return JSON.stringify([metadata?.namespace ?? '', metadata?.name ?? ''])
}
