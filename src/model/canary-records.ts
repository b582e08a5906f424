// The service of this proxy alone, through which it checks its own data path: records as if the API server had sent them. Pure.

import { type Family, familyOf } from '../lib/ip.ts'
import type { ServiceRecord, SliceRecord } from './types.ts'

/** No Service of the API has a dot in its name. */
export const canaryService = 'sluice/data-path.canary'
export const canaryPort = 7

/** It loses an address that a Service of the API has. */
export const makeCanaryService = (addresses: readonly string[]): ServiceRecord => ({
  key: canaryService,
  uid: '',
  created: Number.MAX_SAFE_INTEGER,
  type: 'ClusterIP',
  clusterIps: addresses,
  ports: [{ name: '', protocol: 'tcp', port: canaryPort, nodePort: 0 }],
  externalIps: [],
  loadBalancerIps: [],
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
  outlierEjection: false,
})

/** The only endpoint is a socket on this node. */
export const makeCanarySlice = (
  node: string,
  endpoint: { readonly ip: string; readonly port: number },
): SliceRecord => {
  const family = familyOf(endpoint.ip) as Family
  return {
    key: `${canaryService}-${family}`,
    service: canaryService,
    family,
    ports: [{ name: '', protocol: 'tcp', port: endpoint.port }],
    endpoints: [
      { ip: endpoint.ip, node, ready: true, serving: true, terminating: false, zoneHints: [], nodeHints: [] },
    ],
    triggered: 0,
  }
}
