// Turns records back into API objects, as far as records know them: for objects that the API server could not be asked for. Pure.

import type { Json } from '../../apiserver/schema/json.ts'
import { familyName, familyOf } from '../../lib/ip.ts'
import { formatTime } from '../../lib/time.ts'
import type { EndpointRecord, ServiceRecord, SliceRecord } from '../../model/types.ts'

function identify(key: string): Json {
  const slash = key.indexOf('/')
  return { namespace: key.slice(0, slash), name: key.slice(slash + 1) }
}

export function makeServiceObject(record: ServiceRecord): Json {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { ...identify(record.key), uid: record.uid, creationTimestamp: formatTime(record.created) },
    spec: {
      type: record.type,
      clusterIP: record.clusterIps[0],
      clusterIPs: record.clusterIps,
      ipFamilies: record.clusterIps.map((ip) => familyName(familyOf(ip))),
      ipFamilyPolicy: record.clusterIps.length > 1 ? 'PreferDualStack' : 'SingleStack',
      ports: record.ports.map(({ name, protocol, port, nodePort }) => ({
        ...(name === '' ? {} : { name }),
        protocol: protocol.toUpperCase(),
        port,
        targetPort: port,
        ...(nodePort === 0 ? {} : { nodePort }),
      })),
      ...makeTrafficFields(record),
    },
    status: { loadBalancer: makeLoadBalancer(record.loadBalancerIps) },
  }
}

function makeTrafficFields(record: ServiceRecord): Json {
  const { externalIps, sourceRanges, affinitySeconds, healthCheckNodePort } = record
  const sessionAffinityConfig = { clientIP: { timeoutSeconds: affinitySeconds } }
  return {
    internalTrafficPolicy: record.internalPolicy,
    ...(record.type === 'ClusterIP' ? {} : { externalTrafficPolicy: record.externalPolicy }),
    ...(externalIps.length === 0 ? {} : { externalIPs: externalIps }),
    ...(sourceRanges.length === 0 ? {} : { loadBalancerSourceRanges: sourceRanges }),
    ...(affinitySeconds === 0 ? { sessionAffinity: 'None' } : { sessionAffinity: 'ClientIP', sessionAffinityConfig }),
    ...(healthCheckNodePort === 0 ? {} : { healthCheckNodePort }),
  }
}

const makeLoadBalancer = (ips: readonly string[]): Json =>
  ips.length === 0 ? {} : { ingress: ips.map((ip) => ({ ip, ipMode: 'VIP' })) }

export function makeSliceObject(record: SliceRecord): Json {
  const { name: service } = identify(record.service)
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { ...identify(record.key), labels: { 'kubernetes.io/service-name': service } },
    addressType: familyName(record.family),
    endpoints: Array.from(record.endpoints, makeEndpoint),
    ports: record.ports.map(({ name, protocol, port }) => ({ name, protocol: protocol.toUpperCase(), port })),
  }
}

const makeEndpoint = ({ ip, node, ready, serving, terminating }: EndpointRecord): Json => ({
  addresses: [ip],
  conditions: { ready, serving, terminating },
  ...(node === '' ? {} : { nodeName: node }),
})
