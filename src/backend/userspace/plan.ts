// One service port as listeners and the lines that redirect to them, refuse, or drop; and the lines for all services. Pure.
//
// The kernel decides by destination and source which listener a connection meets, since afterwards only the source is known.
// That keeps both traffic policies: what may only be answered on this node meets a listener that offers nothing else.
// Nothing can be dropped or refused in nat. So what is not redirected still has its destination in the filter table, and goes there.

import { hostPort, isLoopback } from '../../lib/ip.ts'
import type { Endpoint, Frontend, LocalDetector, NodeView, ServicePort } from '../../model/types.ts'
import {
  hostEntry,
  type ListenerPlan,
  listenerEntry,
  listenerId,
  type PortalRulesEntry,
  type Reach,
  rulesEntry,
  type UserspaceEntry,
} from './entries.ts'
import { chains } from './portal-chains.ts'

/** In the order of text: exact addresses go before all that concerns whole addresses and networks. */
const lastOrders = { unused: '~1 ', unallocated: '~2 ' } as const

export function base(node: NodeView): readonly UserspaceEntry[] {
  const lines = node.serviceCidrs.map((cidr) => `-A ${chains.filter} -d ${cidr} ${comment('unallocated')} -j DROP`)
  return [hostEntry(node.ip), ...(lines.length === 0 ? [] : [rulesEntry(lastOrders.unallocated, lines)])]
}

/** There is no relay for SCTP: its listener will be refused, for all to see, and so are its clients. */
export function plan(port: ServicePort, node: NodeView): readonly UserspaceEntry[] {
  if (port.protocol !== 'sctp' || port.internal === 'reject') return planPort(port, node)
  const refused = listenerEntry(listenerId(port.id, 'cluster'), listenerOf(port, 'cluster'))
  return [...planPort({ ...port, internal: 'reject', external: 'reject' }, node), refused]
}

function planPort(port: ServicePort, node: NodeView): readonly UserspaceEntry[] {
  const clusterIp = port.frontends.find(({ kind }) => kind === 'cluster-ip')
  const entries: UserspaceEntry[] = []
  if (clusterIp !== undefined) entries.push(unusedPorts(port, clusterIp.ip))
  if (port.frontends.length === 0) return entries
  const lines: string[] = []
  const reaches = new Set<Reach>()
  for (const frontend of port.frontends) {
    const route: Route = { port, node, frontend, lines, reaches }
    if (frontend.kind === 'cluster-ip') routeInternal(route)
    else if (frontend.kind === 'node-port') routeNodePort(route)
    else routeExternal(route, `-d ${frontend.ip} `)
  }
  if (port.health !== undefined) {
    const where = `-p tcp -m tcp --dport ${port.health.port}`
    lines.push(`-A ${chains.accept} ${where} ${comment(`${port.name} health check node port`)} -j ACCEPT`)
  }
  for (const reach of reaches) {
    entries.push(listenerEntry(listenerId(port.id, reach), listenerOf(port, reach)))
  }
  const numbers = port.frontends.filter(({ kind }) => kind === 'node-port').map((one) => `${port.protocol} ${one.port}`)
  entries.push(rulesEntry(port.id, lines, numbers))
  return entries
}

export function listenerOf(port: ServicePort, reach: Reach): ListenerPlan {
  return {
    protocol: port.protocol,
    endpoints: port[reach].map(address),
    serving: port.serving.map(address),
    affinitySeconds: port.affinitySeconds,
  }
}

/** One frontend on its way into text. */
interface Route {
  readonly port: ServicePort
  readonly node: NodeView
  readonly frontend: Frontend
  readonly lines: string[]
  readonly reaches: Set<Reach>
}

function routeInternal(route: Route): void {
  const { port, frontend } = route
  const to = `-d ${frontend.ip} `
  if (port.internal === 'reject' || port.internal === 'drop') {
    refuse(route, to, port.internal)
  } else {
    redirect(route, chains.portals.container, to, port.internal)
    redirect(route, chains.portals.host, to, port.internal)
  }
}

function routeNodePort(route: Route): void {
  const { all, addresses } = route.node.nodePorts
  const loopback = servesLoopback(route.node)
  if (all) {
    const except = route.node.family === 4 ? '! -d 127.0.0.0/8 ' : '! -d ::1/128 '
    routeExternal(route, loopback ? '' : except)
  } else {
    for (const ip of addresses) if (loopback || !isLoopback(ip)) routeExternal(route, `-d ${ip} `)
  }
}

/** A socket of our own is what answers, so nothing stands in the way where the configuration covers loopback. */
const servesLoopback = (node: NodeView): boolean => node.nodePorts.loopback

function routeExternal(route: Route, to: string): void {
  const { port, frontend, node } = route
  const { container, host } = frontend.kind === 'node-port' ? chains.nodePorts : chains.portals
  if (port.external !== 'reject') {
    if (port.external !== 'cluster') {
      const pods = fromLocalPods(node.local)
      if (pods !== undefined) redirect(route, container, `${pods} ${to}`, 'cluster')
      redirect(route, container, `-m addrtype --src-type LOCAL ${to}`, 'cluster')
    }
    if (port.external !== 'drop') redirect(route, container, to, port.external)
    redirect(route, host, to, 'cluster')
  }
  // A source outside the ranges is dropped though others are refused, so the ranges come first then.
  if (port.external === 'reject' && frontend.allow.length > 0) admit(route, 'REJECT')
  if (port.external === 'reject' || port.external === 'drop') refuse(route, to, port.external)
  if (port.external !== 'reject' && frontend.allow.length > 0) admit(route, 'RETURN')
}

function redirect({ port, frontend, lines, reaches }: Route, chain: string, where: string, reach: Reach): void {
  reaches.add(reach)
  lines.push(`-A ${chain} ${where}${match(port, frontend)} ${comment(port.name)} <${listenerId(port.id, reach)}>`)
}

function refuse({ port, frontend, lines }: Route, to: string, verdict: 'reject' | 'drop'): void {
  const lack = port.protocol === 'sctp' ? 'is not relayed' : `has no ${verdict === 'drop' ? 'local ' : ''}endpoints`
  const why = comment(`${port.name} ${lack}`)
  const local = frontend.kind === 'node-port' ? '-m addrtype --dst-type LOCAL ' : ''
  const where = `${to}${local}${match(port, frontend)} ${why}`
  // Else a node port of the same number would take what is for this address of the node.
  if (frontend.kind === 'external-ip' || frontend.kind === 'load-balancer') {
    lines.push(`-A ${chains.portals.container} ${where} -j ACCEPT`)
    if (verdict === 'reject') lines.push(`-A ${chains.portals.host} ${where} -j ACCEPT`)
  }
  lines.push(`-A ${chains.filter} ${where} -j ${verdict.toUpperCase()}`)
}

/** By the destination that the client gave: redirected or not, it is remembered with the connection. */
function admit({ port, frontend, lines }: Route, verdict: 'RETURN' | 'REJECT'): void {
  const original = `--ctorigdst ${frontend.ip} --ctorigdstport ${frontend.port}`
  const rule = (from: string, what: string) =>
    `-A ${chains.filter} ${from}-p ${port.protocol} -m conntrack ${original} ${comment(`${port.name} source ranges`)} -j ${what}`
  const own = port.frontends.filter(({ kind }) => kind === 'load-balancer').map(({ ip }) => ip)
  for (const source of port.nodeAllowed ? [...frontend.allow, ...own] : frontend.allow) {
    lines.push(rule(`-s ${source} `, verdict))
  }
  lines.push(rule('', 'DROP'))
}

/** Shared by all ports of a service: what is still for the cluster IP in the filter table was redirected for none of them. */
function unusedPorts(port: ServicePort, ip: string): PortalRulesEntry {
  const lines = [`-A ${chains.filter} -d ${ip} ${comment(`${port.service} has no such port`)} -j REJECT`]
  return rulesEntry(`${lastOrders.unused}${ip}`, lines)
}

/** Undefined if pods cannot be told from others. */
function fromLocalPods(detector: LocalDetector | undefined): string | undefined {
  if (detector === undefined) return undefined
  if (detector.kind === 'cidr') return `-s ${detector.cidr}`
  return detector.kind === 'interface' ? `-i ${detector.name}` : `-i ${detector.prefix}+`
}

const match = ({ protocol }: ServicePort, { port }: Frontend): string => `-p ${protocol} -m ${protocol} --dport ${port}`

const comment = (text: string): string => `-m comment --comment "${text}"`

const address = ({ ip, port }: Endpoint): string => hostPort(ip, port)
