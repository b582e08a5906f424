// Numbered services and slices as a real API server has them, managed fields included: skipping these is part of the cost of reading.

let version = 1_000_000

/** Returns the version of the object that was made last. */
export const lastVersion = (): string => String(version)

/** Returns the service of the n-th change: all services in turn, none twice in a round. */
export const nth = (n: number, services: number): number => (n * 7919) % services

const name = (i: number) => `service-${String(i).padStart(5, '0')}`
const namespace = (i: number) => `namespace-${i % 100}`
const created = (i: number) => new Date(1_700_000_000_000 + i * 1000).toISOString().replace('.000', '')

function metadata(i: number, of: { name: string; labels: object; manager: string; fields: object }): object {
  return {
    name: of.name,
    namespace: namespace(i),
    uid: `00000000-0000-4000-8000-${String(i).padStart(12, '0')}`,
    resourceVersion: String(++version),
    creationTimestamp: created(i),
    labels: of.labels,
    managedFields: [
      {
        manager: of.manager,
        operation: 'Update',
        apiVersion: 'v1',
        time: created(i),
        fieldsType: 'FieldsV1',
        fieldsV1: of.fields,
      },
    ],
  }
}

export function service(i: number): object {
  const ip = `10.${96 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`
  const fields = {
    'f:metadata': { 'f:labels': { '.': {}, 'f:app': {}, 'f:app.kubernetes.io/part-of': {} } },
    'f:spec': {
      'f:internalTrafficPolicy': {},
      'f:ports': {
        '.': {},
        'k:{"port":80,"protocol":"TCP"}': { '.': {}, 'f:name': {}, 'f:port': {}, 'f:protocol': {}, 'f:targetPort': {} },
      },
      'f:selector': {},
      'f:sessionAffinity': {},
      'f:type': {},
    },
  }
  const labels = { app: name(i), 'app.kubernetes.io/part-of': 'bench' }
  return {
    kind: 'Service',
    apiVersion: 'v1',
    metadata: metadata(i, { name: name(i), labels, manager: 'kubectl-client-side-apply', fields }),
    spec: {
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
      selector: { app: name(i) },
      clusterIP: ip,
      clusterIPs: [ip],
      type: 'ClusterIP',
      sessionAffinity: 'None',
      ipFamilies: ['IPv4'],
      ipFamilyPolicy: 'SingleStack',
      internalTrafficPolicy: 'Cluster',
    },
    status: { loadBalancer: {} },
  }
}

/** Each `turn` has another address for the last endpoint. */
export function slice(i: number, endpoints: number, turn: number): object {
  const labels = {
    'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io',
    'kubernetes.io/service-name': name(i),
    app: name(i),
  }
  const fields = {
    'f:addressType': {},
    'f:endpoints': {},
    'f:metadata': { 'f:annotations': {}, 'f:generateName': {}, 'f:labels': {}, 'f:ownerReferences': {} },
    'f:ports': {},
  }
  const meta = metadata(i, { name: `${name(i)}-x7k2p`, labels, manager: 'kube-controller-manager', fields })
  const annotations = { 'endpoints.kubernetes.io/last-change-trigger-time': new Date().toISOString() }
  return {
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    metadata: { ...meta, ...(turn > 0 ? { annotations } : {}) },
    addressType: 'IPv4',
    endpoints: Array.from({ length: endpoints }, (_, n) =>
      endpoint(i, i * endpoints + n, n === endpoints - 1 ? turn : 0),
    ),
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
  }
}

function endpoint(i: number, at: number, turn: number): object {
  const pod = `${name(i)}-5d4f8c7b9-${at.toString(36).padStart(5, '0')}`
  return {
    addresses: [
      turn === 0
        ? `10.${128 + (at >> 16)}.${(at >> 8) & 255}.${at & 255}`
        : `10.250.${(turn >> 8) & 255}.${turn & 255}`,
    ],
    conditions: { ready: true, serving: true, terminating: false },
    targetRef: {
      kind: 'Pod',
      namespace: namespace(i),
      name: pod,
      uid: `10000000-0000-4000-8000-${String(at).padStart(12, '0')}`,
    },
    nodeName: `node-${at % 1000}`,
    zone: `zone-${at % 3}`,
  }
}

/** Returns the slice of the measured service. It has one endpoint, so that the first packet to a new one can be recognised. */
export function probeSlice(i: number, turn: number): object {
  const plain = slice(i, 1, 0) as { endpoints: { addresses: string[] }[] }
  const [only] = plain.endpoints
  return { ...plain, endpoints: [{ ...only, addresses: [probeAddress(turn)] }] }
}

export const probeAddress = (turn: number): string => `10.250.${(turn >> 8) & 255}.${turn & 255}`

export const serviceIp = (i: number): string => `10.${96 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`

/** Returns the node on which proxies run. */
export function node(): object {
  return {
    kind: 'Node',
    apiVersion: 'v1',
    metadata: { name: 'node-7', uid: 'node-7', resourceVersion: String(version) },
    spec: {},
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  }
}
