// Builds the network of the lab: a node with pods, another node with pods, and clients outside, each in its own namespace.
//
//   clients ──── router ──── node ──── pod…        one namespace per local pod
//   203.0.113.x      (sink)   │
//                             └────── far ──── farpods      another node, and all its pods in one namespace
//
// Every link has both families. The router sends everything from outside to the node. Packets that leave the node towards the router
// and are not for the clients end in the sink of the router: the node did not touch them.

import { ipv6Twin } from '../scenarios/twins.ts'
import { Namespace, runIp } from './namespace.ts'
import { applySysctls } from './sysctls.ts'

/** Addresses of the node in the scenarios. It also has loopback and the addresses of the lab's links. */
export const nodeAddresses = ['192.168.0.2', '192.168.1.2', '192.168.99.11'] as const
const routerAddress = '192.168.0.1'
const clientAddresses = ['203.0.113.2', '203.0.113.130'] as const
const clientGateway = '203.0.113.1'
/** Address of the node's end of every pod link: a masqueraded source always differs from the addresses above. */
const podGateway = '10.255.0.1'
const podGatewayMac = '02:51:00:00:00:01'
/** The link between the nodes has its own network for the same reason. */
const farLink = { near: '192.168.50.2', far: '192.168.50.3' }
/** Addresses of the node besides those of the scenarios. */
export const linkAddresses = [farLink.near, podGateway] as const
const farPodGateway = '10.255.1.1'
export const sinkPort = 9
const sinkTable = 100

/** The bridge that connects local pods in scenarios with a bridge detector. */
export const podBridge = 'br-pods'
/** Prefix of the names of the node's ends of pod links. */
const podPrefix = 'pod'

export interface Topology {
  readonly node: Namespace
  readonly router: Namespace
  readonly clients: Namespace
  readonly far: Namespace
  readonly farpods: Namespace
  /** By IPv4 address. */
  readonly pods: ReadonlyMap<string, Namespace>
  /** The node's interface to each pod, by IPv4 address. */
  readonly podInterfaces: ReadonlyMap<string, string>
}

/** Returns the address in both families, with the prefix length of a host. */
const hosts = (ip: string): readonly string[] => [`${ip}/32`, `${ipv6Twin(ip)}/128 nodad`]

const addresses = (device: string, ips: readonly string[]): string[] =>
  ips.flatMap(hosts).map((address) => `addr add ${address} dev ${device}`)

const defaultVia = (gateway: string, device: string): string[] => [
  `route add default via ${gateway} dev ${device} onlink`,
  `route add ::/0 via ${ipv6Twin(gateway)} dev ${device} onlink`,
]

const hostVia = (ip: string, gateway: string, device: string): string[] => [
  `route replace ${ip}/32 via ${gateway} dev ${device} onlink`,
  `route replace ${ipv6Twin(ip)}/128 via ${ipv6Twin(gateway)} dev ${device} onlink`,
]

/** Returns commands for a host route in both families; the host is on the link of `device`. */
export const hostRoute = (ip: string, device: string): string[] => [
  `route replace ${ip}/32 dev ${device}`,
  `route replace ${ipv6Twin(ip)}/128 dev ${device}`,
]

/** Returns commands for the route to a pod of the other node. */
export const farRoute = (ip: string): string[] => hostVia(ip, farLink.far, 'far')

/** Puts the address on the interface itself: neighbour discovery, unlike ARP, does not answer for addresses of other interfaces. */
export const farPodAddress = (ip: string): string[] => addresses('eth0', [ip])

export const nodeExtraAddress = (ip: string): string[] => addresses('lo', [ip])

/** Builds the namespaces `prefix…` with a local pod for each of the IPv4 addresses (and their twins). */
export function buildTopology(prefix: string, podIps: readonly string[]): Topology {
  const fixed = ['node', 'router', 'clients', 'far', 'farpods'] as const
  const podNames = podIps.map((_, i) => `${podPrefix}${i}`)
  const names = [...fixed, ...podNames].map((name) => prefix + name)
  runIp(
    [],
    names.map((name) => `netns add ${name}`),
  )
  const spaces = new Map(names.map((name) => [name.slice(prefix.length), new Namespace(name)]))
  const space = (name: string) => spaces.get(name) as Namespace
  for (const namespace of spaces.values()) applySysctls(namespace)
  const link = (name: string, peer: string, peerSpace: string) =>
    `link add ${name} type veth peer name ${peer} netns ${prefix}${peerSpace}`
  space('node').configure([
    'link set lo up',
    link('world', 'node', 'router'),
    link('far', 'node', 'far'),
    ...podNames.map((name) => link(name, 'eth0', name)),
    `link add ${podBridge} type bridge stp_state 0 forward_delay 0`,
    // All ends have the same hardware address, so that the neighbour entries of pods stay valid when pods move to the bridge.
    ...[podBridge, ...podNames].map((name) => `link set ${name} address ${podGatewayMac}`),
    ...['world', 'far', podBridge, ...podNames].map((name) => `link set ${name} up`),
    ...addresses('world', nodeAddresses),
    ...addresses('far', [farLink.near]),
    ...[podBridge, ...podNames].flatMap((name) => addresses(name, [podGateway])),
    ...hostRoute(farLink.far, 'far'),
    ...defaultVia(routerAddress, 'world'),
  ])
  space('router').configure([
    'link set lo up',
    link('clients', 'eth0', 'clients'),
    'link set node up',
    'link set clients up',
    ...addresses('node', [routerAddress]),
    ...addresses('clients', [clientGateway]),
    ...clientAddresses.flatMap((ip) => hostRoute(ip, 'clients')),
    ...defaultVia('192.168.0.2', 'node'),
    `route add default via 192.168.0.2 dev node onlink table ${sinkTable}`,
    `route add ::/0 via ${ipv6Twin('192.168.0.2')} dev node onlink table ${sinkTable}`,
  ])
  // The sink answers clients through the node, as the owner of the address would: the connection tracking of the node must see both
  // directions, or it takes the next packet of the client for invalid.
  runIp(['-n', space('router').name], [`rule add from ${routerAddress} lookup ${sinkTable}`])
  runIp(['-6', '-n', space('router').name], [`rule add from ${ipv6Twin(routerAddress)} lookup ${sinkTable}`])
  space('clients').configure([
    'link set lo up',
    'link set eth0 up',
    ...addresses('eth0', clientAddresses),
    ...defaultVia(clientGateway, 'eth0'),
  ])
  space('far').configure([
    'link set lo up',
    link('pods', 'eth0', 'farpods'),
    'link set node up',
    'link set pods up',
    ...addresses('node', [farLink.far]),
    ...addresses('pods', [farPodGateway]),
    ...defaultVia(farLink.near, 'node'),
  ])
  space('farpods').configure(['link set lo up', 'link set eth0 up', ...addresses('eth0', ['10.255.1.2'])])
  space('farpods').configure(defaultVia(farPodGateway, 'eth0'))
  for (const [i, ip] of podIps.entries()) {
    space(podNames[i] as string).configure([
      'link set lo up',
      'link set eth0 up',
      ...addresses('eth0', [ip]),
      ...defaultVia(podGateway, 'eth0'),
    ])
  }
  return {
    node: space('node'),
    router: space('router'),
    clients: space('clients'),
    far: space('far'),
    farpods: space('farpods'),
    pods: new Map(podIps.map((ip, i) => [ip, space(podNames[i] as string)])),
    podInterfaces: new Map(podIps.map((ip, i) => [ip, podNames[i] as string])),
  }
}

/** Rules of the router: packets from the node that are not for the clients go to the sink; only these are tracked. */
export const sinkRules = `
table inet sink {
  chain untracked {
    type filter hook prerouting priority raw
    iifname "clients" notrack
    ip daddr 203.0.113.0/24 notrack
    ip6 daddr fd00:203:0:113::/64 notrack
  }
  chain redirected {
    type nat hook prerouting priority dstnat
    iifname "node" meta l4proto { tcp, udp } redirect to :${sinkPort}
  }
}
`
