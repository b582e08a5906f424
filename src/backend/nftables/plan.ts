// Plans the nftables entries of one service port: elements and balanced frontends, and with ClientIP affinity its own chains. Pure.

import { contains, hostPort, isLoopback, parseCidr } from '../../lib/ip.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { affinityChainName, affinityEntries } from './affinity.ts'
import { element, frontendEntry, frontendKey, type NftEntry } from './entries.ts'

export function plan(resolved: ServicePort, node: NodeView): readonly NftEntry[] {
  if (resolved.frontends.length === 0) return []
  const port = withShortName(resolved)
  const entries: NftEntry[] = []
  for (const frontend of port.frontends) {
    if (frontend.kind === 'cluster-ip') planClusterIp(port, frontend, entries)
    else planExternal(port, frontend, node, entries)
  }
  for (const endpoint of listReachable(port)) {
    if (endpoint.local) {
      const key = `${endpoint.ip} ${endpoint.ip} ${port.protocol} ${endpoint.port}`
      entries.push(element('hairpin-connections', key))
    }
  }
  if (port.affinitySeconds > 0) entries.push(...affinityEntries(port, node))
  return entries
}

/** nft lists longer comments, but does not read them back. */
const maxComment = 128

/** Shortens the name, which is used only in comments. The longest namespace, name and port name are 15 characters too long together. */
function withShortName(port: ServicePort): ServicePort {
  const { name } = port
  return name.length <= maxComment ? port : { ...port, name: `${name.slice(0, maxComment - 3)}...` }
}

/** Returns all endpoints that traffic on this node may be sent to. */
function listReachable(port: ServicePort): readonly Endpoint[] {
  if (port.local.length === 0) return port.cluster
  if (port.cluster.length === 0) return port.local
  const known = new Set(port.cluster.map(addressOf))
  return [...port.cluster, ...port.local.filter((endpoint) => !known.has(addressOf(endpoint)))]
}

function planClusterIp(port: ServicePort, frontend: Frontend, entries: NftEntry[]): void {
  const key = frontendKey({ ...frontend, protocol: port.protocol })
  entries.push(element('cluster-ips', frontend.ip))
  if (port.internal === 'reject' || port.internal === 'drop') {
    entries.push(element('no-endpoint-services', key, refusalVerdict(port.internal), port.name))
  } else if (port.affinitySeconds > 0) {
    entries.push(element('service-ips', key, `goto ${affinityChainName(port, port.internal)}`, port.name))
  } else {
    entries.push(
      frontendEntry({
        ip: frontend.ip,
        protocol: port.protocol,
        port: frontend.port,
        policy: 'plain',
        cluster: (port.internal === 'local' ? port.local : port.cluster).map(addressOf),
        local: none,
        comment: port.name,
      }),
    )
  }
}

function planExternal(port: ServicePort, frontend: Frontend, node: NodeView, entries: NftEntry[]): void {
  const isNodePort = frontend.kind === 'node-port'
  const key = frontendKey({ ...frontend, protocol: port.protocol })
  if (frontend.allow.length > 0) planFirewall(port, frontend, key, entries)
  if (port.external === 'reject') {
    entries.push(
      element(isNodePort ? 'no-endpoint-nodeports' : 'no-endpoint-services', key, refusalVerdict('reject'), port.name),
    )
    return
  }
  if (port.affinitySeconds > 0) {
    const dispatch = `goto ${affinityChainName(port, 'external')}`
    entries.push(element(isNodePort ? 'service-nodeports' : 'service-ips', key, dispatch, port.name))
  } else {
    entries.push(
      frontendEntry({
        ip: frontend.ip,
        protocol: port.protocol,
        port: frontend.port,
        policy: port.external === 'cluster' ? 'masquerade' : 'local',
        cluster: port.cluster.map(addressOf),
        local: port.external === 'cluster' ? none : port.local.map(addressOf),
        comment: port.name,
      }),
    )
  }
  const { addresses, loopbackNamed } = node.nodePorts
  if (isNodePort && loopbackNamed && port.protocol !== 'sctp') {
    for (const ip of addresses) if (isLoopback(ip)) planListener(ip, port, frontend, entries)
  }
}

/** One set has the destinations with source ranges, another one the allowed sources. Other traffic to these destinations is dropped. */
function planFirewall(port: ServicePort, frontend: Frontend, key: string, entries: NftEntry[]): void {
  entries.push(element('firewalled-ips', key, '', port.name))
  const own = port.frontends
    .filter((f) => f.kind === 'load-balancer')
    .map((f) => `${f.ip}/${port.family === 4 ? 32 : 128}`)
  for (const range of removeNested(port.nodeAllowed ? [...frontend.allow, ...own] : frontend.allow)) {
    entries.push(element('firewall-allowed', `${key} ${range}`, '', port.name))
  }
}

/** Returns the CIDRs without those that lie inside another one, because the kernel refuses overlapping members. */
export function removeNested(ranges: readonly string[]): readonly string[] {
  const cidrs = [...new Set(ranges)].map((range) => parseCidr(range)).filter((cidr) => cidr !== undefined)
  return cidrs
    .filter((cidr) => !cidrs.some((other) => other.bits < cidr.bits && contains(other, cidr.ip)))
    .map((cidr) => cidr.text)
}

function planListener(ip: string, port: ServicePort, frontend: Frontend, entries: NftEntry[]): void {
  const listener = {
    ip,
    protocol: port.protocol,
    port: frontend.port,
    endpoints: port.cluster.map(addressOf),
    affinitySeconds: port.affinitySeconds,
  }
  entries.push({
    kind: 'listener',
    id: `listener ${listener.ip} ${listener.protocol} ${listener.port}`,
    digest: `${listener.endpoints.join(',')} ${listener.affinitySeconds}`,
    listener,
  })
}

const none: readonly never[] = Object.freeze([])

const refusalVerdict = (disposition: 'reject' | 'drop'): string =>
  disposition === 'drop' ? 'drop' : 'goto reject-chain'

const addressOf = (endpoint: Endpoint): string => hostPort(endpoint.ip, endpoint.port)
