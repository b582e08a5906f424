// Builders for records, views and service ports, used by tests and benches: each field has a plain default, so that a test names only what matters.

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

/** Conditions of an endpoint: `ready`, `draining` (serving, terminating), `dead` (terminating only), `unready` (neither ready nor serving). */
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
    apiServers: [],
    reserved: {},
    ...given,
  }
}

/** A ClusterIP port without frontends and endpoints, as `resolve` returns it. `name` and `id` follow from the other fields. */
export function servicePort(given: Partial<ServicePort> = {}): ServicePort {
  const { service: key = 'ns1/svc1', portName = 'p80', protocol = 'tcp' } = given
  return {
    id: `${key}:${portName}/${protocol}`,
    service: key,
    name: portName === '' ? key : `${key}:${portName}`,
    portName,
    family: 4,
    protocol,
    frontends: [],
    internal: 'cluster',
    external: 'cluster',
    cluster: [],
    local: [],
    serving: [],
    endpoints: 0,
    affinitySeconds: 0,
    nodeAllowed: false,
    health: undefined,
    ...given,
  }
}

/** Node ports answer on all addresses of the node. */
export const everyAddress = { all: true, addresses: [], loopback: true, loopbackNamed: false }

export const addresses = (endpoints: ServicePort['cluster']): string[] =>
  endpoints.map(({ ip, port }) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`))

/** Freezes the value and everything in it: a function that modifies its argument throws. */
export function frozen<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const part of Object.values(value)) frozen(part)
  }
  return value
}
