// Small builders of records and views for the model's tests: everything has a plain default, a test names only what matters.

import { familyOf } from '../../src/lib/ip.ts'
import type {
  EndpointRecord,
  NodeView,
  Protocol,
  ServicePort,
  ServicePortRecord,
  ServiceRecord,
  SliceRecord,
} from '../../src/model/types.ts'

export const tcp = (port: number, name = 'p80', nodePort = 0): ServicePortRecord => {
  return { name, protocol: 'tcp', port, nodePort }
}

export function service(given: Partial<ServiceRecord> = {}): ServiceRecord {
  return {
    key: 'ns1/svc1',
    uid: 'uid-1',
    created: 1_700_000_000_000,
    type: 'ClusterIP',
    clusterIps: ['172.30.0.41'],
    ports: [tcp(80)],
    externalIps: [],
    loadBalancerIps: [],
    sourceRanges: [],
    externalPolicy: 'Cluster',
    internalPolicy: 'Cluster',
    affinitySeconds: 0,
    healthCheckNodePort: 0,
    ...given,
  }
}

/** `ready`, `draining` (serving, terminating), `dead` (terminating only), `unready` (neither ready nor serving). */
export type State = 'ready' | 'draining' | 'dead' | 'unready'

export function endpoint(ip: string, node = 'remote', state: State = 'ready', given: Partial<EndpointRecord> = {}) {
  return {
    ip,
    node,
    ready: state === 'ready',
    serving: state === 'ready' || state === 'draining',
    terminating: state === 'draining' || state === 'dead',
    zoneHints: [],
    nodeHints: [],
    ...given,
  } satisfies EndpointRecord
}

export interface SliceGiven extends Partial<SliceRecord> {
  readonly port?: number
  readonly name?: string
  readonly protocol?: Protocol
}

export function slice(endpoints: readonly EndpointRecord[], given: SliceGiven = {}): SliceRecord {
  const { port = 80, name = 'p80', protocol = 'tcp', ...rest } = given
  return {
    key: 'ns1/svc1-a',
    service: 'ns1/svc1',
    family: endpoints[0] === undefined ? 4 : familyOf(endpoints[0].ip),
    ports: [{ name, protocol, port }],
    endpoints,
    triggered: 0,
    ...rest,
  }
}

/** The node of upstream's packet-flow tests: 192.168.0.2, pods 10.0.0.0/8, node ports on the primary address only. */
export function view(given: Partial<NodeView> = {}): NodeView {
  return {
    name: 'here',
    family: 4,
    zone: '',
    ip: '192.168.0.2',
    nodePorts: { all: false, addresses: ['192.168.0.2'], loopback: false, loopbackNamed: false },
    local: { kind: 'cidr', cidr: '10.0.0.0/8' },
    masqueradeAll: false,
    masqueradeMark: 0x4000,
    serviceCidrs: ['172.30.0.0/16'],
    externalIps: true,
    ...given,
  }
}

export const everyAddress = { all: true, addresses: [], loopback: true, loopbackNamed: false }

export const addresses = (endpoints: ServicePort['cluster']): string[] =>
  endpoints.map(({ ip, port }) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`))

/** Freezes all the way down, so that a function that is not pure throws. */
export function frozen<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const part of Object.values(value)) frozen(part)
  }
  return value
}
