// Builds Services and EndpointSlices as an API server sends them, for tests that use no scenario.

import type { Manifest } from '../scenarios/format.ts'

const metadata = (name: string) => ({
  namespace: 'ns',
  name,
  uid: `uid-${name}`,
  creationTimestamp: '2024-01-01T00:00:00Z',
})

export function serviceOf(
  name: string,
  vip: string,
  ports: readonly { readonly name: string; readonly port: number; readonly protocol?: string }[],
  spec: object = {},
): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: metadata(name),
    spec: {
      type: 'ClusterIP',
      clusterIP: vip,
      clusterIPs: [vip],
      ipFamilies: [vip.includes(':') ? 'IPv6' : 'IPv4'],
      ports: ports.map((port) => ({ protocol: 'TCP', ...port })),
      ...spec,
    },
  } as unknown as Manifest
}

/** Builds a slice with one TCP port; there is one slice per port name. */
export function endpointSliceOf(service: string, addresses: readonly string[], port: number, portName = 'p'): Manifest {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { ...metadata(`${service}-${portName}`), labels: { 'kubernetes.io/service-name': service } },
    addressType: addresses[0]?.includes(':') ? 'IPv6' : 'IPv4',
    ports: [{ name: portName, protocol: 'TCP', port }],
    endpoints: addresses.map((address) => ({
      addresses: [address],
      nodeName: 'node-a',
      conditions: { ready: true, serving: true, terminating: false },
    })),
  } as unknown as Manifest
}
