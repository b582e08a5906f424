// Addresses that no service may take: the listeners of this proxy, the API server, and loopback. Pure.
//
// A service that held one of these would cut the proxy off from the API server, and then the proxy would never hear that the service is
// deleted; or it would answer in the place of this node's health check.

import { contains, type Family, familyOf, hostPort, isLoopback, isUnspecified, parseCidr } from '../lib/ip.ts'
import { frontendKey } from './conflicts.ts'
import type {
  Endpoint,
  EndpointRecord,
  Frontend,
  NodePortAddresses,
  NodeView,
  ServicePort,
  SliceRecord,
  SocketAddress,
} from './types.ts'

/** A TCP socket that a program on this node or the API server listens on. */
export interface ReservedSocket extends SocketAddress {
  /** Completes the sentence "the address is reserved for …". */
  readonly holder: string
}

export const apiServerHolder = 'the API server'

const loopbackHolder = 'loopback, which every node has for itself'

export interface ReservedFacts {
  /** The sockets of this proxy; an unspecified address stands for every address of the node. */
  readonly listeners: readonly ReservedSocket[]
  readonly apiServers: readonly SocketAddress[]
  /** Addresses of all interfaces, both families, canonical. */
  readonly interfaceAddresses: readonly string[]
}

/** The holders of reserved addresses in one family, by `frontendKey`, sorted, so that equal facts give equal texts. */
export function reservedAddresses(
  facts: ReservedFacts,
  family: Family,
  nodePorts: NodePortAddresses,
): Readonly<Record<string, string>> {
  const own = new Set(facts.interfaceAddresses.filter((ip) => familyOf(ip) === family))
  const holders = new Map<string, string>()
  const reserve = (ip: string, { port, holder }: ReservedSocket) => {
    const key = frontendKey({ ip, port }, 'tcp')
    if (!holders.has(key)) holders.set(key, holder)
  }
  const apiServers = facts.apiServers.map((address) => ({ ...address, holder: apiServerHolder }))
  for (const socket of [...apiServers, ...facts.listeners]) {
    // As with Go, a listener on the unspecified address of one family answers in both.
    const addresses = isUnspecified(socket.ip) ? [...own] : [socket.ip].filter((ip) => familyOf(ip) === family)
    for (const ip of addresses) reserve(ip, socket)
    // A node port is the same number on all addresses of the node, so it would take the socket's address, too.
    if (addresses.some((ip) => own.has(ip) && servesNodePorts(nodePorts, ip))) reserve('', socket)
  }
  return Object.fromEntries([...holders].sort(([a], [b]) => (a < b ? -1 : 1)))
}

const servesNodePorts = ({ all, addresses }: NodePortAddresses, ip: string): boolean => all || addresses.includes(ip)

/** The port numbers of reserved addresses: a port that is not among them needs no look-up by address. */
export const reservedPorts = (reserved: NodeView['reserved']): ReadonlySet<number> =>
  new Set(Object.keys(reserved).map((key) => Number(key.slice(key.lastIndexOf(':') + 1, key.lastIndexOf('/')))))

/** Returns the holder of an address that this frontend must not take; undefined if the service may have it. */
export function reservedHolder(
  port: ServicePort,
  frontend: { readonly kind: Frontend['kind'] | 'health-check'; readonly ip: string },
  key: string,
  node: NodeView,
): string | undefined {
  if ((frontend.kind === 'external-ip' || frontend.kind === 'load-balancer') && isLoopback(frontend.ip)) {
    return loopbackHolder
  }
  const holder = node.reserved[key]
  return holder === apiServerHolder && leadsToApiServers(port, node) ? undefined : holder
}

/**
 * True if every endpoint of the port is an API server. A cluster may reach its API servers by a load balancer that is a Service of the
 * same cluster; without that Service's rules there would be no connection.
 */
export function leadsToApiServers(port: ServicePort, node: NodeView): boolean {
  const isApiServer = ({ ip, port: number }: Endpoint) =>
    node.apiServers.some((server) => server.ip === ip && server.port === number)
  return port.protocol === 'tcp' && port.cluster.length > 0 && [...port.cluster, ...port.local].every(isApiServer)
}

/** The Service by which pods reach the API server. The API servers write its endpoints: their own addresses. */
export const apiServerService = 'default/kubernetes'

/**
 * The TCP endpoints of default/kubernetes that `isWanted` accepts. All are accepted by default, ready or not: an API server that restarts
 * has its address all the same.
 */
export const apiServerEndpoints = (
  slices: Iterable<SliceRecord>,
  isWanted: (endpoint: EndpointRecord) => boolean = () => true,
): readonly SocketAddress[] =>
  [...slices]
    .filter(({ service }) => service === apiServerService)
    .flatMap(({ endpoints, ports }) =>
      ports
        .filter(({ protocol }) => protocol === 'tcp')
        .flatMap(({ port }) => [...endpoints].filter(isWanted).map(({ ip }) => ({ ip, port }))),
    )

export interface CidrOverlap {
  readonly cidr: string
  /** `the API server 192.0.2.1:6443`. */
  readonly address: string
}

/** The service CIDRs of a view that contain an address of this node or of an API server: such a CIDR is a mistake. */
export function findCidrOverlaps(node: NodeView, interfaceAddresses: readonly string[]): readonly CidrOverlap[] {
  const own = [...new Set([node.ip, ...interfaceAddresses])].filter((ip) => !isLoopback(ip))
  const named = [
    ...own.map((ip) => ({ ip, address: `the address ${ip} of this node` })),
    ...node.apiServers.map(({ ip, port }) => ({ ip, address: `the API server ${hostPort(ip, port)}` })),
  ]
  return node.serviceCidrs.flatMap((text) => {
    const cidr = parseCidr(text)
    if (cidr === undefined) return []
    return named.filter(({ ip }) => contains(cidr, ip)).map(({ address }) => ({ cidr: text, address }))
  })
}
