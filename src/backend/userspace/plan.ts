// Plans one service port as listeners and as rules that redirect to them, refuse, or drop. Pure.
//
// The rules choose the listener by destination and source, because after the redirection a socket knows only the source. That implements
// both traffic policies: traffic that only endpoints on this node may answer is redirected to a listener that offers no others.
// The nat table can neither drop nor refuse. Packets that it does not redirect keep their destination, and the filter table handles them.

import { hostPort, isLoopback } from '../../lib/ip.ts'
import { listWeighted } from '../../model/endpoint-slots.ts'
import type { Endpoint, Frontend, LocalDetector, NodeView, ServicePort } from '../../model/types.ts'
import { planChoice } from '../relay/balancer-choice.ts'
import {
  type ListenerPlan,
  lastOrders,
  listenerEntry,
  listenerId,
  type PortalRulesEntry,
  type Reach,
  rulesEntry,
  type UserspaceEntry,
} from './entries.ts'
import { chains, commentMatch } from './portal-chains.ts'

/** There is no relay for SCTP. Its listener is planned so that the target refuses it, which users see; the rules refuse its clients. */
export function plan(port: ServicePort, node: NodeView): readonly UserspaceEntry[] {
  if (port.protocol !== 'sctp' || port.internal === 'reject') return planPort(port, node)
  const refused = listenerEntry(listenerId(port.id, 'cluster'), planListener(port, 'cluster'))
  return [...planPort({ ...port, internal: 'reject', external: 'reject' }, node), refused]
}

function planPort(port: ServicePort, node: NodeView): readonly UserspaceEntry[] {
  const clusterIp = port.frontends.find(({ kind }) => kind === 'cluster-ip')
  const entries: UserspaceEntry[] = []
  if (clusterIp !== undefined) entries.push(refuseUnusedPorts(port, clusterIp.ip))
  if (port.frontends.length === 0) return entries
  const lines: string[] = []
  const reaches = new Set<Reach>()
  for (const frontend of port.frontends) {
    const planned: FrontendRules = { port, node, frontend, lines, reaches }
    if (frontend.kind === 'cluster-ip') planInternal(planned)
    else if (frontend.kind === 'node-port') planNodePort(planned)
    else planExternal(planned, `-d ${frontend.ip} `)
  }
  if (port.health !== undefined) {
    const where = `-p tcp -m tcp --dport ${port.health.port}`
    lines.push(`-A ${chains.accept} ${where} ${commentMatch(`${port.name} health check node port`)} -j ACCEPT`)
  }
  for (const reach of reaches) {
    entries.push(listenerEntry(listenerId(port.id, reach), planListener(port, reach)))
  }
  const numbers = port.frontends.filter(({ kind }) => kind === 'node-port').map((one) => `${port.protocol} ${one.port}`)
  entries.push(rulesEntry(port.id, lines, numbers))
  return entries
}

function planListener(port: ServicePort, reach: Reach): ListenerPlan {
  return {
    protocol: port.protocol,
    endpoints: listWeighted(port, port[reach]),
    serving: port.serving.map(formatEndpoint),
    affinitySeconds: port.affinitySeconds,
    ...planChoice(port),
  }
}

/** One frontend, and the rules and listeners of its service port so far. */
interface FrontendRules {
  readonly port: ServicePort
  readonly node: NodeView
  readonly frontend: Frontend
  readonly lines: string[]
  readonly reaches: Set<Reach>
}

function planInternal(planned: FrontendRules): void {
  const { port, frontend } = planned
  const to = `-d ${frontend.ip} `
  if (port.internal === 'reject' || port.internal === 'drop') {
    refuse(planned, to, port.internal)
  } else {
    redirect(planned, chains.portals.container, to, port.internal)
    redirect(planned, chains.portals.host, to, port.internal)
  }
}

function planNodePort(planned: FrontendRules): void {
  const { all, addresses } = planned.node.nodePorts
  // A socket of this process answers, so loopback works wherever the configuration covers it.
  const loopback = planned.node.nodePorts.loopback
  if (all) {
    const except = planned.node.family === 4 ? '! -d 127.0.0.0/8 ' : '! -d ::1/128 '
    planExternal(planned, loopback ? '' : except)
  } else {
    for (const ip of addresses) if (loopback || !isLoopback(ip)) planExternal(planned, `-d ${ip} `)
  }
}

function planExternal(planned: FrontendRules, to: string): void {
  const { port, frontend, node } = planned
  const { container, host } = frontend.kind === 'node-port' ? chains.nodePorts : chains.portals
  if (port.external !== 'reject') {
    if (port.external !== 'cluster') {
      const pods = matchLocalPods(node.local)
      if (pods !== undefined) redirect(planned, container, `${pods} ${to}`, 'cluster')
      redirect(planned, container, `-m addrtype --src-type LOCAL ${to}`, 'cluster')
    }
    if (port.external !== 'drop') redirect(planned, container, to, port.external)
    redirect(planned, host, to, 'cluster')
  }
  // A source outside the ranges is dropped even where all other sources are refused, so the ranges come first there.
  if (port.external === 'reject' && frontend.allow.length > 0) restrictSources(planned, 'REJECT')
  if (port.external === 'reject' || port.external === 'drop') refuse(planned, to, port.external)
  if (port.external !== 'reject' && frontend.allow.length > 0) restrictSources(planned, 'RETURN')
}

function redirect({ port, frontend, lines, reaches }: FrontendRules, chain: string, where: string, reach: Reach): void {
  reaches.add(reach)
  lines.push(
    `-A ${chain} ${where}${matchPort(port, frontend)} ${commentMatch(port.name)} <${listenerId(port.id, reach)}>`,
  )
}

function refuse({ port, frontend, lines }: FrontendRules, to: string, verdict: 'reject' | 'drop'): void {
  const lack = port.protocol === 'sctp' ? 'is not relayed' : `has no ${verdict === 'drop' ? 'local ' : ''}endpoints`
  const why = commentMatch(`${port.name} ${lack}`)
  const local = frontend.kind === 'node-port' ? '-m addrtype --dst-type LOCAL ' : ''
  const where = `${to}${local}${matchPort(port, frontend)} ${why}`
  // Without these rules a node port of the same number would redirect what is for this address of the node.
  if (frontend.kind === 'external-ip' || frontend.kind === 'load-balancer') {
    lines.push(`-A ${chains.portals.container} ${where} -j ACCEPT`)
    if (verdict === 'reject') lines.push(`-A ${chains.portals.host} ${where} -j ACCEPT`)
  }
  lines.push(`-A ${chains.filter} ${where} -j ${verdict.toUpperCase()}`)
}

/** Matches the destination that the client used: connection tracking remembers it even if the packet was redirected. */
function restrictSources({ port, frontend, lines }: FrontendRules, verdict: 'RETURN' | 'REJECT'): void {
  const original = `--ctorigdst ${frontend.ip} --ctorigdstport ${frontend.port}`
  const rule = (from: string, what: string) =>
    `-A ${chains.filter} ${from}-p ${port.protocol} -m conntrack ${original} ${commentMatch(`${port.name} source ranges`)} -j ${what}`
  const own = port.frontends.filter(({ kind }) => kind === 'load-balancer').map(({ ip }) => ip)
  for (const source of port.nodeAllowed ? [...frontend.allow, ...own] : frontend.allow) {
    lines.push(rule(`-s ${source} `, verdict))
  }
  lines.push(rule('', 'DROP'))
}

/** All ports of a service share this entry: a packet that still has the cluster IP in the filter table is for none of the ports. */
function refuseUnusedPorts(port: ServicePort, ip: string): PortalRulesEntry {
  const lines = [`-A ${chains.filter} -d ${ip} ${commentMatch(`${port.service} has no such port`)} -j REJECT`]
  return rulesEntry(`${lastOrders.unused}${ip}`, lines)
}

/** Undefined if the node cannot distinguish its pods from other clients. */
function matchLocalPods(detector: LocalDetector | undefined): string | undefined {
  if (detector === undefined) return undefined
  if (detector.kind === 'cidr') return `-s ${detector.cidr}`
  return detector.kind === 'interface' ? `-i ${detector.name}` : `-i ${detector.prefix}+`
}

const matchPort = ({ protocol }: ServicePort, { port }: Frontend): string =>
  `-p ${protocol} -m ${protocol} --dport ${port}`

const formatEndpoint = ({ ip, port }: Endpoint): string => hostPort(ip, port)
