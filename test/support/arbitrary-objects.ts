// Generates API objects of which many are not valid, and writes them as the API server would.

import fc from 'fast-check'
import type { JsonObject } from '../../src/kube/decode/fields.ts'

const name = fc.stringMatching(/^[a-z][a-z0-9-]{0,8}[a-z0-9]$/)
const ip = fc.oneof(fc.ipV4(), fc.constantFrom('', 'bad', '2001:db8::7'))
const port = fc.integer({ min: -1, max: 70_000 })
const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined, freq: 3 })
const fields = (shape: Record<string, fc.Arbitrary<unknown>>) => fc.record(shape, { noNullPrototype: true })

const metadata = fields({
  name,
  namespace: name,
  uid: fc.uuid(),
  resourceVersion: fc.nat().map(String),
  creationTimestamp: fc.constantFrom('2026-11-16T03:12:00Z', '1970-01-01T00:00:01Z'),
  labels: optional(
    fc.record({
      'kubernetes.io/service-name': name,
      app: name,
      'service.kubernetes.io/headless': optional(fc.constant('')),
    }),
  ),
  annotations: optional(
    fc.record({
      'endpoints.kubernetes.io/last-change-trigger-time': fc.constantFrom('2026-11-16T03:12:00Z', 'never'),
      'sluice/weight': optional(fc.constantFrom('5', 'x')),
      note: fc.string(),
    }),
  ),
  ownerReferences: optional(
    fc.array(fields({ name, kind: name, uid: fc.uuid(), controller: fc.boolean() }), { maxLength: 2 }),
  ),
})

export const anyService = fields({
  metadata,
  spec: fields({
    type: optional(fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName', 'Strange')),
    clusterIP: ip,
    clusterIPs: optional(fc.array(ip, { maxLength: 2 })),
    ipFamilies: optional(fc.array(fc.constantFrom('IPv4', 'IPv6'), { maxLength: 2 })),
    ports: optional(
      fc.array(
        fields({
          name: optional(name),
          protocol: optional(fc.constantFrom('TCP', 'UDP', 'ICMP')),
          port,
          targetPort: fc.oneof(port, name),
          nodePort: optional(port),
        }),
        { maxLength: 4 },
      ),
    ),
    selector: optional(fc.record({ app: name })),
    externalIPs: optional(fc.array(ip, { maxLength: 3 })),
    sessionAffinity: optional(fc.constantFrom('None', 'ClientIP')),
    sessionAffinityConfig: optional(fields({ clientIP: optional(fields({ timeoutSeconds: optional(port) })) })),
    loadBalancerSourceRanges: optional(fc.array(fc.constantFrom('10.0.0.0/8', ' ', 'x'), { maxLength: 3 })),
    externalTrafficPolicy: optional(fc.constantFrom('Local', 'Cluster')),
    internalTrafficPolicy: optional(fc.constantFrom('Local', 'Cluster')),
    healthCheckNodePort: optional(port),
  }),
  status: optional(
    fields({
      loadBalancer: optional(
        fields({
          ingress: optional(
            fc.array(fields({ ip, ipMode: optional(fc.constantFrom('VIP', 'Proxy')) }), { maxLength: 2 }),
          ),
        }),
      ),
    }),
  ),
})

export const anySlice = fields({
  metadata,
  addressType: fc.constantFrom('IPv4', 'IPv6', 'FQDN'),
  ports: optional(
    fc.array(
      fields({
        name: optional(fc.oneof(name, fc.constant(''))),
        protocol: optional(fc.constant('UDP')),
        port: optional(port),
      }),
      {
        maxLength: 3,
      },
    ),
  ),
  endpoints: optional(
    fc.array(
      fields({
        addresses: fc.array(ip, { maxLength: 2 }),
        conditions: optional(
          fields({
            ready: optional(fc.boolean()),
            serving: optional(fc.boolean()),
            terminating: optional(fc.boolean()),
          }),
        ),
        nodeName: optional(name),
        zone: optional(name),
        targetRef: optional(fields({ kind: name, name, namespace: name })),
        hints: optional(
          fields({
            forZones: optional(fc.array(fields({ name }), { maxLength: 2 })),
            forNodes: optional(fc.array(fields({ name }), { maxLength: 2 })),
          }),
        ),
      }),
      { maxLength: 5 },
    ),
  ),
})

export const anyCidr = fields({
  metadata,
  spec: optional(fields({ cidrs: optional(fc.array(fc.constantFrom('10.0.0.0/8', 'x'), { maxLength: 2 })) })),
})

/** As the API server writes JSON: fields that are undefined are absent, and so are empty values of fields that are not pointers. */
export const asJson = (object: object): JsonObject => JSON.parse(JSON.stringify(object))
