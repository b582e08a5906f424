// Builds the objects that tests put into a real API server, as JSON for `kubectl apply`.

type Fields = Readonly<Record<string, unknown>>

export function service(name: string, spec: Fields = {}, metadata: Fields = {}): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default', ...metadata },
    spec: { ipFamilyPolicy: 'PreferDualStack', ports: [{ name: 'http', port: 80, targetPort: 8080 }], ...spec },
  })
}

/** Builds what the EndpointSlice controller would create; there is no controller here. */
export function slice(name: string, owner: string, addresses: readonly string[], fields: Fields = {}): string {
  return JSON.stringify({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name, namespace: 'default', labels: { 'kubernetes.io/service-name': owner } },
    addressType: addresses[0]?.includes(':') === true ? 'IPv6' : 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: addresses.map((address) => ({ addresses: [address], conditions: { ready: true } })),
    ...fields,
  })
}

export function node(name: string, addresses: readonly string[], zone: string): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, labels: { 'topology.kubernetes.io/zone': zone } },
    spec: { podCIDRs: ['10.244.1.0/24', 'fd00:244:1::/64'] },
    status: { addresses: addresses.map((address) => ({ type: 'InternalIP', address })) },
  })
}

/** Joins several objects for one call of kubectl: each call is a process of 60 MB. */
export function list(...items: readonly string[]): string {
  return JSON.stringify({ apiVersion: 'v1', kind: 'List', items: items.map((item) => JSON.parse(item)) })
}
